"""Packets: what goes out comes in, and what is no packet is refused without losing a descriptor."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmckpt.coordinator.wire import MAX_DESCRIPTORS, MAX_PACKET, Channel, Message, WireError, pack, parse
from tests.unit.coordinator.parts import channels, no_descriptor_is_lost, send_raw

WORD = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
KEY = st.text(st.characters(exclude_characters="\0=", exclude_categories=["Cs"]))


@given(st.from_regex(r"[A-Z]+", fullmatch=True), st.lists(st.tuples(KEY, WORD)))
def test_what_is_packed_is_parsed(verb: str, pairs: list[tuple[str, str]]) -> None:
    message = parse(pack(verb, pairs))
    assert (message.verb, message.pairs, message.descriptors) == (verb, pairs, [])


@given(st.binary())
def test_anything_else_is_a_wire_error(data: bytes) -> None:
    try:
        message = parse(data)
    except WireError:
        return
    assert pack(message.verb, message.pairs) == data


def test_bytes_that_are_not_utf8_survive() -> None:
    path = os.fsdecode(b"/a\xff")
    assert pack("TASK", [("cgroup", path)]) == b"TASK\0cgroup=/a\xff\0"
    assert parse(b"TASK\0cgroup=/a\xff\0").text("cgroup") == path


def test_a_value_with_a_nul_is_not_sent() -> None:
    with pytest.raises(WireError, match="SAY with a NUL byte in a value"):
        pack("SAY", [("text", "a\0b")])


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "does not end with a NUL byte"),
        (b"GO", "does not end with a NUL byte"),
        (b"\0", "a packet without a verb: ''"),
        (b"go\0", "a packet without a verb: 'go'"),
        (b"G1\0", "a packet without a verb: 'G1'"),
        ("Ä\0".encode(), "a packet without a verb: 'Ä'"),
        (b"GO\0x\0", "GO with 'x', which is not key=value"),
    ],
)
def test_malformed(data: bytes, complaint: str) -> None:
    with pytest.raises(WireError, match=complaint):
        parse(data)


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("-1", -1), ("007", 7), ("4294967291", 4294967291)])
def test_number(text: str, number: int) -> None:
    assert Message("EXITED", [("status", text)]).number("status") == number


@pytest.mark.parametrize("text", ["", "-", "--1", "1-", "+1", " 1", "1\n", "1.0", "0x1", "٣", "²", "1" * 21, "1_0"])
def test_not_a_number(text: str) -> None:
    with pytest.raises(WireError, match="a number is needed"):
        Message("EXITED", [("status", text)]).number("status")


def test_the_first_value_of_a_key_counts_and_a_missing_key_is_named() -> None:
    message = Message("TASK", [("cgroup", "a"), ("cgroup", "b")])
    assert message.text("cgroup") == "a"
    with pytest.raises(WireError, match="TASK without index="):
        message.text("index")


def test_a_message_with_descriptors() -> None:
    async def scene() -> None:
        one, other = channels()
        reader, writer = os.pipe()
        await one.send("TASK", [("index", 3)], [writer])
        os.close(writer)
        message = await other.receive()
        assert message is not None
        assert (message.verb, message.number("index"), len(message.descriptors)) == ("TASK", 3, 1)
        assert not os.get_inheritable(message.descriptors[0])
        os.write(message.descriptors[0], b"x")
        assert os.read(reader, 1) == b"x"
        message.close()
        assert (message.descriptors, os.read(reader, 1)) == ([], b"")
        os.close(reader)
        one.close()
        assert await other.receive() is None
        other.close()

    with no_descriptor_is_lost():
        asyncio.run(scene())


def test_as_many_descriptors_as_the_kernel_takes() -> None:
    async def scene() -> None:
        one, other = channels()
        await one.send("START", [], [0] * MAX_DESCRIPTORS)
        message = await other.receive()
        assert message is not None and len(message.descriptors) == MAX_DESCRIPTORS
        message.close()
        with pytest.raises(ConnectionError):
            await one.send("START", [], [0] * (MAX_DESCRIPTORS + 1))
        one.close()
        other.close()

    with no_descriptor_is_lost():
        asyncio.run(scene())


@pytest.mark.parametrize("data", [b"GO", b"go\0", b"GO\0x\0", b"X" * MAX_PACKET + b"\0"])
def test_a_malformed_packet_gives_its_descriptors_back(data: bytes) -> None:
    async def scene() -> None:
        raw, mine = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel = Channel(mine)
        send_raw(raw, data, [0, 1])
        with pytest.raises(WireError):
            await channel.receive()
        # The connection is still good: the next packet is read as usual.
        send_raw(raw, b"GO\0")
        message = await channel.receive()
        assert message is not None and message.verb == "GO"
        raw.close()
        channel.close()

    with no_descriptor_is_lost():
        asyncio.run(scene())


def test_who_is_at_the_other_end() -> None:
    async def scene() -> None:
        one, other = channels()
        assert one.peer() == (os.getpid(), os.getuid())
        one.close()
        other.close()

    asyncio.run(scene())


def test_sending_to_nobody_is_a_connection_error() -> None:
    async def scene() -> None:
        one, other = channels()
        other.close()
        with pytest.raises(ConnectionError):
            await one.send("GO")
        one.close()
        with pytest.raises(ConnectionError):
            await one.send("GO")

    asyncio.run(scene())


async def fill(channel: Channel) -> int:
    """Send until the connection takes no more; gives how many messages are on their way. The last one still waits."""
    count = 0
    while True:
        try:
            await asyncio.wait_for(channel.send("SAY", [("text", f"{count:01000d}")]), 0.3)
        except asyncio.TimeoutError:
            return count
        count += 1


def test_what_a_peer_sent_is_read_that_left_without_reading_all() -> None:
    """The kernel then reports ECONNRESET first."""

    async def scene() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel = Channel(ours)
        await channel.send("SYNC")
        theirs.send(pack("EXITED", [("index", 0)]))
        theirs.close()
        message = await channel.receive()
        assert message is not None and message.verb == "EXITED"
        assert await channel.receive() is None
        channel.close()

    asyncio.run(scene())


def test_two_senders_on_a_full_connection_both_get_through() -> None:
    """Each waits for room; the event loop itself would keep only the second one's wish to be woken."""

    async def scene() -> None:
        one, other = channels()
        count = await fill(one)
        senders = [asyncio.create_task(one.send("SAY", [("text", name)])) for name in ("a", "b")]
        await asyncio.sleep(0)
        received = []
        for _ in range(count + 2):
            message = await asyncio.wait_for(other.receive(), 60)
            assert message is not None
            received.append(message.text("text"))
        await asyncio.wait_for(asyncio.gather(*senders), 60)
        assert received[-2:] == ["a", "b"]
        one.close()
        other.close()

    asyncio.run(scene())


