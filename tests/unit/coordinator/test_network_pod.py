"""Which network and which host name a restored pod gets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from slurmckpt.coordinator.network import pod_network
from slurmckpt.coordinator.network.pod_network import PodNetwork

HERE, ELSEWHERE = "10.0.0.2", "10.0.0.1"


class FakePod:
    """Notes how it was built."""

    init_pid = 7
    step = "batch"

    def __init__(self) -> None:
        self.hostname = ""
        self.built: list[tuple[object, str]] = []

    async def build(self, shim_pid: int, network: object) -> None:
        self.built.append((network, self.hostname))


@pytest.fixture(autouse=True)
def node(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """This node has one address; what becomes the pod's own is noted."""
    isolated: list[list[str]] = []

    async def isolate(enter: Path, init_pid: int, addresses: list[str]) -> None:
        isolated.append(addresses)

    monkeypatch.setattr(pod_network, "foreign", lambda addresses: [one for one in addresses if one != HERE])
    monkeypatch.setattr(pod_network, "isolate", isolate)
    return isolated


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
    network = PodNetwork(Path("/enter"), cast(Any, pod), addresses, others, pasta="", hostname="n1")
    asyncio.run(network.build(99))
    assert pod.built == [built]
    assert node == ([[ELSEWHERE]] if built[0] == "new" else [])
