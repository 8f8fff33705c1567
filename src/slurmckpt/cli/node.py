"""`slurmckpt node`: what a node tells Slurm about itself."""

from __future__ import annotations

import asyncio
import os
import socket

import click

from slurmckpt import config
from slurmckpt.capture import criu
from slurmckpt.errors import SlurmError
from slurmckpt.fingerprint.node import node_feature, node_fingerprint
from slurmckpt.slurm import features
from slurmckpt.slurm.port import SlurmPort
from slurmckpt.slurm.select import select


@click.group()
def command() -> None:
    """Administer this node."""


@command.command()
@click.option("--dry-run", is_flag=True, help="Only print what would be changed.")
@click.option("--node", "name", metavar="NAME", help="The NodeName of this node, where its host name does not tell.")
def register(dry_run: bool, name: str | None) -> None:
    """Register the node feature of this node's fingerprint with slurmctld.

    Other features stay as they are; an outdated one of slurmckpt is dropped. Run it as root when slurmd has started,
    and again from time to time: slurmctld forgets node features when it restarts or is reconfigured.
    """
    click.echo(asyncio.run(_register(select(), name, dry_run)))


async def _register(port: SlurmPort, name: str | None, dry_run: bool) -> str:
    """Register this node; returns the line to print."""
    settings = config.load()
    version = criu.find(settings.capture.criu, settings.capture.real_id).version
    feature = node_feature(node_fingerprint(settings, version), settings.fingerprint.rules)
    name = name or os.environ.get("SLURMD_NODENAME") or await _own_name(port)
    if dry_run:
        plan = features.plan_registration(await port.node(name), feature)
    else:
        plan = await features.register(port, name, feature)
    if not plan.needed:
        return f"{name}: {feature} is registered"
    verb = "would register" if dry_run else "registered"
    dropped = f", {'without' if dry_run else 'dropped'} {', '.join(plan.dropped)}" if plan.dropped else ""
    return f"{name}: {verb} {feature}{dropped}; features now: {','.join(plan.available)}"


async def _own_name(port: SlurmPort) -> str:
    """The NodeName of the node with this host name."""
    host = socket.gethostname()
    short = host.partition(".")[0]
    found = [node.name for node in await port.nodes() if node.hostname in (host, short)]
    if short in found or host in found:
        return short if short in found else host
    if len(found) == 1:
        return found[0]
    many = f"{len(found)} nodes ({', '.join(found[:5])})" if found else "no node"
    raise SlurmError(f"Slurm has {many} with the host name {host}; give its NodeName with --node")