def test_closing_wakes_reader_and_sender() -> None:
    async def scene() -> None:
        one, other = channels()
        await fill(one)
        reading, sending = asyncio.create_task(one.receive()), asyncio.create_task(one.send("GO"))
        await asyncio.sleep(0)
        one.close()
        assert await asyncio.wait_for(reading, 60) is None
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(sending, 60)
        other.close()

    asyncio.run(scene())


def test_a_closed_channel_leaves_nothing_to_the_next_owner_of_its_descriptor() -> None:
    """A pod that is given up while its reader waits, and a new one that gets the same number."""

    async def scene() -> None:
        one, other = channels()
        number = one.descriptor
        reading = asyncio.create_task(one.receive())
        await asyncio.sleep(0)
        one.close()
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ends = sorted([mine, theirs], key=lambda sock: sock.fileno())
        assert ends[0].fileno() == number
        again, peer = Channel(ends[0]), Channel(ends[1])
        second = asyncio.create_task(again.receive())
        await asyncio.sleep(0)
        assert await reading is None
        await peer.send("READY")
        message = await asyncio.wait_for(second, 60)
        assert message is not None and message.verb == "READY"
        for channel in (other, again, peer):
            channel.close()

    asyncio.run(scene())


def test_a_cancelled_receive_can_be_repeated() -> None:
    async def scene() -> None:
        one, other = channels()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(other.receive(), 0.01)
        await one.send("GO")
        message = await other.receive()
        assert message is not None and message.verb == "GO"
        one.close()
        other.close()

    asyncio.run(scene())


def test_the_end_of_a_peer_is_seen_without_reading() -> None:
    async def scene() -> None:
        one, other = channels()
        assert not one.ended()
        await other.send("EXIT", [("status", 0)])
        assert not one.ended()
        assert await one.receive() is not None, "looking takes nothing away"
        other.close()
        assert one.ended()
        one.close()
        assert one.ended()

    asyncio.run(scene())
