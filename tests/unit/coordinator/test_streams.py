"""What is kept of a task's streams: measurable files, and pipes that still end when their writer does."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slurmckpt.coordinator import held
from slurmckpt.coordinator.streams import OutputHolder, Streams, files_written_by, readable
from slurmckpt.coordinator.task import Task
from tests.unit.coordinator.parts import channels, hello, memfd, no_descriptor_is_lost, task


def keep(streams: Streams, descriptors: dict[int, int], step: str = "0", index: int = 2) -> None:
    """Keep the streams of a task with these descriptors, then hand the task on."""

    async def scene() -> None:
        one, other = channels()
        other.close()
        given = task(one, {number: os.dup(descriptor) for number, descriptor in descriptors.items()}, index, ntasks=3)
        streams.keep(step, given)
        given.close()

    asyncio.run(scene())


def test_the_reader_of_a_kept_pipe_still_sees_its_end() -> None:
    reader, writer = os.pipe()
    streams = Streams()
    keep(streams, {1: writer})
    assert len(streams.pipes) == 1
    os.write(writer, b"last words")
    os.close(writer)
    # A writer of our own would make the second read wait for ever.
    os.set_blocking(reader, False)
    assert (os.read(reader, 100), os.read(reader, 100)) == (b"last words", b"")
    streams.close()
    os.close(reader)


def test_a_writer_without_reader_is_still_told(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    streams = Streams()
    keep(streams, {1: writer})
    os.close(reader)
    with pytest.raises(BrokenPipeError):
        os.write(writer, b"x")
    streams.close()
    os.close(writer)


def test_a_kept_pipe_can_be_looked_into_for_a_moment() -> None:
    reader, writer = os.pipe()
    streams = Streams()
    keep(streams, {1: writer})
    os.write(writer, b"waiting")
    with no_descriptor_is_lost(), readable(streams.pipes) as pipes:
        assert [os.fstat(pipe).st_ino for pipe in pipes] == [os.fstat(reader).st_ino]
    os.close(writer)
    assert (os.read(reader, 100), os.read(reader, 100)) == (b"waiting", b"")
    streams.close()
    os.close(reader)


def test_which_descriptors_are_kept(tmp_path: Path) -> None:
    with no_descriptor_is_lost():
        out = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
        log = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
        data = os.open(tmp_path / "out", os.O_RDONLY)
        null = os.open("/dev/null", os.O_RDWR)
        reader, writer = os.pipe()
        streams = Streams()
        keep(streams, {0: reader, 1: out, 2: writer, 5: log, 6: data, 7: null})
        assert [(holder.name, holder.path) for holder in streams.files] == [
            ("0/2/1", str(tmp_path / "out")),
            ("0/2/5", str(tmp_path / "log")),
        ]
        assert (len(streams.pipes), len(streams.inputs), list(streams.held)) == (1, 1, [2])
        streams.close()
        streams.close()
        assert (streams.files, streams.pipes, streams.inputs, streams.held) == ([], [], [], {})
        for descriptor in (out, log, data, null, reader, writer):
            os.close(descriptor)


def test_what_a_task_was_given_can_be_given_again(tmp_path: Path) -> None:
    """Without an end of a pipe being kept for it."""
    with no_descriptor_is_lost():
        out = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
        reader, writer = os.pipe()
        streams = Streams()
        keep(streams, {1: out, 2: writer})
        os.close(writer)
        assert os.read(reader, 1) == b""
        assert list(streams.given) == [2]
        os.write(streams.given[2][1], b"12")
        assert os.lseek(out, 0, os.SEEK_CUR) == 2
        # As CRIU opens it.
        again = os.open(f"/proc/self/fd/{streams.given[2][2]}", os.O_WRONLY)
        os.write(again, b"34")
        assert os.read(reader, 2) == b"34"
        streams.close()
        assert streams.given == {}
        for descriptor in (out, reader, again):
            os.close(descriptor)


def test_a_relayed_pipe_that_is_kept_open_does_not_end() -> None:
    with no_descriptor_is_lost():
        streams = Streams()
        ends = [os.pipe() for _ in range(2)]
        for reader, writer in ends:
            os.set_blocking(reader, False)
            streams.relayed.append(os.open(f"/proc/self/fd/{writer}", os.O_PATH))
            os.close(writer)
        (one, other), inodes = [reader for reader, _ in ends], streams.relayed_inodes()
        streams.keep_open(inodes[:1])
        streams.keep_open(inodes[:1])
        with pytest.raises(BlockingIOError):
            os.read(one, 1)
        assert os.read(other, 1) == b""
        streams.keep_open([])
        assert os.read(one, 1) == b""
        streams.keep_open(inodes)
        for pipe in streams.relayed:
            os.close(pipe)
        streams.close()
        assert os.read(one, 1) == os.read(other, 1) == b""
        for reader, _ in ends:
            os.close(reader)


def test_a_kept_file_shares_the_offset_of_the_task(tmp_path: Path) -> None:
    out = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    streams = Streams()
    keep(streams, {1: out})
    os.write(out, b"12345")
    (holder,) = streams.files
    assert os.lseek(holder.descriptor, 0, os.SEEK_CUR) == 5
    again = holder.dup()
    streams.close()
    assert (again.name, os.lseek(again.descriptor, 0, os.SEEK_CUR)) == ("0/2/1", 5)
    again.close()
    os.close(out)


def test_relayed_output_is_a_pipe_and_its_shim_a_carrier() -> None:
    async def scene() -> None:
        one, other = channels()
        other.close()
        reader, writer = os.pipe()
        given = Task(
            hello=hello(task=1, ntasks=2),
            shim_pid=4711,
            channel=one,
            payload=memfd(b""),
            held=memfd(bytes(held.SIZE)),
            descriptors={},
            relays={1: writer},
            argv_digest="",
            command="",
        )
        streams = Streams()
        streams.keep("0", given)
        assert (len(streams.pipes), streams.shims) == (1, [4711])
        given.close()
        assert os.read(reader, 1) == b""
        os.close(reader)
        streams.close()
        assert streams.shims == []

    with no_descriptor_is_lost():
        asyncio.run(scene())


@pytest.mark.parametrize(("flags", "appends"), [(os.O_WRONLY, False), (os.O_WRONLY | os.O_APPEND, True)])
def test_appends(tmp_path: Path, flags: int, appends: bool) -> None:
    holder = OutputHolder("0/0/1", os.open(tmp_path / "out", flags | os.O_CREAT))
    assert holder.appends is appends
    (tmp_path / "out").unlink()
    assert holder.path == f"{tmp_path}/out (deleted)"
    holder.close()


class Child:
    """A process with the given descriptors open, and no others above 2."""

    def __init__(self, *descriptors: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", "print(flush=True); input()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=descriptors,
        )
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def end(self) -> None:
        self.process.communicate(b"\n", timeout=60)


def test_files_written_by_a_process(tmp_path: Path) -> None:
    out = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    log = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    data = os.open(tmp_path / "out", os.O_RDONLY)
    reader, writer = os.pipe()
    child = Child(out, log, data, writer)
    for descriptor in (log, data, writer):
        os.close(descriptor)
    with no_descriptor_is_lost():
        holders = files_written_by(child.process.pid, "srun/abc")
        found = {holder.name: holder.path for holder in holders}
        names = {file: f"srun/abc{tmp_path}/{file}#1" for file in ("out", "log")}
        assert found == {names[file]: str(tmp_path / file) for file in names}
        # The same open file, so the same offset.
        os.write(out, b"123")
        offsets = {holder.name: os.lseek(holder.descriptor, 0, os.SEEK_CUR) for holder in holders}
        assert offsets[names["out"]] == 3
        for holder in holders:
            holder.close()
    child.end()
    # Its pipe was looked at and never held.
    assert os.read(reader, 1) == b""
    os.close(reader)
    os.close(out)
    assert files_written_by(child.process.pid, "srun/abc") == []


def test_a_descriptor_that_closes_while_we_look_does_not_hide_those_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    child = Child(out)
    real: Callable[..., os.stat_result] = os.stat

    def stat(path: str, *args: object, **kwargs: object) -> os.stat_result:
        if path == f"/proc/{child.process.pid}/fd/0":
            raise FileNotFoundError(2, "No such file or directory", path)
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", stat)
    holders = files_written_by(child.process.pid, "srun/abc")
    monkeypatch.undo()
    assert [holder.name for holder in holders] == [f"srun/abc{tmp_path}/out#1"]
    for holder in holders:
        holder.close()
    child.end()
    os.close(out)


def test_a_file_has_the_same_name_whatever_its_number(tmp_path: Path) -> None:
    """An srun has its files open among sockets, whose number differs from run to run. Standard streams keep theirs."""
    found = []
    for sockets in (0, 3):
        taken = [os.open("/dev/null", os.O_RDONLY) for _ in range(sockets)]
        files = [os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT) for _ in range(2)]
        child = Child(*taken, *files)
        holders = files_written_by(child.process.pid, "srun/abc")
        found.append([holder.name for holder in holders])
        child.end()
        for holder in holders:
            holder.close()
        for descriptor in (*taken, *files):
            os.close(descriptor)
    assert found[0] == found[1] == [f"srun/abc{tmp_path}/out#{count}" for count in (1, 2)]
