"""The pipes by which the tasks of a pod print, as long as some process of the pod can still write to them."""

from __future__ import annotations

from slurmckpt.capture import procfs
from slurmckpt.capture.processes import pod_processes
from slurmckpt.coordinator.pod import Pod


def pipes_in_use(pod: Pod) -> set[int]:
    """The inodes of all pipes that processes of the pod hold. Raises SlurmckptError when the pod is gone."""
    inodes = set()
    for process in pod_processes(pod.init_pid):
        directory = f"{procfs.PROC}/{process.pid}/fd"
        for name in procfs.names(directory):
            target = procfs.link(f"{directory}/{name}") or ""
            if target.startswith("pipe:["):
                inodes.add(int(target[len("pipe:[") : -1]))
    return inodes
