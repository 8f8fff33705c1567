"""The names of CRIU's in /dev/shm: stale ones go, those of two dumps do not get in each other's way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurmckpt.capture import linkremaps
from slurmckpt.capture.fileimages import ImageError, paths, rename_all
from tests.unit.capture.test_fileimages import PIPE, regular, write


@pytest.fixture
def shm(tmp_path: Path) -> Path:
    path = tmp_path / "shm"
    path.mkdir()
    return path


@pytest.fixture
def images(tmp_path: Path) -> Path:
    path = tmp_path / "images"
    path.mkdir()
    return path


def test_stale_names_go_and_no_others(shm: Path) -> None:
    for name in ("link_remap.1", "link_remap.22", "link_remap.3.batch", "link_remap.", "link_remap.x", "sem.1"):
        (shm / name).touch()
    linkremaps.clean(shm)
    assert sorted(os.listdir(shm)) == ["link_remap.", "link_remap.3.batch", "link_remap.x", "sem.1"]


def test_names_of_an_image_are_set_aside(shm: Path, images: Path) -> None:
    """Only those that this image has: others may be of a dump that is under way."""
    for number in (7, 8, 9):
        (shm / f"link_remap.{number}").write_text(str(number))
    write(
        images,
        regular(1, b"/dev/shm/link_remap.7"),
        PIPE,
        regular(2, b"/dev/shm/link_remap.9"),
        regular(3, b"/tmp/link_remap.8"),
        regular(4, b"/dev/shm/sem.x"),
    )
    renamed = linkremaps.set_aside(shm, images, "0")
    assert renamed == {
        "/dev/shm/link_remap.7": "/dev/shm/link_remap.7.0",
        "/dev/shm/link_remap.9": "/dev/shm/link_remap.9.0",
    }
    assert {name: (shm / name).read_text() for name in os.listdir(shm)} == {
        "link_remap.7.0": "7",
        "link_remap.8": "8",
        "link_remap.9.0": "9",
    }
    assert rename_all(images, renamed) == 2
    assert paths(images) == [
        "/dev/shm/link_remap.7.0",
        "/dev/shm/link_remap.9.0",
        "/tmp/link_remap.8",
        "/dev/shm/sem.x",
    ]
    linkremaps.remove(shm, renamed)
    assert os.listdir(shm) == ["link_remap.8"]


def test_an_image_is_not_read_where_there_are_no_names(shm: Path, images: Path) -> None:
    (shm / "sem.x").touch()
    assert linkremaps.set_aside(shm, images, "0") == {}


def test_a_broken_image(shm: Path, images: Path) -> None:
    (shm / "link_remap.7").touch()
    (images / "files.img").write_bytes(b"x" * 100)
    with pytest.raises(ImageError):
        linkremaps.set_aside(shm, images, "0")
