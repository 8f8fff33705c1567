"""The network of one restored pod, in the order in which it comes to be."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from slurmckpt.coordinator.network.addresses import foreign, only_local_resolvers
from slurmckpt.coordinator.network.job_network import JobNetwork
from slurmckpt.coordinator.network.namespace import Namespace, NetworkError, cut_off, isolate, steady
from slurmckpt.coordinator.network.resets import reset
from slurmckpt.coordinator.network.way_out import attach, find, gateways
from slurmckpt.coordinator.pod import Pod

log = logging.getLogger(__name__)


class PodNetwork:
    """notes: what is worth knowing of this restore, one sentence each, mostly none.

    Until open() nothing leaves a network of the pod's own. Where another pod of the job has one already, it joins that.
    """

    def __init__(
        self,
        enter: Path,
        pod: Pod,
        addresses: Sequence[str],
        node_addresses: Sequence[str],
        pasta: str,
        hostname: str,
        job: JobNetwork,
    ) -> None:
        """addresses: to which sockets are bound. node_addresses: by what else the ranks may know each other.

        hostname: the name that goes with them: what the ranks find out about their host must lead to themselves.
        """
        self.notes: list[str] = []
        self._enter = enter
        self._pod = pod
        self._addresses = list(dict.fromkeys([*addresses, *node_addresses]))
        self._pasta = pasta
        self._hostname = hostname
        self._job = job
        self._joins = self._opened = False
        self._must = bool(foreign(addresses))
        self._own = self._must or bool(foreign(node_addresses))
        self._namespace: Namespace | None = None
        self._why_closed = ""

    async def build(self, shim_pid: int) -> None:
        """Build the pod, in the node's network or in one of its own with these addresses. Raises SlurmckptError."""
        if self._own and self._job.exists:
            self._joins = True
            # It has the addresses of this pod, too: all pods come from one checkpoint, which knows them all.
            await self._job.build(self._pod, shim_pid)
            return
        if self._own:
            await self._prepare_way_out()
        # Without a way out only where the sockets leave no choice.
        self._own = self._must or self._namespace is not None
        self._pod.hostname = self._hostname if self._own else ""
        if not self._own:
            await self._pod.build(shim_pid, "keep")
        elif self._namespace is None:
            await self._pod.build(shim_pid, "new")
        else:
            await self._build_in(self._namespace, shim_pid)
        if self._own:
            await isolate(self._enter, self._pod.init_pid, self._addresses)

    async def reset(self, connections: Sequence[tuple[str, str]]) -> None:
        """Reset these connections, which led out of the pod. To be called while its sockets are silent."""
        try:
            count = await asyncio.to_thread(reset, self._pod.init_pid, connections)
            if count:
                log.info("step %s: %d connections to the outside are reset", self._pod.step, count)
        except OSError as error:
            # The program will find out by itself, by a timeout of its own.
            self._note(f"connections to the outside could not be reset: {error.strerror}")

    async def open(self) -> None:
        """Give a network of the pod's own its way out. May be called again. Raises NetworkError."""
        if not self._own or self._joins or self._opened:
            return
        self._opened = True
        self._job.begin(self._pod)
        await cut_off(self._enter, self._pod.init_pid, self._addresses)
        if self._namespace is not None:
            note = self._pod.settings.run / "pods" / f"{self._pod.step}.network.pid"
            try:
                way_out = await attach(self._pasta, self._namespace, self._pod.init_pid, note)
                self._job.at_end.append(way_out.end)
                await self._steady()
                if way_out.lacks:
                    self._note(way_out.lacks)
                if only_local_resolvers():
                    self._note("names may not be found in its network: this node's resolver listens on loopback only")
            except (NetworkError, OSError) as error:
                self._why_closed = str(error)
            self._namespace.close()
        if self._why_closed:
            self._note(f"restored without a way out of its network: {self._why_closed}")

    async def _steady(self) -> None:
        try:
            await steady(self._enter, self._pod.init_pid, gateways())
        except NetworkError as error:
            self._note(f"what it sends to other hosts may be slow: {error}")

    async def _prepare_way_out(self) -> None:
        if not self._pasta:
            return
        try:
            find(self._pasta)
            self._namespace = await Namespace.create(self._pod.uid, self._pod.gid)
            self._pod.at_end.append(self._namespace.close)
        except NetworkError as error:
            self._why_closed = str(error)

    async def _build_in(self, namespace: Namespace, shim_pid: int) -> None:
        try:
            descriptor = os.open(namespace.network, os.O_RDONLY | os.O_CLOEXEC)
            try:
                await self._pod.build(shim_pid, descriptor)
            finally:
                os.close(descriptor)
        except BaseException:
            namespace.close()
            raise

    def _note(self, text: str) -> None:
        log.warning("step %s: %s", self._pod.step, text)
        self.notes.append(text)
