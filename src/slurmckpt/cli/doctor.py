"""`slurmckpt doctor`: what keeps this host from taking and restoring checkpoints."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from dataclasses import asdict

import click
from rich.markup import escape

from slurmckpt import __version__
from slurmckpt.cli.console import console
from slurmckpt.doctor import checks
from slurmckpt.doctor.finding import Finding, Verdict
from slurmckpt.doctor.host import Host, examine
from slurmckpt.errors import SlurmckptError
from slurmckpt.slurm.select import select

_STYLES: dict[Verdict, str] = {"ok": "green", "warning": "yellow", "problem": "bold red", "skipped": "dim"}
_WIDTH = max(map(len, checks.CHECKS))


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--node", "name", metavar="NAME", help="The NodeName of this node, where its host name does not tell.")
def command(as_json: bool, name: str | None) -> None:
    """Check this host: settings, key, CRIU, kernel, directories, plugin, hooks, and Slurm's configuration.

    Run it as root on a compute node, the controller and a login host; what does not apply to a host is skipped. Without
    root it says what it could not see. Changes nothing. Exit status 1 when there is a problem.
    """
    host = asyncio.run(examine(select(), name))
    if name is not None and host.cluster is not None and host.cluster.node is None:
        raise SlurmckptError(host.cluster.why_no_node)
    found = _print_json(host) if as_json else _print(host)
    if any(finding.verdict == "problem" for finding in found):
        sys.exit(1)


def _print(host: Host) -> list[Finding]:
    """Each finding on a line as it comes, with its remedy below; then how many there were."""
    terminal = console()
    who = "root" if host.root else "user"
    terminal.print(f"slurmckpt {__version__} on {escape(host.name)} ({', '.join(host.roles)}), as {who}")
    found = []
    for name, finding in checks.run(host):
        style = _STYLES[finding.verdict]
        terminal.print(f"[{style}]{finding.verdict:8}[/] {name:{_WIDTH}}  {escape(finding.text)}")
        if finding.remedy:
            terminal.print(f"{'':8} {'':{_WIDTH}}  -> {escape(finding.remedy)}")
        found.append(finding)
    counts = Counter(finding.verdict for finding in found)
    words = {"problem": counts["problem"], "warning": counts["warning"]}
    parts = [f"{count or 'no'} {word}{'' if count == 1 else 's'}" for word, count in words.items()]
    terminal.print(f"{', '.join(parts)}, {counts['skipped']} of {len(found)} checks skipped")
    return found


def _print_json(host: Host) -> list[Finding]:
    found = dict(checks.run(host))
    counts = Counter(finding.verdict for finding in found.values())
    document = {
        "version": __version__,
        "host": host.name,
        "roles": host.roles,
        "root": host.root,
        "problems": counts["problem"],
        "warnings": counts["warning"],
        "findings": [{"check": name} | asdict(finding) for name, finding in found.items()],
    }
    click.echo(json.dumps(document, indent=2))
    return list(found.values())
