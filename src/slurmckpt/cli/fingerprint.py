"""`slurmckpt fingerprint`: what a restore would compare on this node."""

from __future__ import annotations

import json

import click

from slurmckpt import config
from slurmckpt.capture import criu
from slurmckpt.errors import SlurmckptError
from slurmckpt.fingerprint.compare import rule_for
from slurmckpt.fingerprint.node import node_feature, node_fingerprint


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(as_json: bool) -> None:
    """Show this node's fingerprint, the rule for each key, and the node feature that stands for it."""
    settings = config.load()
    try:
        version = criu.find(settings.capture.criu, settings.capture.real_id).version
    except SlurmckptError as error:
        click.echo(f"slurmckpt: {error}: the node feature is not the one that this node would have with it", err=True)
        version = ""
    facts = node_fingerprint(settings, version)
    rules = {key: rule_for(key, settings.fingerprint.rules) for key in facts}
    feature = node_feature(facts, settings.fingerprint.rules)
    if as_json:
        click.echo(json.dumps({"node_feature": feature, "fingerprint": facts, "rules": rules}, indent=2))
        return
    width = max(map(len, [*facts, "node feature"]))
    click.echo(f"{'node feature':{width}}  {'':11}  {feature}")
    for key in sorted(facts):
        click.echo(f"{key:{width}}  {rules[key]:11}  {facts[key]}")
