"""What the plugin says is checked, what the shim hands over is taken as hostile."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmckpt.coordinator import held
from slurmckpt.coordinator.task import BATCH_STEP, Task, external_key, parse_hello, parse_start
from slurmckpt.coordinator.wire import Channel, Message, WireError
from tests.unit.coordinator.parts import (
    channels,
    good_payload,
    hello,
    memfd,
    no_descriptor_is_lost,
    payload,
    start,
    task,
)

HELLO = {"v": 1, "job": 7, "step": 0, "task": 1, "gtask": 5, "ntasks": 2, "nnodes": 3, "uid": 1000, "gid": 100}


def greeting(**changes: object) -> Message:
    values = HELLO | changes
    return Message("HELLO", [(key, str(value)) for key, value in values.items() if value is not None])


def test_hello() -> None:
    found = parse_hello(greeting(unknown="ignored"))
    assert (found.job, found.step, found.task, found.gtask) == (7, 0, 1, 5)
    assert (found.ntasks, found.nnodes, found.uid, found.gid) == (2, 3, 1000, 100)
    assert found.step_name == "0"


def test_the_batch_script_is_a_step_of_its_own_name() -> None:
    assert BATCH_STEP == 4294967291
    assert parse_hello(greeting(step=BATCH_STEP)).step_name == "batch"


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (Message("START", [("v", "1")]), "START where HELLO is expected"),
        (greeting(v=2), "a plugin of protocol 2; this coordinator speaks 1"),
        (greeting(v=None), "HELLO without v="),
        (greeting(gid=None), "HELLO without gid="),
        (greeting(uid="root"), "HELLO with uid='root'"),
        (greeting(task=2), "HELLO of task 2 of 2"),
        (greeting(task=-1), "HELLO of task -1 of 2"),
        (greeting(task=0, ntasks=0), "HELLO of task 0 of 0"),
    ],
)
def test_hello_that_is_none(message: Message, complaint: str) -> None:
    with pytest.raises(WireError, match=complaint):
        parse_hello(message)


def parsed(make: Callable[[], list[int]]) -> Task:
    """The task of START with these descriptors; it is closed by the caller."""

    async def scene() -> Task:
        one, other = channels()
        other.close()
        try:
            return parse_start(hello(), 4711, one, start(make()))
        except BaseException:
            one.close()
            raise

    return asyncio.run(scene())


def test_start(tmp_path: Path) -> None:
    with no_descriptor_is_lost():
        reader, writer = os.pipe()

        def make() -> list[int]:
            log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
            return [good_payload([1, 7], [b"/usr/bin/prog", b"a b", b""]), memfd(bytes(held.SIZE)), os.dup(writer), log]

        found = parsed(make)
        status = (tmp_path / "log").stat()
        assert list(found.descriptors) == [1, 7]
        assert found.keys[1] == f"pipe:[{os.fstat(writer).st_ino}]"
        assert found.keys[7].endswith(f":{status.st_ino:x}]")
        assert found.command == "/usr/bin/prog a b "
        assert found.argv_digest == hashlib.sha256(b"/home/jane\0prog\0a b\0").hexdigest()
        assert (found.shim_pid, found.hello.job) == (4711, 7)
        os.close(writer)
        os.set_blocking(reader, False)
        with pytest.raises(BlockingIOError):
            os.read(reader, 1)
        found.close()
        assert os.read(reader, 1) == b""
        found.close()
        os.close(reader)


def test_the_spool_directory_of_the_script_does_not_count_but_its_directory_of_work_does() -> None:
    def digest(program: bytes, cwd: str) -> str:
        found = parsed(lambda: [good_payload([], [program, b"x"], cwd), memfd(bytes(held.SIZE))])
        found.close()
        return found.argv_digest

    first = digest(b"/var/spool/slurmd/n1/job00007/slurm_script", "/home/jane")
    assert first == digest(b"/var/spool/slurmd/n2/job00007/slurm_script", "/home/jane")
    assert first != digest(b"/var/spool/slurmd/n1/job00007/other", "/home/jane")
    assert first != digest(b"/var/spool/slurmd/n1/job00007/slurm_script", "/home/jane/b")


def memory() -> int:
    return memfd(bytes(held.SIZE))


def null() -> int:
    return os.open("/dev/null", os.O_RDWR)


def on_disk(size: int) -> int:
    descriptor = os.open("/var/tmp", os.O_TMPFILE | os.O_RDWR)
    os.truncate(descriptor, size)
    return descriptor


def bad_fifo() -> int:
    reader, writer = os.pipe()
    os.close(writer)
    return reader


HEADER = {"v": 1, "argc": 1, "fds": ""}
HOSTILE: list[tuple[str, Callable[[], list[int]], str]] = [
    ("nothing", lambda: [], "START where START with descriptors"),
    ("payload only", lambda: [good_payload([])], "START where START with descriptors"),
    ("a pipe as payload", lambda: [bad_fifo(), memory()], "a payload that is not a memfd"),
    ("a file on disk as payload", lambda: [on_disk(100), memory()], "a payload that is not a memfd"),
    ("a directory as payload", lambda: [os.open("/", os.O_RDONLY), memory()], "a payload that is not a memfd"),
    ("empty", lambda: [memfd(b""), memory()], "a payload without a header"),
    ("no end of the header", lambda: [memfd(b"v=1\0argc=1\0"), memory()], "a payload without a header"),
    ("only zeros", lambda: [memfd(bytes(100)), memory()], "a payload with argc=''"),
    ("a long header", lambda: [memfd(b"a=" + b"x" * 70_000 + b"\0\0"), memory()], "a payload without a header"),
    ("no argc", lambda: [payload({"v": 1}, [b"a"]), memory()], "a payload with argc=''"),
    ("argc zero", lambda: [payload(HEADER | {"argc": 0}, [b"a"]), memory()], "a payload with argc='0'"),
    ("argc negative", lambda: [payload(HEADER | {"argc": -1}, [b"a"]), memory()], "a payload with argc='-1'"),
    ("argc too large", lambda: [payload(HEADER | {"argc": 2}, [b"a"]), memory()], "argc=2, envc=0 and 1 words"),
    ("argc huge", lambda: [payload(HEADER | {"argc": "9" * 5000}, [b"a"]), memory()], "argc='99999999999999999999'"),
    (
        "fewer descriptors than named",
        lambda: [good_payload([0, 1]), memory(), null()],
        "START with 1 descriptors for 2",
    ),
    ("more descriptors than named", lambda: [good_payload([0]), memory(), null(), null()], "2 descriptors for 1"),
    ("a number twice", lambda: [good_payload([1, 1]), memory(), null(), null()], "names a descriptor twice"),
    ("no numbers", lambda: [payload(HEADER | {"fds": "x,-1"}, [b"a"]), memory(), null()], "1 descriptors for 0"),
    (
        "a number of thousands of digits",
        lambda: [payload(HEADER | {"fds": "1" * 5000}, [b"a"]), memory(), null()],
        "1 descriptors for 0",
    ),
    ("held lines of another size", lambda: [good_payload([]), memfd(b"x")], "held lines of 1 bytes"),
    ("held lines on disk", lambda: [good_payload([]), on_disk(held.SIZE)], "held lines that is not a memfd"),
]


@pytest.mark.parametrize(("make", "complaint"), [case[1:] for case in HOSTILE], ids=[case[0] for case in HOSTILE])
def test_a_hostile_hand_over_is_refused_and_nothing_of_it_stays_open(
    make: Callable[[], list[int]], complaint: str
) -> None:
    with no_descriptor_is_lost(), pytest.raises(WireError, match=complaint):
        parsed(make)


def test_a_payload_beyond_the_limit_is_not_read() -> None:
    def make() -> list[int]:
        descriptor = memfd(b"")
        os.truncate(descriptor, 1 << 40)
        return [descriptor, memory()]

    with no_descriptor_is_lost(), pytest.raises(WireError, match="a payload of 1099511627776 bytes"):
        parsed(make)


VALUE = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=10) | st.sampled_from(
    ["0", "1", "2", "0,1", "1,,2", "1" * 5000]
)


@given(
    st.dictionaries(st.sampled_from(["v", "argc", "fds", "relays", "cwd"]), VALUE) | st.just({"argc": "1"}),
    st.binary(max_size=100),
    st.integers(0, 3),
)
def test_any_payload_gives_a_task_or_a_wire_error(header: dict[str, str], rest: bytes, more: int) -> None:
    with no_descriptor_is_lost():
        try:
            found = parsed(lambda: [payload(header, [rest]), memory(), *(null() for _ in range(more))])
        except WireError:
            return
        assert len(found.descriptors) + len(found.relays) == more
        found.close()


def test_a_descriptor_that_cannot_be_named_costs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message's descriptors are closed, whatever goes wrong after they were counted."""
    names = iter(["pipe:[1]"])

    def fails_on_the_second(descriptor: int) -> str:
        for name in names:
            return name
        raise WireError(f"descriptor {descriptor} has no mount id")

    monkeypatch.setattr("slurmckpt.coordinator.task.external_key", fails_on_the_second)
    with no_descriptor_is_lost(), pytest.raises(WireError, match="has no mount id"):
        parsed(lambda: [good_payload([1, 2]), memory(), null(), null()])


