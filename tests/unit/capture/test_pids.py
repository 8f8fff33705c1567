"""The pids of an image, and where new ones go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmckpt.capture import pids
from slurmckpt.errors import Refused


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for name in ("core-31999.img", "core-4711.img", "core-040000.img", "core-x.img", "mm-50000.img", "core-60000.log"):
        (tmp_path / name).touch()
    return tmp_path


def test_the_note(images: Path) -> None:
    pids.save(35000, images)
    assert pids.last(images) == 35000
    with pytest.raises(FileExistsError):
        pids.save(35001, images)


def test_without_a_note_the_highest_counts(images: Path) -> None:
    assert pids.last(images) == pids.highest(images) == 31999


def test_no_images(tmp_path: Path) -> None:
    assert pids.highest(tmp_path) == 0


@pytest.mark.parametrize("text", [b"", b"0\n", b"-5\n", b"5 5\n", b"\xff", b"12345678901\n"])
def test_a_note_that_cannot_be_read(images: Path, text: bytes) -> None:
    (images / pids.FILE).write_bytes(text)
    with pytest.raises(Refused, match="the note of the last pid in the checkpoint cannot be read: "):
        pids.last(images)


def test_a_node_with_fewer_pids(images: Path) -> None:
    pids.check(images, 32000)
    with pytest.raises(Refused) as raised:
        pids.check(images, 31999)
    assert str(raised.value) == (
        "it has a process or thread 31999, and kernel.pid_max is 31999 on this node: set it to 4194304"
    )
