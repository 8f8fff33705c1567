"""Finding and opening the files of processes that may be hostile."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from slurmckpt.fingerprint.procfiles import (
    files_open_for_reading,
    mapped_files,
    on_fuse,
    open_regular,
    read_at,
    unique,
)

MAPS = """\
55d0c0000000-55d0c0001000 r--p 00000000 fe:00 11 /usr/bin/python3.11
55d0c0001000-55d0c0002000 r-xp 00001000 fe:00 11 /usr/bin/python3.11
7f0000000000-7f0000001000 r--p 00000000 00:2a 12 /home/u/squash/lib.so
7f0000001000-7f0000002000 rw-s 00000000 00:05 13 /dev/zero (deleted)
7f0000002000-7f0000003000 r-xp 00000000 fe:00 14 /tmp/a\\012b (deleted)
7f0000003000-7f0000004000 rw-p 00000000 00:00 0 [heap]
7f0000004000-7f0000005000 rw-p 00000000 00:00 0
7f0000005000-7f0000006000 r-xp 00000000 00:00 0 [vdso]
nonsense
"""
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
    (tmp_path / "7/maps").write_text(MAPS)
    (tmp_path / "7/mountinfo").write_text(MOUNTINFO)
    return tmp_path


def test_mapped_files(proc: Path) -> None:
    found = list(mapped_files(7, proc))
    assert [(file.path, file.device, file.inode, file.executable) for file in found] == [
        ("/usr/bin/python3.11", "254:0", 11, False),
        ("/usr/bin/python3.11", "254:0", 11, True),
        # 00:2a of maps is 0:42 of mountinfo, a FUSE file system: left out
        ("/dev/zero", "0:5", 13, False),
        ("/tmp/a\nb", "254:0", 14, True),
    ]
    assert found[0].places == (
        proc / "7/map_files/55d0c0000000-55d0c0001000",
        Path(f"{proc}/7/root/usr/bin/python3.11"),
    )


def test_unique_keeps_one_of_each(proc: Path) -> None:
    assert [file.inode for file in unique(mapped_files(7, proc))] == [13, 14, 11]


def test_a_process_that_is_gone(proc: Path) -> None:
    assert list(mapped_files(8, proc)) == []
    assert list(files_open_for_reading(8, proc)) == []


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


def test_own_mappings_lead_to_the_mapped_file_itself(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(b"before".ljust(5000))
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ):
        (mapped,) = [found for found in mapped_files(os.getpid()) if found.path == str(file)]
        assert mapped.inode == file.stat().st_ino
        with open_regular(mapped.places, mapped.inode) as descriptor:
            assert read_at(descriptor, 6, 0) == b"before"
        # something else under the same name is not what was mapped
        file.rename(tmp_path / "moved")
        file.write_bytes(b"after".ljust(5000))
        (mapped,) = [found for found in mapped_files(os.getpid()) if found.path == str(tmp_path / "moved")]
        with pytest.raises(FileNotFoundError), open_regular([file], mapped.inode):
            pass


def test_files_open_for_reading(tmp_path: Path) -> None:
    for name in ("read", "write", "both"):
        (tmp_path / name).write_text(name)
    flags = {"read": os.O_RDONLY, "write": os.O_WRONLY, "both": os.O_RDWR}
    descriptors = [os.open(tmp_path / name, flag) for name, flag in flags.items()]
    try:
        found = [file.path for file in files_open_for_reading(os.getpid()) if Path(file.path).parent == tmp_path]
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    assert found == [str(tmp_path / "read")]


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
