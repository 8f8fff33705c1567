"""`slurmckpt fingerprint`: what a restore would compare on this node, and what differs from a checkpoint."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from slurmckpt import config
from slurmckpt.capture import criu
from slurmckpt.cli import find
from slurmckpt.cli.jobid import JobName, JobNameType
from slurmckpt.config import Settings
from slurmckpt.errors import SlurmckptError, one_line
from slurmckpt.fingerprint import engine, model
from slurmckpt.fingerprint.compare import Fingerprint, compare, explain, rule_for
from slurmckpt.fingerprint.node import node_feature, node_fingerprint
from slurmckpt.store.files import read_small
from slurmckpt.store.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest
from slurmckpt.store.record import read

_VALUE_LENGTH = 100


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--diff",
    metavar="CHECKPOINT",
    help="What differs from a checkpoint: JOB for its newest, JOB#SEQ, or the checkpoint's directory. Exit status 1:"
    " it would not be restored here.",
)
def command(as_json: bool, diff: str | None) -> None:
    """Show this node's fingerprint, the rule for each key, and the node feature that stands for it."""
    settings = config.load()
    try:
        version = criu.find(settings.capture.criu, settings.capture.real_id).version
    except SlurmckptError as error:
        click.echo(f"slurmckpt: {error}: the node feature is not the one that this node would have with it", err=True)
        version = ""
    facts = node_fingerprint(settings, version)
    if diff is not None:
        _compare(diff, facts, settings, as_json)
    rules = {key: rule_for(key, settings.fingerprint.rules) for key in facts}
    feature = node_feature(facts, settings.fingerprint.rules)
    if as_json:
        click.echo(json.dumps({"node_feature": feature, "fingerprint": facts, "rules": rules}, indent=2))
        return
    width = max(map(len, [*facts, "node feature"]))
    click.echo(f"{'node feature':{width}}  {'':11}  {feature}")
    for key in sorted(facts):
        click.echo(f"{key:{width}}  {rules[key]:11}  {_shown(facts[key])}")


def _compare(checkpoint: str, facts: Fingerprint, settings: Settings, as_json: bool) -> None:
    """Print every key that differs, and end with the status."""
    directory = _directory(checkpoint, settings)
    recorded = _recorded(directory)
    here = facts | engine.check_engine(recorded) | model.check_model(recorded, recorded.get("model.id"))
    rules = settings.fingerprint.rules
    differences = compare(recorded, here, rules)
    blocking = {difference.key for difference in differences}
    differing = [key for key in sorted({*recorded, *blocking}) if recorded.get(key) != here.get(key)]
    if as_json:
        found = {
            key: {
                "recorded": recorded.get(key),
                "here": here.get(key),
                "rule": rule_for(key, rules),
                "forbids": key in blocking,
            }
            for key in differing
        }
        click.echo(json.dumps({"checkpoint": str(directory), "fits": not blocking, "differences": found}, indent=2))
    else:
        for key in differing:
            mark = "forbids" if key in blocking else "allowed"
            was, now = (_shown(value.get(key, "none")) for value in (recorded, here))
            click.echo(f"{mark}  {key} ({rule_for(key, rules)}): {was!r} -> {now!r}")
        click.echo(
            f"{directory} would not be restored here: {explain(differences)}"
            if blocking
            else f"{directory} fits this node"
        )
    sys.exit(1 if blocking else 0)


def _shown(value: str) -> str:
    """A value as one line of a table; --json has all of it."""
    return one_line(value, _VALUE_LENGTH)


def _directory(checkpoint: str, settings: Settings) -> Path:
    """The directory of a checkpoint. Raises SlurmckptError."""
    if "/" in checkpoint:
        return Path(checkpoint)
    name, _, number = checkpoint.partition("#")
    job = JobNameType().convert(name, None, None)
    assert isinstance(job, JobName)
    found = find.stores_of(settings.store.path, job)
    if not found:
        raise find.unknown(settings.store.path, job)
    if len(found) > 1:
        tasks = ", ".join(sorted(read(store).array or str(store.job.job_id) for store in found))
        raise SlurmckptError(f"{checkpoint} is several jobs: name one of {tasks}")
    numbers = found[0].sequence_numbers()
    if not numbers or (number and (not number.isdecimal() or int(number) not in numbers)):
        known = f"; it has {', '.join(f'#{each}' for each in numbers)}" if numbers else ""
        raise SlurmckptError(f"job {name} has no checkpoint{f' #{number}' if numbers else ' now'}{known}")
    return found[0].checkpoint(int(number) if number else numbers[-1])


def _recorded(directory: Path) -> Fingerprint:
    """The fingerprint in a manifest, whose signature is not looked at: this is for reading, nothing is restored."""
    try:
        # Root may be asked to look into a user's store, where anything may lie under this name.
        return Manifest.from_json(read_small(directory, MANIFEST_NAME, MAX_MANIFEST_BYTES)).fingerprint
    except OSError as error:
        raise SlurmckptError(
            f"{directory} is no checkpoint that you may read: {MANIFEST_NAME}: {error.strerror}"
        ) from error
