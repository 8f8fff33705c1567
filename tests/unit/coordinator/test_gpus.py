"""GPU state around a cut, over a driver that only counts."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurmckpt.capture.cuda import find, memory
from slurmckpt.capture.cuda.errors import Busy, Unavailable, busy
from slurmckpt.capture.cuda.group import Stuck
from slurmckpt.capture.processes import Process
from slurmckpt.config import Gpu
from slurmckpt.coordinator import gpus as module
from slurmckpt.coordinator.choice import Skipped
from slurmckpt.coordinator.gpu_profile import Profile
from slurmckpt.coordinator.gpus import Gpus, Users
from slurmckpt.coordinator.participant import Participant
from slurmckpt.coordinator.step import Step
from slurmckpt.errors import Refused, SlurmckptError
from slurmckpt.store.manifest import GpuImage
from tests.unit.coordinator.parts import hello

OLD, NEW = "0" * 31 + "1", "0" * 31 + "2"


def process(pid: int, ns_pid: int) -> Process:
    return Process(pid, ns_pid, 1, 1000, "train", "/bin/train", "S", 0)


class Client:
    """A CudaClient that does what it is told. trouble: by verb, errors to raise, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.trouble: dict[str, list[SlurmckptError]] = {}
        self.cuda = [1001, 1002]

    async def _do(self, verb: str) -> None:
        self.calls.append(verb)
        waiting = self.trouble.get(verb)
        if waiting:
            raise waiting.pop(0)

    async def find(self, pids: list[int]) -> list[int]:
        await self._do("find")
        return [pid for pid in pids if pid in self.cuda]

    async def devices(self) -> list[str]:
        await self._do("devices")
        return [NEW]

    async def used(self, pids: list[int]) -> int:
        return 4096

    async def lock(self, pids: list[int], seconds: float) -> None:
        await self._do("lock")

    async def checkpoint(self, pids: list[int], seconds: float, one_by_one: bool) -> None:
        await self._do("checkpoint")

    async def restore(self, pids: list[int], seconds: float, pairs: Any, one_by_one: bool) -> None:
        await self._do("restore")

    async def state(self, pid: int, seconds: float) -> str:
        await self._do("state")
        return "RUNNING"

    async def resume(self, pids: list[int], seconds: float, one_by_one: bool = False) -> None:
        await self._do("resume")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setattr(find, "candidates", list)
    monkeypatch.setattr(find, "holds_device", lambda pid: False)
    monkeypatch.setattr(memory, "available", lambda: 1 << 40)
    monkeypatch.setattr(module, "procs_files", lambda pid: [])
    yield Client()


def gpus(client: Client, **settings: Any) -> Gpus:
    return Gpus(Gpu(**{"lock_timeout": 0.01, **settings}), 60.0, cast(Any, client))


def participant(with_device: bool = True) -> Participant:
    pod = cast(Any, SimpleNamespace())
    step = Step.of(hello(), "0")
    step.gpu_indices = (0,)
    step.profile = Profile("sockets", "why")
    processes = [process(1001, 100), process(1002, 101), process(1003, 102)]
    return Participant(step, pod, Path("/images"), processes=processes, gpu_users=processes[:2] if with_device else [])


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


async def cycle(one: Gpus, users: Users, inside: list[str]) -> None:
    async with one.at_rest(users):
        inside.append("at rest")


def test_what_is_recorded_of_ranks_with_gpu_state(client: Client) -> None:
    one = participant()
    users = run(gpus(client).look([one]))
    assert users.pids == [1001, 1002] and users.bytes == 4096
    assert one.gpu == GpuImage([100, 101], [NEW], [0], "sockets", "why")


def test_the_order(client: Client) -> None:
    inside: list[str] = []
    run(cycle(gpus(client), Users({1001: process(1001, 100)}), inside))
    assert client.calls == ["lock", "checkpoint", "resume"] and inside == ["at rest"]


def test_without_gpu_ranks_the_driver_is_not_asked(client: Client) -> None:
    client.cuda = []
    inside: list[str] = []
    users = run(gpus(client).look([participant(with_device=False)]))
    run(cycle(gpus(client), users, inside))
    assert client.calls == ["find"] and inside == ["at rest"]


def test_a_node_without_gpus_is_not_searched(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "candidates", lambda pids: pytest.fail("it was"))
    assert run(Gpus(Gpu(), 60.0, cast(Any, client), present=False).look([participant(with_device=False)])).pids == []
    assert client.calls == []


def test_the_library_alone_on_a_node_without_a_driver_is_no_reason(client: Client) -> None:
    client.trouble = {"find": [Unavailable("no driver")]}
    assert run(gpus(client).look([participant(with_device=False)])).pids == []


@pytest.mark.parametrize(
    ("settings", "trouble", "reason"),
    [
        (
            {},
            [Unavailable("the driver is too old")],
            r"process 100 \(train\) uses a GPU, and .* too old",
        ),
        ({"capture": "off"}, [], r"switched off on this node \(gpu.capture\)"),
    ],
)
def test_gpu_ranks_that_cannot_be_captured(
    client: Client, settings: dict[str, Any], trouble: list[SlurmckptError], reason: str
) -> None:
    client.trouble = {"find": trouble}
    with pytest.raises(Skipped, match=reason):
        run(gpus(client, **settings).look([participant()]))


def test_a_device_without_cuda_state_is_named(client: Client) -> None:
    client.cuda = [1001]
    with pytest.raises(Skipped, match=r"process 101 \(train\) has a GPU device open and no CUDA state of its own"):
        run(gpus(client).look([participant()]))


