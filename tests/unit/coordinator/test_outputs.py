"""Output files: measured, saved and put back on real descriptors, in all the ways that Slurm opens them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmckpt.coordinator import outputs
from slurmckpt.coordinator.streams import OutputHolder
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.manifest import OutputFile
from tests.unit.coordinator.parts import GID, UID, memfd, no_descriptor_is_lost

WRITE = os.O_WRONLY | os.O_CREAT
APPEND = WRITE | os.O_APPEND


class Output:
    """One output file of a job through two incarnations. Descriptors are those that slurmstepd would give the task."""

    def __init__(self, home: Path) -> None:
        self.path = home / "slurm-7.out"
        self.holders: list[OutputHolder] = []

    def open(self, name: str, flags: int = WRITE) -> OutputHolder:
        holder = OutputHolder(name, os.open(self.path, flags, 0o644))
        if os.geteuid() == 0:
            os.chown(self.path, UID, GID)
        self.holders.append(holder)
        return holder

    def write(self, holder: OutputHolder, data: bytes) -> None:
        assert os.write(holder.descriptor, data) == len(data)

    @property
    def content(self) -> bytes:
        return self.path.read_bytes()

    def start_again(self) -> None:
        """The old processes are gone, with their descriptors."""
        while self.holders:
            self.holders.pop().close()


@pytest.fixture
def output(home: Path) -> Iterator[Output]:
    found = Output(home)
    yield found
    found.start_again()


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    return tmp_path


def save(holders: list[OutputHolder], staging: Path, files: UserFiles, max_output: int = 1 << 20) -> list[OutputFile]:
    return asyncio.run(outputs.save(outputs.measure(holders), staging, files, max_output))


def put_back(entries: list[OutputFile], holders: list[OutputHolder], staging: Path, files: UserFiles) -> list[str]:
    with no_descriptor_is_lost():
        return asyncio.run(outputs.put_back(entries, holders, staging, files))


def test_measure_gives_each_file_once_with_the_offset_of_each_holder(output: Output) -> None:
    one, two = output.open("0/0/1"), output.open("0/0/2")
    output.write(one, b"0123456789")
    output.write(two, b"abc")
    ((entry, holder),) = outputs.measure([one, two])
    assert entry == OutputFile(str(output.path), 10, None, {"0/0/1": 10, "0/0/2": 3})
    assert holder is one


def test_dups_share_one_offset(output: Output) -> None:
    one = output.open("0/0/1")
    two = OutputHolder("0/0/2", os.dup(one.descriptor))
    output.holders.append(two)
    output.write(two, b"0123")
    ((entry, _),) = outputs.measure([one, two])
    assert entry.holders == {"0/0/1": 4, "0/0/2": 4}


def test_what_has_no_file_is_not_measured(output: Output) -> None:
    deleted = output.open("0/0/1")
    output.path.unlink()
    reader, writer = os.pipe()
    found = [deleted, OutputHolder("0/0/2", writer), OutputHolder("0/0/5", memfd(b"x"))]
    assert outputs.measure(found) == []
    os.close(reader)
    for holder in found[1:]:
        holder.close()


@pytest.mark.parametrize("flags", [WRITE, APPEND], ids=["truncate", "append"])
@pytest.mark.parametrize("truncated", [True, False], ids=["truncated by Slurm", "kept by Slurm"])
def test_no_line_is_lost_and_none_doubled(
    output: Output, staging: Path, user_files: UserFiles, flags: int, truncated: bool
) -> None:
    first = output.open("batch/0/1", flags)
    output.write(first, b"before\n")
    entries = save(output.holders, staging, user_files)
    output.write(first, b"after the boundary, lost with the node\n")
    output.start_again()

    second = output.open("batch/0/1", flags | (os.O_TRUNC if truncated else 0))
    assert put_back(entries, [second], staging, user_files) == []
    assert output.content == b"before\n"
    output.write(second, b"after the boundary\n")
    assert output.content == b"before\nafter the boundary\n"


def test_what_the_new_incarnation_printed_before_the_restore_is_replaced(
    output: Output, staging: Path, user_files: UserFiles
) -> None:
    output.write(output.open("batch/0/1"), b"preamble\nloss 1\n")
    entries = save(output.holders, staging, user_files)
    output.start_again()
    second = output.open("batch/0/1", WRITE | os.O_TRUNC)
    output.write(second, b"preamble\n")
    put_back(entries, [second], staging, user_files)
    output.write(second, b"loss 2\n")
    assert output.content == b"preamble\nloss 1\nloss 2\n"


def test_the_saved_content_ends_at_the_boundary(output: Output, staging: Path, user_files: UserFiles) -> None:
    holder = output.open("0/0/1")
    output.write(holder, b"before")
    measured = outputs.measure([holder])
    output.write(holder, b" after")
    (entry,) = asyncio.run(outputs.save(measured, staging, user_files, 1 << 20))
    assert entry == OutputFile(str(output.path), 6, "0", {"0/0/1": 6})
    saved = staging / "output" / "0"
    assert (saved.read_bytes(), saved.stat().st_mode & 0o777) == (b"before", 0o600)


def test_more_than_one_chunk(output: Output, staging: Path, user_files: UserFiles) -> None:
    content = os.urandom(9 * 1024 * 1024)
    output.write(output.open("0/0/1"), content)
    entries = save(output.holders, staging, user_files, max_output=1 << 30)
    output.start_again()
    put_back(entries, [output.open("0/0/1", WRITE | os.O_TRUNC)], staging, user_files)
    assert output.content == content


def test_two_holders_of_one_file_each_get_their_offset_back(
    output: Output, staging: Path, user_files: UserFiles
) -> None:
    one, two = output.open("0/0/1"), output.open("0/0/2")
    output.write(one, b"0123456789")
    output.write(two, b"ab")
    entries = save(output.holders, staging, user_files)
    output.start_again()
    one, two = output.open("0/0/1", WRITE | os.O_TRUNC), output.open("0/0/2")
    put_back(entries, [one, two], staging, user_files)
    output.write(two, b"cd")
    output.write(one, b"end")
    assert output.content == b"abcd456789end"


def test_holders_of_other_names_are_left_alone(output: Output, staging: Path, user_files: UserFiles) -> None:
    output.write(output.open("0/0/1"), b"old")
    entries = save(output.holders, staging, user_files)
    output.start_again()
    other = output.open("1/0/1", WRITE | os.O_TRUNC)
    output.write(other, b"new")
    assert put_back(entries, [other], staging, user_files) == []
    assert output.content == b"new"


def test_a_file_that_has_become_a_pipe_is_left_alone(output: Output, staging: Path, user_files: UserFiles) -> None:
    output.write(output.open("0/0/1"), b"old")
    entries = save(output.holders, staging, user_files)
    reader, writer = os.pipe()
    holder = OutputHolder("0/0/1", writer)
    assert put_back(entries, [holder], staging, user_files) == []
    holder.close()
    assert os.read(reader, 10) == b""
    os.close(reader)


@pytest.mark.parametrize("flags", [WRITE, APPEND])
def test_too_large_to_be_saved_but_still_there(
    output: Output, staging: Path, user_files: UserFiles, flags: int
) -> None:
    holder = output.open("0/0/1", flags)
    output.write(holder, b"0123456789")
    (entry,) = save(output.holders, staging, user_files, max_output=9)
    assert (entry.size, entry.content) == (10, None)
    assert list((staging / "output").iterdir()) == []
    output.write(holder, b"after")
    output.start_again()
    again = output.open("0/0/1", flags)
    assert put_back([entry], [again], staging, user_files) == []
    output.write(again, b"AFTER")
    assert output.content == b"0123456789AFTER"


def test_too_large_to_be_saved_and_truncated_by_slurm(output: Output, staging: Path, user_files: UserFiles) -> None:
    output.write(output.open("0/0/1"), b"0123456789")
    entries = save(output.holders, staging, user_files, max_output=9)
    output.start_again()
    again = output.open("0/0/1", WRITE | os.O_TRUNC)
    assert put_back(entries, [again], staging, user_files) == [
        f"the first 10 bytes of {output.path} were not saved and are lost"
    ]
    # CRIU compares the size of what it opens with the size at the dump, so the file has it.
    assert output.content == bytes(10)
    output.write(again, b"next")
    assert output.content == bytes(10) + b"next"


def test_too_large_to_be_saved_and_truncated_by_slurm_with_a_descriptor_that_appends(
    output: Output, staging: Path, user_files: UserFiles
) -> None:
    output.write(output.open("0/0/1", APPEND), b"0123456789")
    entries = save(output.holders, staging, user_files, max_output=9)
    output.start_again()
    again = output.open("0/0/1", APPEND | os.O_TRUNC)
    assert len(put_back(entries, [again], staging, user_files)) == 1
    output.write(again, b"next")
    assert output.content == b"next"


def test_a_file_that_the_user_may_not_read_is_only_noted(output: Output, staging: Path, user_files: UserFiles) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: a file of another owner")
    holder = output.open("0/0/1")
    output.write(holder, b"secret")
    os.chown(output.path, 0, 0)
    output.path.chmod(0o600)
    (entry,) = save([holder], staging, user_files)
    assert (entry.content, entry.size) == (None, 6)


def test_a_file_that_shrinks_while_it_is_saved_fails_the_checkpoint(
    output: Output, staging: Path, user_files: UserFiles
) -> None:
    holder = output.open("0/0/1")
    output.write(holder, b"0123456789")
    measured = outputs.measure([holder])
    os.ftruncate(holder.descriptor, 4)
    with pytest.raises(OSError, match="became shorter than 10 bytes"):
        asyncio.run(outputs.save(measured, staging, user_files, 1 << 20))


def test_root_does_not_lend_its_rights_to_what_is_written(
    tmp_path: Path, staging: Path, user_files: UserFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The descriptor is the user's choice: a file of /proc, say, that looks at who writes to it."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    writers: list[str] = []
    real = os.write

    def write(descriptor: int, data: memoryview) -> int:
        status = Path("/proc/thread-self/status").read_text()
        writers.extend(line for line in status.splitlines() if line.startswith(("Uid", "CapEff")))
        return real(descriptor, data)

    holder = OutputHolder("0/0/1", os.open(tmp_path / "out", WRITE))
    (staging / "output").mkdir()
    (staging / "output" / "0").write_bytes(b"x")
    monkeypatch.setattr(os, "write", write)
    put_back([OutputFile("/out", 1, "0", {"0/0/1": 1})], [holder], staging, user_files)
    monkeypatch.undo()
    holder.close()
    assert writers == [f"Uid:\t0\t0\t0\t{UID}", "CapEff:\t0000000000000000"]


@pytest.mark.parametrize("flags", [WRITE, APPEND], ids=["truncate", "append"])
def test_a_restore_that_failed_is_undone(output: Output, staging: Path, user_files: UserFiles, flags: int) -> None:
    output.write(output.open("batch/0/1", flags), b"of the last incarnation, before the boundary\n")
    entries = save(output.holders, staging, user_files)
    output.start_again()
    again = output.open("batch/0/1", flags | os.O_TRUNC)
    output.write(again, b"so far\n")
    before = asyncio.run(outputs.remember([again], staging / "undo" / "batch", user_files))
    put_back(entries, [again], staging, user_files)
    assert output.content == b"of the last incarnation, before the boundary\n"
    put_back(before, [again], staging / "undo" / "batch", user_files)
    output.write(again, b"cold start\n")
    assert output.content == b"so far\ncold start\n"


def test_a_large_file_is_remembered_by_its_size(
    output: Output, staging: Path, user_files: UserFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --open-mode=append the restore only cuts it, and what is before the cut is as it was."""
    monkeypatch.setattr(outputs, "_UNDO_BYTES", 10)
    holder = output.open("batch/0/1", APPEND)
    output.write(holder, b"0123456789abc")
    (entry,) = asyncio.run(outputs.remember([holder], staging / "undo", user_files))
    assert (entry.size, entry.content) == (13, None)
    output.write(holder, b"def")
    put_back([entry], [holder], staging / "undo", user_files)
    assert output.content == b"0123456789abc"
