"""What is checked before a step is restored."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurmckpt.capture import crossings
from slurmckpt.coordinator import restoring
from slurmckpt.coordinator.correspondence import inheritance, mismatch
from slurmckpt.coordinator.scriptfile import ScriptFile
from slurmckpt.coordinator.step import Step
from slurmckpt.errors import Refused
from slurmckpt.store.manifest import Connection, Manifest
from tests.unit.coordinator.parts import channels, image, no_descriptor_is_lost, saved_task, task


def step(ntasks: int = 1, digest: str = "d" * 64) -> Step:
    found = Step("0", ntasks, 1)
    found.argv_digest, found.command = digest, "./train.py --lr 0.1"
    return found


def test_the_same_step() -> None:
    assert mismatch(image(), step()) == ""


def test_another_number_of_tasks() -> None:
    assert mismatch(image(ntasks=4), step(ntasks=2)) == "step 0 had 4 tasks on its node and has 2 now"


def test_another_command() -> None:
    assert mismatch(image(), step(digest="e" * 64)) == ("step 0 is './train.py --lr 0.1' now, and was './train.py'")


@pytest.mark.parametrize(
    ("path", "digest", "same"), [("/a/script", "1", True), ("/b/script", "1", True), ("/a/script", "2", False)]
)
def test_another_script(path: str, digest: str, same: bool) -> None:
    """What it says counts, not where it lies."""
    now = step()
    now.script_file = ScriptFile(path, digest)
    reason = mismatch(replace(image(), script_path="/a/script", script_digest="1"), now)
    assert reason == ("" if same else "the batch script is not the one that ran at the checkpoint")


def test_an_image_in_which_the_path_of_the_script_cannot_be_changed(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"^the path of the batch script cannot be changed in the image: .*files\.img"):
        asyncio.run(restoring.move_script(tmp_path, "/a/script", "/b/script"))


def test_where_one_pod_needs_a_network_of_its_own_all_know_it() -> None:
    """A step was connected with the outside through its way out, and comes back to the node where the job began."""
    script = replace(image(step="batch"), node_addresses=["10.0.0.1"])
    connected = replace(image(), node_addresses=["10.0.0.1"])
    connected.addresses.append("169.254.77.1")
    manifest = cast(Manifest, SimpleNamespace(steps=[script, connected]))
    assert set(restoring.known_addresses(manifest)) == {"10.0.0.1", "169.254.77.1"}


def inherit(saved: dict[int, dict[str, str]], now: dict[int, list[int]]) -> dict[str, int]:
    """inheritance() for an image with these keys and tasks with these descriptors: key -> number it was given."""

    async def scene() -> dict[str, int]:
        tasks, numbers = [], {}
        for index, given in now.items():
            one, other = channels()
            other.close()
            descriptors = {number: os.open("/dev/null", os.O_RDWR) for number in given}
            numbers.update({descriptor: index * 100 + number for number, descriptor in descriptors.items()})
            tasks.append(task(one, descriptors, index, ntasks=10))
        try:
            wanted = image([saved_task(index, keys) for index, keys in saved.items()], ntasks=10)
            found = inheritance(wanted, {each.hello.task: each.descriptors for each in tasks})
        finally:
            for each in tasks:
                each.close()
        return {key: numbers[descriptor] for key, descriptor in found.items()}

    with no_descriptor_is_lost():
        return asyncio.run(scene())


def test_each_key_is_given_the_descriptor_in_its_place() -> None:
    assert inherit(
        {0: {"0": "file[1:5]", "1": "pipe:[8]", "2": "pipe:[9]"}, 1: {"1": "pipe:[8]", "2": "pipe:[11]"}},
        {0: [0, 1, 2, 7], 1: [0, 1, 2]},
    ) == {"file[1:5]": 0, "pipe:[8]": 1, "pipe:[9]": 2, "pipe:[11]": 102}


def test_sockets_are_not_given_again() -> None:
    assert inherit({0: {"0": "socket:[5]", "1": "pipe:[8]"}}, {0: [1]}) == {"pipe:[8]": 1}


def test_a_task_that_did_not_start() -> None:
    with pytest.raises(Refused, match=r"^task 1 of step 0 did not start$"):
        inherit({0: {}, 1: {}}, {0: []})


def test_a_task_that_is_not_in_the_image() -> None:
    with pytest.raises(Refused, match=r"^task 1 of step 0 had not started at the checkpoint$"):
        inherit({0: {}}, {0: [], 1: []})


def test_a_descriptor_that_is_missing_now() -> None:
    with pytest.raises(Refused, match=r"^task 0 of step 0 has no descriptor 5 now$"):
        inherit({0: {"5": "pipe:[8]"}}, {0: [0, 1, 2]})


class SilentSockets:
    """One pod whose sockets exist and may not send: what is done then, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, crossing: set[tuple[str, str]], stand: bool) -> None:
        self.done: list[object] = []
        self.work = cast(Any, object.__new__(restoring._Restore))
        self.work._image = image()
        self.work._image.outside.extend(
            [Connection("10.0.0.1:1", "10.0.0.1:2"), Connection("10.0.0.1:3", "10.0.0.9:4")]
        )
        self.work._images, self.work._pod = Path("/images"), None
        self.work._restorer = SimpleNamespace(files=None)
        self.work.network = self
        self.work._stand = restoring.Stand(self.wait, self.meet, lends=lambda: {102: [0, 1]}) if stand else None
        monkeypatch.setattr(crossings, "pairs", lambda images: dict.fromkeys(crossing, False))
        monkeypatch.setattr(restoring, "check_rights", self.check)

    def connect(self) -> list[object]:
        asyncio.run(self.work._connected({(1, 2)}))
        return self.done

    async def reset(self, pairs: object) -> None:
        self.done.append(("reset", pairs))

    async def open(self) -> None:
        self.done.append("open")

    async def check(self, pod: object, leader: int, given: object, files: object, only: object) -> None:
        self.done.append(("check", given, only))

    async def meet(self, pod: object) -> None:
        self.done.append("meet")

    async def wait(self, pod: object) -> None:
        raise AssertionError("too early")


def test_connections_to_other_pods_are_kept_and_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """What others get from a pod that is not complete yet is looked at before."""
    assert SilentSockets(monkeypatch, {("10.0.0.1:1", "10.0.0.1:2")}, stand=True).connect() == [
        ("reset", [("10.0.0.1:3", "10.0.0.9:4")]),
        ("check", {(1, 2)}, {102: [0, 1]}),
        "open",
        "meet",
    ]


def test_connections_to_outside_are_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [("10.0.0.1:1", "10.0.0.1:2"), ("10.0.0.1:3", "10.0.0.9:4")]
    assert SilentSockets(monkeypatch, set(), stand=True).connect() == [("reset", pairs)]


def test_a_pod_that_comes_back_alone_can_meet_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match=r"^it is connected with a step that does not come back together with it$"):
        SilentSockets(monkeypatch, {("10.0.0.1:1", "10.0.0.1:2")}, stand=False).connect()
