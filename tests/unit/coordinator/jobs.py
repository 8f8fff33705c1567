"""A job on one node, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from slurmckpt.config import Paths, Settings
from slurmckpt.coordinator.job import Job
from slurmckpt.coordinator.spec import JobSpec, Options
from slurmckpt.identity import JobIdentity
from slurmckpt.slurm.port import SlurmPort
from tests.unit.coordinator.parts import GID, UID


def new_job(top: Path, slurm: object = None, declined: str = "") -> Job:
    spec = JobSpec(JobIdentity("c", "jane", UID, GID, 7), "n1", 1, 0, Options(keep=3))
    return Job(spec, Settings(paths=Paths(run=top)), cast(SlurmPort | None, slurm), declined)
