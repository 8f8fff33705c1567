"""The files of living processes, as the coordinator gives them to the fingerprint."""

from __future__ import annotations

from slurmckpt.capture.inspect.descriptors import read_descriptors
from slurmckpt.capture.inspect.mappings import read_mappings
from slurmckpt.capture.inspect.mounts import mounts_of
from slurmckpt.capture.inspect.used import used_files
from slurmckpt.capture.processes import read_process
from slurmckpt.coordinator.node import process_file
from slurmckpt.fingerprint.procfiles import ProcessFile


def used(*pids: int) -> list[ProcessFile]:
    """What these processes have mapped, or open for reading; nothing of those that are gone."""
    processes = [process for pid in pids if (process := read_process(pid)) is not None]
    mounts = mounts_of(processes[0].pid) if processes else {}
    found = used_files(read_descriptors(processes, 1000), read_mappings(processes), mounts)
    return [process_file(file) for file in found]
