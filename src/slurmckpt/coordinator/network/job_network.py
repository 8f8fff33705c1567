"""The network that the pods of a job share once one of them has come back into a network of its own.

Its steps know each other by the old node's name and addresses, as the script does that starts the next one with
MASTER_ADDR=$(hostname): they all have to mean the same place.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from slurmckpt.coordinator.pod import Pod


class JobNetwork:
    """It exists from begin() on until the last pod in it has ended, and may begin again then.

    hostname: what its pods see as the name of their host. has_script: whether the batch script is in it. at_end: called
    when the last pod in it has ended.
    """

    def __init__(self) -> None:
        self.hostname = ""
        self.has_script = False
        self._descriptor = -1
        self._pods = 0
        self.at_end: list[Callable[[], None]] = []

    @property
    def exists(self) -> bool:
        """Whether pods can join it."""
        return self._descriptor >= 0

    def begin(self, pod: Pod) -> None:
        """Let others join the network of this pod. Raises OSError."""
        self._descriptor = os.open(f"/proc/{pod.init_pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self.hostname = pod.hostname
        self.has_script = pod.step == "batch"
        self._pods += 1
        pod.at_end.append(self._leave)

    async def build(self, pod: Pod, shim_pid: int) -> None:
        """Build `pod` in it. Raises PodError."""
        pod.hostname = self.hostname
        # Counted before: the others may end meanwhile.
        self._pods += 1
        try:
            await pod.build(shim_pid, self._descriptor)
        except BaseException:
            self._leave()
            raise
        pod.at_end.append(self._leave)

    async def build_new(self, pod: Pod, shim_pid: int) -> None:
        """Build the pod of a step that starts afresh: beside its script, wherever that is. Raises PodError."""
        if self.has_script and self.exists:
            await self.build(pod, shim_pid)
        else:
            await pod.build(shim_pid, "keep")

    def _leave(self) -> None:
        self._pods -= 1
        if self._pods > 0:
            return
        os.close(self._descriptor)
        self._descriptor = -1
        self.has_script = False
        actions, self.at_end = self.at_end, []
        for action in actions:
            action()