def test_a_conflict_refuses_several_ranks_but_not_one(client: Client) -> None:
    one = participant()
    one.step.profile = Profile("sockets", "why", "NCCL_P2P_DISABLE=0 contradicts")
    with pytest.raises(Skipped, match="NCCL_P2P_DISABLE=0 contradicts"):
        run(gpus(client).look([one]))
    client.cuda, one.gpu_users = [1001], one.processes[:1]
    assert run(gpus(client).look([one])).pids == [1001]


def test_memory_that_does_not_suffice(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda: 1000)
    with pytest.raises(Skipped, match=r"copies into host memory, and the node has"):
        run(gpus(client).look([participant()]))


def _busy() -> Busy:
    return busy([1002], 1.0)


def test_a_lock_is_tried_several_times(client: Client) -> None:
    client.trouble = {"lock": [_busy(), _busy()]}
    run(cycle(gpus(client, lock_tries=3), Users({1002: process(1002, 101)}), []))
    assert client.calls == ["lock", "lock", "lock", "checkpoint", "resume"]


def test_no_boundary_is_told_with_the_process_as_its_user_knows_it(client: Client) -> None:
    client.trouble = {"lock": [_busy(), _busy()]}
    inside: list[str] = []
    with pytest.raises(Skipped, match=r"NO_BOUNDARY: the GPU work of process 101 \(train\) did not end .* \(2 tries\)"):
        run(cycle(gpus(client, lock_tries=2), Users({1002: process(1002, 101)}), inside))
    assert client.calls == ["lock", "lock", "resume"] and not inside


def test_a_failure_in_between_resumes(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.trouble = {"checkpoint": [SlurmckptError("process 1002: 801")]}
    with pytest.raises(Skipped, match=r"process 101 \(train\): 801"):
        run(cycle(gpus(client), Users({1002: process(1002, 101)}), []))
    assert client.calls == ["lock", "checkpoint", "resume"]
    monkeypatch.setattr(find, "holds_device", lambda pid: True)
    with pytest.raises(Skipped, match="has a GPU device open although"):
        run(cycle(gpus(client), Users({1002: process(1002, 101)}), []))
    assert client.calls[-1] == "resume"


def test_who_is_cancelled_while_a_lock_is_under_way_leaves_nothing_locked(client: Client) -> None:
    async def work() -> None:
        reached = asyncio.Event()

        async def lock(pids: list[int], seconds: float) -> None:
            client.calls.append("lock")
            reached.set()
            await asyncio.sleep(600)

        client.lock = lock  # type: ignore[method-assign]
        task = asyncio.create_task(cycle(gpus(client), Users({1002: process(1002, 101)}), []))
        await reached.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    run(work())
    assert client.calls == ["lock", "resume"]


def test_who_is_cancelled_while_ranks_get_their_gpus_back_leaves_none_without(client: Client) -> None:
    victim = subprocess.Popen(["sleep", "600"])

    async def work() -> None:
        reached, goes = asyncio.Event(), asyncio.Event()

        async def resume(pids: list[int], seconds: float, one_by_one: bool = False) -> None:
            reached.set()
            await goes.wait()
            raise Stuck("no memory", pids)

        client.resume = resume  # type: ignore[method-assign]
        task = asyncio.create_task(cycle(gpus(client), Users({victim.pid: process(victim.pid, 101)}), []))
        await reached.wait()
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        goes.set()
        await asyncio.wait([task])
        assert task.cancelled()

    run(work())
    assert victim.wait(60) == -9


def test_when_nobody_knows_whether_they_run_they_are_killed(client: Client) -> None:
    victim = subprocess.Popen(["sleep", "600"])
    client.trouble = {"resume": [SlurmckptError("the driver did not answer")], "state": [SlurmckptError("no answer")]}
    with pytest.raises(Skipped, match=r"ranks were killed, .*: the driver did not answer"):
        run(cycle(gpus(client), Users({victim.pid: process(victim.pid, 101)}), []))
    assert victim.wait(60) == -9
    client.trouble = {"resume": [SlurmckptError("another agent released them")]}
    with pytest.raises(Skipped, match=r"^another agent released them"):
        run(cycle(gpus(client), Users({1002: process(1002, 101)}), []))


def test_what_is_stuck_is_killed(client: Client) -> None:
    victim = subprocess.Popen(["sleep", "600"])
    client.trouble = {"resume": [Stuck(f"process {victim.pid}: no memory", [victim.pid])]}
    with pytest.raises(Skipped, match=r"ranks were killed, .*: process 101 \(train\): no memory"):
        run(cycle(gpus(client), Users({victim.pid: process(victim.pid, 101)}), []))
    assert victim.wait(60) == -9


def test_a_restore_maps_gpus_and_finds_processes(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Step.of(hello(), "0")
    step.gpu_indices = (0,)
    image = GpuImage([100, 101], [OLD], [0], "sockets", "")
    assert run(gpus(client).pairs(image, step)) == [(OLD, NEW)]
    monkeypatch.setattr(module, "pod_processes", lambda init: [process(7, 100), process(8, 101), process(9, 102)])
    assert run(gpus(client).put_back(image, cast(Any, SimpleNamespace(init_pid=os.getpid())), [])) == [7, 8]
    monkeypatch.setattr(module, "pod_processes", lambda init: [process(7, 100)])
    with pytest.raises(Refused, match="process 101, which had GPU state, did not come back"):
        run(gpus(client).put_back(image, cast(Any, SimpleNamespace(init_pid=os.getpid())), []))


def test_a_node_that_cannot_take_the_state_refuses_before_anything_is_changed(client: Client) -> None:
    client.trouble = {"devices": [Unavailable("no driver")]}
    with pytest.raises(Refused, match="has GPU state, and this node cannot take it: no driver"):
        run(gpus(client).pairs(GpuImage([100], [OLD]), Step.of(hello(), "0")))
