"""Which network and which host name a restored pod gets."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from slurmckpt.coordinator.network import pod_network
from slurmckpt.coordinator.network.job_network import JobNetwork
from slurmckpt.coordinator.network.pod_network import PodNetwork

HERE, ELSEWHERE = "10.0.0.2", "10.0.0.1"


class FakePod:
    """Notes how it was built."""

    init_pid = os.getpid()

    def __init__(self, step: str = "batch") -> None:
        self.step = step
        self.hostname = ""
        self.built: list[tuple[object, str]] = []
        self.at_end: list[Callable[[], None]] = []

    async def build(self, shim_pid: int, network: object) -> None:
        if isinstance(network, int):
            network = os.readlink(f"/proc/self/fd/{network}")
        self.built.append((network, self.hostname))

    def end(self) -> None:
        for action in self.at_end:
            action()


@pytest.fixture(autouse=True)
def node(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """This node has one address; what becomes the pod's own is noted."""
    isolated: list[list[str]] = []

    async def isolate(enter: Path, init_pid: int, addresses: list[str]) -> None:
        isolated.append(addresses)

    monkeypatch.setattr(pod_network, "foreign", lambda addresses: [one for one in addresses if one != HERE])

    async def cut_off(enter: Path, init_pid: int, addresses: list[str]) -> None:
        pass

    monkeypatch.setattr(pod_network, "isolate", isolate)
    monkeypatch.setattr(pod_network, "cut_off", cut_off)
    return isolated


def network_of(pod: FakePod, addresses: list[str], others: list[str], job: JobNetwork) -> PodNetwork:
    return PodNetwork(Path("/enter"), cast(Any, pod), addresses, others, pasta="", hostname="n1", job=job)


@pytest.mark.parametrize(
    ("addresses", "others", "built"),
    [
        ([HERE], [HERE], ("keep", "")),
        ([], [HERE], ("keep", "")),
        # Sockets are bound there: there is no choice.
        ([ELSEWHERE], [ELSEWHERE], ("new", "n1")),
        # Only known by it: not without a way out, and then the new node's name is right.
        ([], [ELSEWHERE], ("keep", "")),
    ],
)
def test_the_old_name_goes_with_the_old_addresses(
    addresses: list[str], others: list[str], built: tuple[str, str], node: list[list[str]]
) -> None:
    pod = FakePod()
    asyncio.run(network_of(pod, addresses, others, JobNetwork()).build(99))
    assert pod.built == [built]
    assert node == ([[ELSEWHERE]] if built[0] == "new" else [])


def test_all_pods_of_a_job_share_the_network_of_their_script(node: list[list[str]]) -> None:
    """Also those that start afresh; and when the last of them has ended, there is none, and its way out has ended."""
    job, script, restored, fresh = JobNetwork(), FakePod(), FakePod("0"), FakePod("1")
    ended: list[str] = []

    async def play() -> None:
        network = network_of(script, [ELSEWHERE], [ELSEWHERE], job)
        await network.build(99)
        assert not job.exists
        await network.open()
        job.at_end.append(lambda: ended.append("way out"))
        joining = network_of(restored, [], [ELSEWHERE], job)
        await joining.build(99)
        await joining.open()
        await job.build_new(cast(Any, fresh), 99)

    asyncio.run(play())
    place = os.readlink("/proc/self/ns/net")
    assert (script.built, restored.built, fresh.built) == ([("new", "n1")], [(place, "n1")], [(place, "n1")])
    assert node == [[ELSEWHERE]]
    for pod in (restored, script):
        pod.end()
        assert job.exists and not ended
    fresh.end()
    assert not job.exists and ended == ["way out"]
    late = FakePod("2")
    asyncio.run(job.build_new(cast(Any, late), 99))
    assert late.built == [("keep", "")]


def test_a_step_that_starts_afresh_is_where_its_script_is(node: list[list[str]]) -> None:
    """The script that began anew on this node is in the node's network, whatever a restored step of it is in."""
    job, restored, fresh = JobNetwork(), FakePod("0"), FakePod("1")

    async def play() -> None:
        network = network_of(restored, [ELSEWHERE], [], job)
        await network.build(99)
        await network.open()
        await job.build_new(cast(Any, fresh), 99)

    asyncio.run(play())
    assert fresh.built == [("keep", "")]
    restored.end()


def test_a_pod_that_cannot_be_built_is_not_counted() -> None:
    class Broken(FakePod):
        async def build(self, shim_pid: int, network: object) -> None:
            raise OSError("no")

    job, script = JobNetwork(), FakePod()
    job.begin(cast(Any, script))
    with pytest.raises(OSError, match="no"):
        asyncio.run(job.build(cast(Any, Broken("0")), 99))
    assert job.exists
    script.end()
    assert not job.exists
