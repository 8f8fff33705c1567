"""Payloads: what goes in comes out, and what is none is refused, however hostile."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmckpt.coordinator import payload as payloads
from slurmckpt.coordinator.payload import Payload
from slurmckpt.coordinator.wire import WireError
from tests.unit.coordinator.parts import good_payload, memfd, no_descriptor_is_lost

WORD = st.binary(max_size=20).map(lambda word: word.replace(b"\0", b""))
TEXT = WORD.map(lambda word: word.decode("utf-8", "surrogateescape"))
# Without "=" before it is decoded: taken away after that, it could leave two halves of one character side by side.
KEY = (WORD.map(lambda word: word.replace(b"=", b"").decode("utf-8", "surrogateescape"))).filter(
    lambda key: key not in ("argc", "envc")
)


@st.composite
def made(draw: st.DrawFn) -> Payload:
    argv, environment = draw(st.lists(WORD, min_size=1, max_size=5)), draw(st.lists(WORD, max_size=5))
    counts = {"argc": str(len(argv)), "envc": str(len(environment))}
    return Payload(draw(st.dictionaries(KEY, TEXT, max_size=5)) | counts, argv, environment)


@given(made())
def test_what_goes_in_comes_out(payload: Payload) -> None:
    assert payloads.from_bytes(payload.to_bytes()) == payload


@given(made())
def test_through_a_memfd(payload: Payload) -> None:
    descriptor = payloads.to_memfd(payload)
    try:
        assert payloads.from_memfd(descriptor) == payload
        # Whoever reads it may rely on it.
        with pytest.raises(PermissionError):
            os.write(descriptor, b"x")
    finally:
        os.close(descriptor)


@given(made(), st.lists(WORD, min_size=1, max_size=5), st.lists(WORD, max_size=5))
def test_other_words_are_counted_anew(payload: Payload, argv: list[bytes], environment: list[bytes]) -> None:
    found = payloads.from_bytes(payload.with_words(argv, environment).to_bytes())
    assert (found.argv, found.environment) == (argv, environment)
    assert found.header == payload.header | {"argc": str(len(argv)), "envc": str(len(environment))}


@given(st.binary(max_size=200))
def test_any_bytes_are_a_payload_or_refused(data: bytes) -> None:
    try:
        found = payloads.from_bytes(data)
    except WireError:
        return
    assert payloads.from_bytes(found.to_bytes()).argv == found.argv


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "a payload without a header"),
        (b"argc=1\0", "a payload without a header"),
        (b"a=" + b"x" * 65536 + b"\0\0", "a payload without a header"),
        (b"argc=0\0\0", "a payload with argc='0'"),
        (b"envc=0\0\0x\0", "a payload with argc=''"),
        (b"argc=-1\0\0", "a payload with argc='-1'"),
        (b"argc=1000001\0\0", "a payload with argc='1000001'"),
        (b"argc=1\0envc=9999999999999999999999\0\0", "a payload with envc='99999999999999999999'"),
        ("argc=\u0661\0\0x\0".encode(), "a payload with argc='\u0661'"),
        (b"argc=2\0\0x\0", "a payload with argc=2, envc=0 and 1 words"),
        (b"argc=1\0envc=1\0\0x\0A=b", "a payload with argc=1, envc=1 and 1 words"),
    ],
)
def test_what_is_no_payload(data: bytes, complaint: str) -> None:
    with pytest.raises(WireError) as raised:
        payloads.from_bytes(data)
    assert str(raised.value) == complaint


def test_what_follows_is_not_looked_at() -> None:
    assert payloads.from_bytes(b"argc=1\0\0x\0more\0").argv == [b"x"]


def test_descriptor_numbers() -> None:
    blank = Payload({}, [b"x"], [])
    assert blank.numbers("fds") == []
    assert replace(blank, header={"fds": "0,1,2,255"}).numbers("fds") == [0, 1, 2, 255]
    assert replace(blank, header={"fds": ""}).numbers("fds") == []
    with pytest.raises(WireError, match=r"^a payload with fds='1,1', which names a descriptor twice$"):
        replace(blank, header={"fds": "1,1"}).numbers("fds")
    # 01 is 1.
    with pytest.raises(WireError, match="names a descriptor twice"):
        replace(blank, header={"fds": "1,01"}).numbers("fds")


def test_the_command_for_messages() -> None:
    assert Payload({}, [b"srun", b"a\xff", b"b c"], []).command == "srun a\ufffd b c"
    assert len(Payload({}, [b"x" * 500], []).command) == 200


def test_only_memory_is_read() -> None:
    """A file could lie in a file system that never answers."""
    with no_descriptor_is_lost():
        reading, writing = os.pipe()
        ordinary = os.open("/dev/zero", os.O_RDONLY)
        for descriptor in (reading, ordinary):
            with pytest.raises(WireError, match="a payload that is not a memfd"):
                payloads.from_memfd(descriptor)
        for descriptor in (reading, writing, ordinary):
            os.close(descriptor)


@pytest.mark.parametrize(("size", "complaint"), [(payloads.MAX_BYTES, "with argc=''"), (1 << 40, "of 10995116")])
def test_a_large_one(size: int, complaint: str) -> None:
    descriptor = memfd(b"")
    os.ftruncate(descriptor, size)
    try:
        with pytest.raises(WireError, match=complaint):
            payloads.from_memfd(descriptor)
    finally:
        os.close(descriptor)


def test_as_the_shim_writes_it() -> None:
    descriptor = good_payload([0, 2], [b"./train.py", b"--fast"], "/home/jane")
    # Where the shim has left its own offset says nothing.
    assert os.lseek(descriptor, 0, os.SEEK_CUR) > 0
    found = payloads.from_memfd(descriptor)
    os.close(descriptor)
    assert (found.numbers("fds"), found.command, found.environment) == ([0, 2], "./train.py --fast", [b"A=b"])
    assert found.header["cwd"] == "/home/jane"
