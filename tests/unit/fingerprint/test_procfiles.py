"""Finding and opening the files of processes that may be hostile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurmckpt.fingerprint.procfiles import (
    on_fuse,
    open_regular,
    read_at,
)

MOUNTINFO = """\
1 0 254:0 / / rw - ext4 /dev/root rw
2 1 0:42 / /home/u/squash rw - fuse.squashfuse squash rw
3 1 0:43 / /home/u/with\\040space rw - fuse other rw
4 2 254:0 / /home/u/squash/real rw - ext4 /dev/root rw
short
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/mountinfo").write_text(MOUNTINFO)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "fuse"),
    [
        ("/usr/lib/libc.so.6", False),
        ("/home/u/squash", True),
        ("/home/u/squash/lib.so", True),
        ("/home/u/squashed/lib.so", False),
        ("/home/u/with space/x", True),
        ("/home/u/squash/real/lib.so", False),
    ],
)
def test_on_fuse(proc: Path, path: str, fuse: bool) -> None:
    assert on_fuse(path, proc / "7/mountinfo") is fuse


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    """A FIFO without a writer would block for ever, a directory or device is nothing to read."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    for place in (tmp_path / "fifo", tmp_path, Path("/dev/null"), tmp_path / "dangling", tmp_path / "missing"):
        with pytest.raises(OSError), open_regular([place]):
            pass


def test_the_first_place_that_works(tmp_path: Path) -> None:
    (tmp_path / "good").write_bytes(b"good")
    with open_regular([tmp_path / "missing", tmp_path, tmp_path / "good"]) as descriptor:
        assert read_at(descriptor, 100, 1) == b"ood"
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ZeroDivisionError), open_regular([tmp_path / "good"]):
        raise ZeroDivisionError
    with pytest.raises(FileNotFoundError), open_regular([tmp_path / "good"], inode=1):
        pass
    with pytest.raises(FileNotFoundError), open_regular([]):
        pass
    assert len(os.listdir("/proc/self/fd")) == before
