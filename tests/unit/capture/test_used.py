"""What processes have mapped, or open for reading: what a restore needs to find unchanged."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from slurmckpt.capture.inspect.descriptors import Descriptors, read_descriptors
from slurmckpt.capture.inspect.mappings import Mapping, Mappings, parse_mapping, read_mappings
from slurmckpt.capture.inspect.mounts import Mount
from slurmckpt.capture.inspect.used import UsedFile, used_files
from slurmckpt.capture.processes import Process, read_process

MAPS = """\
55d0c0000000-55d0c0001000 r--p 00000000 fe:00 11                         /usr/bin/python3.11
55d0c0001000-55d0c0002000 r-xp 00001000 fe:00 11                         /usr/bin/python3.11
7f0000000000-7f0000001000 r--p 00000000 00:2a 12                         /home/u/squash/lib.so
7f0000001000-7f0000002000 rw-s 00000000 00:05 13                         /dev/zero (deleted)
7f0000002000-7f0000003000 r-xp 00000000 fe:00 14                         /tmp/a\\012b (deleted)
7f0000003000-7f0000004000 rw-p 00000000 00:00 0                          [heap]
7f0000004000-7f0000005000 rw-p 00000000 00:00 0
7f0000005000-7f0000006000 r-xp 00000000 00:00 0                          [vdso]
7f0000006000-7f0000007000 rw-s 00000000 00:0f 99                         anon_inode:[io_uring]
nonsense
"""
MOUNTS = {1: Mount("ext4", "254:0"), 2: Mount("fuse.squashfuse", "0:42"), 3: Mount("devtmpfs", "0:5")}


def process(pid: int) -> Process:
    """A process of that number."""
    return Process(pid, pid, 1, 1000, "python3", "", "S", 0)


def mapped(pid: int) -> Mappings:
    """The mappings of MAPS that have a name."""
    lines = [line.partition(b" ") for line in MAPS.encode().split(b"\n")]
    pairs = [(one, addresses) for addresses, _, what in lines if (one := parse_mapping(what)) is not None]
    return Mappings(process(pid), [one for one, _ in pairs], [addresses for _, addresses in pairs])


def named() -> list[Mapping]:
    """Without their addresses."""
    return mapped(7).named


def test_lines_of_maps() -> None:
    assert [(one.path, one.device, one.inode, one.is_executable, one.is_written, one.is_file) for one in named()] == [
        ("/usr/bin/python3.11", "254:0", 11, False, False, True),
        ("/usr/bin/python3.11", "254:0", 11, True, False, True),
        ("/home/u/squash/lib.so", "0:42", 12, False, False, True),
        ("/dev/zero", "0:5", 13, False, True, True),
        ("/tmp/a\nb", "254:0", 14, True, False, True),
        ("[heap]", "0:0", 0, False, False, False),
        ("[vdso]", "0:0", 0, True, False, False),
        ("anon_inode:[io_uring]", "0:15", 99, False, True, False),
    ]
    assert [one.name for one in named() if one.is_deleted] == ["/dev/zero (deleted)", "/tmp/a\\012b (deleted)"]


def test_each_file_once_and_none_that_a_program_makes_up() -> None:
    found = used_files(Descriptors(), [mapped(7), mapped(8)], MOUNTS)
    links = [
        f"/proc/{pid}/map_files/55d0c000{part}" for pid in (7,) for part in ("0000-55d0c0001000", "1000-55d0c0002000")
    ]
    assert [(file.path, file.device, file.inode, file.executable) for file in found] == [
        ("/tmp/a\nb", "254:0", 14, True),
        # 00:2a of maps is 0:42 of mountinfo, a FUSE file system: left out
        ("/usr/bin/python3.11", "254:0", 11, True),
    ]
    assert found[1].links == [*links, "/proc/8/map_files/55d0c0000000-55d0c0001000"]
    assert found[1].root == "/proc/7/root"


def look(path: Path) -> list[UsedFile]:
    """What this very process uses in a directory."""
    me = read_process(os.getpid())
    assert me is not None
    found = used_files(read_descriptors([me], 10000), read_mappings([me]), MOUNTS)
    return [file for file in found if Path(file.path).parent == path]


def test_links_lead_to_the_mapped_file_itself(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(b"before".ljust(5000))
    with file.open("rb") as stream:
        memory = mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ)
    with memory:
        (used,) = look(tmp_path)
        assert (used.path, used.inode, used.executable) == (str(file), file.stat().st_ino, False)
        # Something else under the same name is not what was mapped.
        file.rename(tmp_path / "moved")
        file.write_bytes(b"after".ljust(5000))
        (used,) = look(tmp_path)
        assert used.path == str(tmp_path / "moved")
        try:
            assert Path(used.links[0]).read_bytes().startswith(b"before")
        except PermissionError:
            pytest.skip("needs CAP_CHECKPOINT_RESTORE, to open what is mapped")


def test_files_that_are_open_for_reading_only(tmp_path: Path) -> None:
    for name in ("read", "write", "both", "gone"):
        (tmp_path / name).write_text(name)
    flags = {"read": os.O_RDONLY, "write": os.O_WRONLY, "both": os.O_RDWR, "gone": os.O_RDONLY}
    descriptors = [os.open(tmp_path / name, flag) for name, flag in flags.items()]
    os.mkfifo(tmp_path / "fifo")
    descriptors.append(os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK))
    (tmp_path / "gone").unlink()
    try:
        found = look(tmp_path)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    assert [file.path for file in found] == [str(tmp_path / "gone"), str(tmp_path / "read")]
    assert found[1].links == [f"/proc/{os.getpid()}/fd/{descriptors[0]}"]


def test_files_that_are_written_elsewhere(tmp_path: Path) -> None:
    """A matrix of the job's own is no model that a restore must find unchanged."""
    data, log, read = (tmp_path / name for name in ("data.bin", "log", "read"))
    for path in (data, log, read):
        path.write_bytes(b"x" * 5000)
    with data.open("r+b") as stream:
        memory = mmap.mmap(stream.fileno(), 0)
    with memory, log.open("a"), log.open("rb"), read.open("rb"):
        assert [file.path for file in look(tmp_path)] == [str(read)]


def test_a_process_that_is_gone() -> None:
    gone = process(2**22 + 1)
    assert used_files(read_descriptors([gone], 10), read_mappings([gone]), {}) == []
