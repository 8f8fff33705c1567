"""What the coordinator finds out about its node before it accepts work: tools, identity, fingerprint."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from slurmckpt.capture import criu
from slurmckpt.capture.inspect.used import UsedFile
from slurmckpt.config import Settings
from slurmckpt.coordinator.spec import JobSpec
from slurmckpt.errors import SlurmckptError
from slurmckpt.fingerprint import compare, engine, model
from slurmckpt.fingerprint.compare import Fingerprint
from slurmckpt.fingerprint.node import node_feature, node_fingerprint
from slurmckpt.fingerprint.procfiles import ProcessFile
from slurmckpt.store.signature import load_site_key

log = logging.getLogger(__name__)

_KDAT = Path("/run/criu.kdat")


@dataclass(frozen=True)
class Node:
    """A node that can capture and restore. feature: the node feature that stands for its fingerprint."""

    installation: criu.Installation
    key: bytes
    fingerprint: Fingerprint
    feature: str


async def examine(settings: Settings) -> Node:
    """Find CRIU, the site key and the fingerprint. Raises SlurmckptError: why this node cannot take checkpoints."""
    failure_log = settings.log.path.with_suffix(".criu.log")
    installation = await asyncio.to_thread(criu.find, settings.capture.criu, settings.capture.real_id, failure_log)
    for name in ("pod-init", "leader", "enter"):
        program = settings.paths.libexec / name
        if not os.access(program, os.X_OK):
            raise SlurmckptError(f"{program} is missing or cannot be executed")
    key = await asyncio.to_thread(load_site_key, settings.paths.site_key)
    if not _KDAT.exists():
        await criu.warm_up(installation)
    fingerprint = await asyncio.to_thread(node_fingerprint, settings, installation.version)
    return Node(installation, key, fingerprint, node_feature(fingerprint, settings.fingerprint.rules))


def job_fingerprint(
    node: Node, spec: JobSpec, used: Iterable[UsedFile], mounted: Mapping[Path, Path] | None = None
) -> Fingerprint:
    """The node's fingerprint, that of what the ranks have mapped, and that of their model.

    used: what they have mapped, or open for reading. mounted: what is mounted over other files in the pod: such a
    file's path to where it lies on every node. Reads files that the user chose: to be called with the user's
    file-system identity.
    """
    # What lies in the job's /dev/shm comes along with it, and is on no node before.
    files = [process_file(file) for file in used if not file.path.startswith("/dev/shm/")]
    mapped = engine.engine(files)
    for seen, real in (mounted or {}).items():
        if (content := mapped.pop(engine.build_id_key(seen), None)) is not None:
            mapped[engine.build_id_key(real)] = content
    return dict(node.fingerprint) | mapped | model.model(files, spec.options.model)


def process_file(file: UsedFile) -> ProcessFile:
    """As the fingerprint wants it: what it really is comes first, what lies under its name after that."""
    places = (*(Path(link) for link in file.links), Path(f"{file.root}{file.path}"))
    return ProcessFile(file.path, file.inode, file.executable, Path(file.root), places)


def differences(node: Node, settings: Settings, spec: JobSpec, recorded: Fingerprint) -> str:
    """What of a checkpoint's fingerprint does not fit this node and job, in one line; empty when all fits.

    Reads files that the user chose: to be called with the user's file-system identity.
    """
    here = dict(node.fingerprint) | engine.check_engine(recorded) | model.check_model(recorded, spec.options.model)
    blocking = compare.compare(recorded, here, settings.fingerprint.rules)
    return compare.explain(blocking) if blocking else ""
