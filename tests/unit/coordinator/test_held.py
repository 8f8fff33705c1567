"""The memory in which a shim holds back the beginning of a line."""

from __future__ import annotations

import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmckpt.coordinator import held
from slurmckpt.coordinator.wire import WireError
from tests.unit.coordinator.parts import memfd

LINE = st.binary(min_size=1, max_size=held.LIMIT - 1)


@given(st.dictionaries(st.sampled_from(held.STREAMS), LINE))
def test_what_is_written_is_read(lines: dict[int, bytes]) -> None:
    memory = memfd(bytes(held.SIZE))
    try:
        held.check(memory)
        held.write(memory, lines)
        assert held.read(memory) == lines
    finally:
        os.close(memory)


@given(st.binary(max_size=held.SIZE))
def test_whatever_the_user_puts_there_is_read_within_bounds(content: bytes) -> None:
    memory = memfd(content)
    try:
        for stream, line in held.read(memory).items():
            assert stream in held.STREAMS
            assert 0 < len(line) < held.LIMIT
    finally:
        os.close(memory)


def test_a_length_beyond_the_limit_counts_as_nothing() -> None:
    memory = memfd(struct.pack("=I", held.LIMIT) + bytes(held.SIZE - 4))
    assert held.read(memory) == {}
    os.close(memory)


def test_a_line_that_is_too_long_is_refused_before_anything_is_written() -> None:
    memory = memfd(bytes(held.SIZE))
    with pytest.raises(WireError, match="1024 held bytes; fewer than 1024 are possible"):
        held.write(memory, {1: b"x" * held.LIMIT})
    assert os.pread(memory, held.SIZE, 0) == bytes(held.SIZE)
    os.close(memory)