def test_external_keys(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    try:
        assert external_key(reader) == external_key(writer) == os.readlink(f"/proc/self/fd/{reader}")
    finally:
        os.close(reader)
        os.close(writer)
    with socket.socket(socket.AF_UNIX) as one:
        assert external_key(one.fileno()) == os.readlink(f"/proc/self/fd/{one.fileno()}")
    with (tmp_path / "file").open("w") as file:
        # The mount by its id in mountinfo, whose first field it is (proc_pid_mountinfo(5)).
        mounts = {int(line.split()[0]) for line in Path("/proc/self/mountinfo").read_text().splitlines()}
        mount, _, inode = external_key(file.fileno()).removeprefix("file[").removesuffix("]").partition(":")
        assert int(mount, 16) in mounts
        assert int(inode, 16) == os.fstat(file.fileno()).st_ino


def test_run_directly_tells_the_shim_and_gives_everything_up() -> None:
    async def scene() -> None:
        one, other = channels()
        await task(one, {0: null()}).run_directly()
        message = await other.receive()
        assert message is not None and message.verb == "DIRECT"
        assert await other.receive() is None
        other.close()

    with no_descriptor_is_lost():
        asyncio.run(scene())


def test_run_directly_of_a_dead_shim_gives_everything_up_too() -> None:
    async def scene() -> None:
        one, other = channels()
        other.close()
        with pytest.raises(ConnectionError):
            await task(one, {0: null()}).run_directly()

    with no_descriptor_is_lost():
        asyncio.run(scene())


def test_say() -> None:
    async def scene() -> str:
        one, other = channels()
        speaking = task(one)
        await speaking.say("hello")
        message = await other.receive()
        assert message is not None and message.verb == "SAY"
        speaking.close()
        other.close()
        return message.text("text")

    assert asyncio.run(scene()) == "hello"


def test_a_channel_is_closed_by_its_caller_when_start_is_refused() -> None:
    async def scene() -> None:
        one, other = channels()
        with pytest.raises(WireError):
            parse_start(hello(), 1, one, Message("GO", []))
        assert isinstance(one, Channel) and one.descriptor >= 0
        one.close()
        other.close()

    asyncio.run(scene())
