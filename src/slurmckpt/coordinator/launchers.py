"""The srun processes of a batch script: they carry a step's output, and their sockets lead to Slurm's daemons."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from slurmckpt.capture.processes import pod_processes
from slurmckpt.coordinator.pod import Pod
from slurmckpt.coordinator.streams import OutputHolder, files_written_by


@dataclass(frozen=True)
class Launcher:
    """One srun in the batch pod. pid: on this node.

    digest: of its command line, so that the next incarnation's srun is recognised.
    """

    pid: int
    digest: str

    def outputs(self) -> list[OutputHolder]:
        """The regular files it writes to. The caller closes them."""
        return files_written_by(self.pid, f"srun/{self.digest}")

    def is_connected(self) -> bool:
        """Whether another process of the script reads what it prints, or the script feeds its standard input.

        Such a step is bound to the script's own progress: it cannot go on while the script runs again from its top.
        """
        try:
            output, source = (os.stat(f"/proc/{self.pid}/fd/{number}").st_mode for number in (1, 0))
        except OSError:
            return True
        return not (stat.S_ISREG(output) or stat.S_ISCHR(output)) or not stat.S_ISCHR(source)


def find(batch: Pod) -> list[Launcher]:
    """Every srun that runs in the batch pod now. Raises SlurmckptError when the pod is gone.

    Any program can have this name. What one holds is written and cut at a restore, so a program whose descriptors its
    user could not get at (set-user-id: its /proc/PID/fd is then root's, proc_pid(5)) is none.
    """
    found = []
    for process in pod_processes(batch.init_pid):
        if process.comm != "srun":
            continue
        try:
            if os.stat(f"/proc/{process.pid}/fd").st_uid != batch.uid:
                continue
            command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        except OSError:
            continue
        found.append(Launcher(process.pid, hashlib.sha256(command).hexdigest()[:16]))
    return found
