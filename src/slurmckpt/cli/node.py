"""`slurmckpt node`: what a node tells Slurm about itself."""

from __future__ import annotations

import asyncio
import os

import click

from slurmckpt import config
from slurmckpt.capture import criu
from slurmckpt.fingerprint.node import node_feature, node_fingerprint
from slurmckpt.slurm import features
from slurmckpt.slurm.ownnode import own_name
from slurmckpt.slurm.port import SlurmPort
from slurmckpt.slurm.select import select


@click.group()
def command() -> None:
    """Administer this node."""


@command.command(short_help="Tell Slurm the node feature of this node.")
@click.option("--dry-run", is_flag=True, help="Only print what would be changed.")
@click.option("--node", "name", metavar="NAME", help="The NodeName of this node, where its host name does not tell.")
@click.option("--quiet", is_flag=True, help="Say nothing when the node is registered already.")
def register(dry_run: bool, name: str | None, quiet: bool) -> None:
    """Register the node feature of this node's fingerprint with slurmctld.

    Other features stay as they are; an outdated one of slurmckpt is dropped. Run it as root when slurmd has started,
    and again from time to time: slurmctld forgets node features when it restarts or is reconfigured.
    """
    line, changed = asyncio.run(_register(select(), name, dry_run))
    if changed or not quiet:
        click.echo(line)


async def _register(port: SlurmPort, name: str | None, dry_run: bool) -> tuple[str, bool]:
    """Register this node; returns the line to print, and whether anything had to be changed."""
    settings = config.load()
    version = criu.find(settings.capture.criu, settings.capture.real_id).version
    feature = node_feature(node_fingerprint(settings, version), settings.fingerprint.rules)
    name = name or os.environ.get("SLURMD_NODENAME") or await own_name(port)
    if dry_run:
        plan = features.plan_registration(await port.node(name), feature)
    else:
        plan = await features.register(port, name, feature)
    if not plan.needed:
        return f"{name}: {feature} is registered", False
    verb = "would register" if dry_run else "registered"
    dropped = f", {'without' if dry_run else 'dropped'} {', '.join(plan.dropped)}" if plan.dropped else ""
    features_are = "features would be" if dry_run else "features now"
    return f"{name}: {verb} {feature}{dropped}; {features_are}: {','.join(plan.available)}", True
