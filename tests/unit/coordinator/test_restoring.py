"""What is checked before a step is restored."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from slurmckpt.coordinator import restoring
from slurmckpt.coordinator.restoring import mismatch
from slurmckpt.coordinator.scriptfile import ScriptFile
from slurmckpt.coordinator.step import Step
from slurmckpt.errors import Refused
from slurmckpt.store.manifest import Manifest
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
            found = restoring.inheritance(wanted, {each.hello.task: each.descriptors for each in tasks})
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
