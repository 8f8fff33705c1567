"""Pods that need names in /dev/shm are dumped one after another; others need not wait."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from slurmckpt.capture.fileimages import paths
from slurmckpt.coordinator.linking import LinkError, Linking
from slurmckpt.coordinator.participant import Participant
from tests.unit.capture.test_fileimages import regular, write
from tests.unit.coordinator.test_group import StillPod, running


class Scene:
    """Pods that are dumped as CRIU does it: each takes the name link_remap.1, which must not be there."""

    def __init__(self, top: Path, *links: bool) -> None:
        self.shm = top / "shm"
        self.shm.mkdir()
        self.pods = [self._participant(top, str(number), one) for number, one in enumerate(links)]
        self.linking = Linking(self.pods, self.shm)
        self.events: list[str] = []

    @staticmethod
    def _participant(top: Path, name: str, links: bool) -> Participant:
        images = top / name / "images"
        images.mkdir(parents=True)
        return Participant(running(name), StillPod(name), images, links=links)

    async def dump(self, one: Participant) -> None:
        name = one.step.name
        try:
            await self.linking.begin(one)
            self.events.append(f"{name} begins")
            await asyncio.sleep(0.01)
            if one.links:
                with (self.shm / "link_remap.1").open("x") as link:
                    link.write(name)
            write(one.images, *([regular(1, b"/dev/shm/link_remap.1")] if one.links else []))
            await self.linking.written(one)
            self.events.append(f"{name} written")
        finally:
            self.linking.end(one)

    async def all(self) -> None:
        await asyncio.gather(*(self.dump(one) for one in self.pods))


def test_they_take_turns(tmp_path: Path) -> None:
    scene = Scene(tmp_path, True, True, False)

    async def run() -> None:
        await scene.all()
        assert {name: (scene.shm / name).read_text() for name in os.listdir(scene.shm)} == {
            "link_remap.1.0": "0",
            "link_remap.1.1": "1",
        }
        await scene.linking.finish()

    asyncio.run(run())
    assert scene.events[:2] == ["0 begins", "2 begins"]
    in_turn = [one for one in scene.events if not one.startswith("2")]
    assert in_turn == ["0 begins", "0 written", "1 begins", "1 written"]
    assert [paths(one.images) for one in scene.pods] == [
        ["/dev/shm/link_remap.1.0"],
        ["/dev/shm/link_remap.1.1"],
        [],
    ]
    scene.linking.remove()
    assert os.listdir(scene.shm) == []


def test_one_alone_keeps_crius_names(tmp_path: Path) -> None:
    scene = Scene(tmp_path, True)
    asyncio.run(scene.all())
    assert os.listdir(scene.shm) == ["link_remap.1"]
    assert scene.pods[0].renamed == {}


def test_one_that_fails_gives_its_turn_away(tmp_path: Path) -> None:
    scene = Scene(tmp_path, True, True)
    (scene.shm / "link_remap.1").touch()

    async def run() -> None:
        results = await asyncio.gather(*(scene.dump(one) for one in scene.pods), return_exceptions=True)
        assert [type(each) for each in results] == [FileExistsError, FileExistsError]

    asyncio.run(run())
    assert scene.events == ["0 begins", "1 begins"]


def test_names_that_cannot_be_kept_apart(tmp_path: Path) -> None:
    scene = Scene(tmp_path, True, True)
    (scene.shm / "link_remap.1").touch()
    (scene.pods[0].images / "files.img").write_text("x")
    with pytest.raises(LinkError, match=r"the names of shared memory cannot be kept apart: files\.img is no image"):
        asyncio.run(scene.linking.written(scene.pods[0]))
