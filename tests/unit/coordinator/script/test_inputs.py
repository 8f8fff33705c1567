"""Input on its way: copied out of pipes without taking it, and given back to where it came from."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmckpt.coordinator.script import inputs
from slurmckpt.coordinator.script.inputs import ROOM, common_content, content, give_back, make_room
from tests.unit.coordinator.parts import no_descriptor_is_lost

PAGE = os.sysconf("SC_PAGE_SIZE")
GETPIPE_SZ, SETPIPE_SZ = 1032, 1031


class Pipe:
    def __init__(self, room: int = 0) -> None:
        self.reading, self.writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if room:
                fcntl.fcntl(self.reading, SETPIPE_SZ, room)
        except OSError:
            self.close()
            raise

    @property
    def room(self) -> int:
        return fcntl.fcntl(self.reading, GETPIPE_SZ)

    def put(self, data: bytes) -> None:
        while data:
            data = data[os.write(self.writing, data) :]

    def take(self) -> bytes:
        data = b""
        try:
            while piece := os.read(self.reading, ROOM):
                data += piece
        except BlockingIOError:
            pass
        return data

    def close(self) -> None:
        for descriptor in (self.reading, self.writing):
            os.close(descriptor)


@pytest.fixture
def pipe(request: pytest.FixtureRequest) -> Pipe:
    made = Pipe()
    request.addfinalizer(made.close)
    return made


def pattern(size: int) -> bytes:
    return bytes(range(251)) * (size // 251) + bytes(range(251))[: size % 251]


@pytest.mark.parametrize("size", [0, 1, PAGE - 1, PAGE, PAGE + 1, 65536, ROOM])
def test_the_content_of_a_pipe_stays_there(size: int) -> None:
    with no_descriptor_is_lost():
        pipe = Pipe(ROOM)
        pipe.put(pattern(size))
        assert content(pipe.reading) == pattern(size)
        assert content(pipe.reading) == pattern(size)
        assert pipe.take() == pattern(size)
        pipe.close()


@settings(deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=5000), max_size=12))
def test_however_it_came(pieces: list[bytes]) -> None:
    pipe = Pipe(ROOM)
    try:
        for piece in pieces:
            pipe.put(piece)
        # Begun pages hold less than a page, and take a place each.
        assert content(pipe.reading) == b"".join(pieces)
    finally:
        pipe.close()


@pytest.fixture
def large() -> Iterator[Pipe]:
    """Larger than pipe-max-size usually is."""
    try:
        made = Pipe(4 * ROOM)
    except PermissionError:
        pytest.skip("needs CAP_SYS_RESOURCE")
    yield made
    made.close()


def test_a_pipe_larger_than_we_would_make_it(large: Pipe) -> None:
    large.put(pattern(3 * ROOM + 17))
    assert content(large.reading) == pattern(3 * ROOM + 17)
    make_room([large.reading])
    assert large.room == 4 * ROOM


def test_a_pipe_that_nobody_writes_to_any_more(pipe: Pipe) -> None:
    other = Pipe()
    other.put(b"rest")
    os.close(other.writing)
    assert content(other.reading) == b"rest"
    assert other.take() == b"rest"
    assert content(other.reading) == b""
    os.close(other.reading)


def test_what_is_no_pipe(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with no_descriptor_is_lost():
        descriptor = os.open(path, os.O_RDONLY)
        with pytest.raises(OSError) as raised:
            content(descriptor)
        assert raised.value.errno == errno.EBADF
        os.close(descriptor)


def test_common_content() -> None:
    pipes = [Pipe() for _ in range(3)]
    assert common_content([]) == b""
    assert common_content([pipe.reading for pipe in pipes]) == b""
    for pipe in pipes:
        pipe.put(b"line 1\nline 2\n")
    assert common_content([pipe.reading for pipe in pipes]) == b"line 1\nline 2\n"
    assert os.read(pipes[1].reading, 7) == b"line 1\n"
    assert common_content([pipe.reading for pipe in pipes]) is None
    for pipe in pipes:
        pipe.close()


def test_room_is_made_once(pipe: Pipe) -> None:
    assert pipe.room < ROOM
    make_room([pipe.reading])
    assert pipe.room == ROOM
    make_room([pipe.writing])
    assert pipe.room == ROOM


def test_a_pipe_that_may_not_grow_is_left_as_it_is(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., int] = fcntl.fcntl

    def refuse(descriptor: int, request: int, *rest: int) -> int:
        if request == SETPIPE_SZ:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return real(descriptor, request, *rest)

    before = pipe.room
    monkeypatch.setattr(inputs.fcntl, "fcntl", refuse)  # type: ignore[attr-defined]
    make_room([pipe.reading])
    monkeypatch.undo()
    assert pipe.room == before


@pytest.mark.parametrize("size", [0, 1, PAGE, 65537, ROOM])
def test_a_pipe_gets_back_what_was_read_from_it(size: int) -> None:
    with no_descriptor_is_lost():
        pipe = Pipe()
        give_back(pipe.reading, pattern(size))
        assert pipe.take() == pattern(size)
        # The writer's end is still the last one: whoever reads must see the end of it.
        os.close(pipe.writing)
        assert os.read(pipe.reading, 1) == b""
        os.close(pipe.reading)


def test_a_pipe_that_cannot_take_all_is_an_error(pipe: Pipe) -> None:
    with no_descriptor_is_lost(), pytest.raises(BlockingIOError):
        give_back(pipe.reading, bytes(ROOM + 1))


def test_a_file_goes_back(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"line 1\nline 2\nline 3\n")
    with no_descriptor_is_lost():
        descriptor = os.open(path, os.O_RDONLY)
        # As a stand-in's: the same offset in another table.
        other = os.dup(descriptor)
        assert os.read(other, 14) == b"line 1\nline 2\n"
        give_back(descriptor, b"")
        assert os.lseek(other, 0, os.SEEK_CUR) == 14
        give_back(descriptor, b"line 2\n")
        assert os.read(other, 99) == b"line 2\nline 3\n"
        os.close(descriptor)
        os.close(other)


def test_a_file_cannot_go_back_before_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"1234")
    descriptor = os.open(path, os.O_RDONLY)
    os.read(descriptor, 2)
    with pytest.raises(OSError) as raised:
        give_back(descriptor, b"123")
    assert raised.value.errno == errno.EINVAL
    assert os.lseek(descriptor, 0, os.SEEK_CUR) == 2
    os.close(descriptor)


@settings(deadline=None)
@given(st.binary(max_size=9000), st.integers(0, 9000))
def test_what_was_copied_out_can_be_given_back(data: bytes, read: int) -> None:
    """A step has read some of its input; the rest is in its pipe at the boundary, and comes again at the restore."""
    step, script = Pipe(), Pipe()
    try:
        step.put(data)
        got = os.read(step.reading, min(read, len(data))) if min(read, len(data)) else b""
        give_back(script.reading, content(step.reading))
        assert got + script.take() == data
    finally:
        step.close()
        script.close()
