"""Where stand-ins come in: anybody in the pod may connect and say anything, and no srun may run twice or not at all."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurmckpt.coordinator import patience
from slurmckpt.coordinator import payload as payloads
from slurmckpt.coordinator.pod import Pod
from slurmckpt.coordinator.script import desk as desks
from slurmckpt.coordinator.script.desk import SOCKET, Desk
from slurmckpt.coordinator.wire import Channel
from tests.unit.awaiting import until
from tests.unit.coordinator.parts import memfd, packed, send_raw
from tests.unit.coordinator.script.world import RUNS, World, payload, play

POD = SimpleNamespace(uid=os.getuid(), init_pid=os.getpid())
Scene = Callable[[], Awaitable[None]]


class StandIn:
    """A process of the pod that has connected: this one."""

    def __init__(self, world: World) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(str(world.script.directory / SOCKET))
        self.channel = Channel(self.socket)

    def hand_over(self, given: Sequence[int], fds: Sequence[int] = (), header: Mapping[str, str] | None = None) -> None:
        made = payload(list(fds))
        made.header.update(header or {})
        descriptor = payloads.to_memfd(made)
        send_raw(self.socket, packed("LAUNCH", v=1), [descriptor, *given])
        os.close(descriptor)

    async def heard(self) -> list[str]:
        """All it hears; the descriptors of LAUNCHED are closed, as if it had been killed."""
        words = []
        while (message := await asyncio.wait_for(self.channel.receive(), 60)) is not None:
            words.append(" ".join([message.verb, *(value for _, value in message.pairs)]))
            launched = bool(message.descriptors)
            message.close()
            if launched:
                break
        self.channel.close()
        return words


def serve(world: World, scene: Scene, pod: Any = POD) -> None:
    """Play a scene while the desk is open; when it is closed, nothing of it is left."""

    async def open_desk() -> None:
        desk = Desk(world.script, cast(Pod, pod))
        try:
            await scene()
            await until(lambda: world.script.arriving == 0)
        finally:
            await asyncio.wait_for(desk.close(), 60)
        await world.script.end()
        assert world.script.arriving == 0

    play(open_desk)


def test_the_socket(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def scene() -> None:
        assert stat.S_IMODE((tmp_path / "pod" / SOCKET).stat().st_mode) == 0o666

    serve(world, scene)
    # In the same place again, at the next try of a restore.
    serve(world, scene)


def test_an_srun_of_the_script(tmp_path: Path) -> None:
    world = World(tmp_path, "echo from srun; exit 3")

    async def scene() -> None:
        stand_in = StandIn(world)
        out = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
        stand_in.hand_over([out], fds=[1])
        os.close(out)
        message = await asyncio.wait_for(stand_in.channel.receive(), 60)
        assert message is not None and message.verb == "LAUNCHED"
        (launch,) = world.script.launches.values()
        assert launch.stand_in == os.getpid()
        signals, status = message.descriptors
        assert launch.signal_key == f"pipe:[{os.fstat(signals).st_ino}]"
        assert launch.status_key == f"pipe:[{os.fstat(status).st_ino}]"
        # It still has its socket, which no image may hold.
        await launch.ended.wait()
        assert world.script.arriving == 1
        stand_in.channel.close()
        await until(lambda: world.script.arriving == 0)
        assert os.read(status, 5) == (3 << 8).to_bytes(4, "little")
        # Nobody else holds the other ends.
        assert os.read(status, 5) == b""
        with pytest.raises(BrokenPipeError):
            os.write(signals, b"1234")
        message.close()

    serve(world, scene)
    assert (tmp_path / "out").read_text() == "from srun\n"


def test_a_stand_in_whose_srun_is_slow_to_start_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "_REASSURE_SECONDS", 0.01)
    world = World(tmp_path, "sleep 0.2", manner="late")

    async def scene() -> None:
        stand_in = StandIn(world)
        null = os.open(os.devnull, os.O_RDWR)
        stand_in.hand_over([null], fds=[1])
        os.close(null)
        *before, last = await stand_in.heard()
        assert set(before) == {"WAIT"} and last == "LAUNCHED"

    serve(world, scene)


def test_a_stand_in_that_is_killed_ends_its_srun(tmp_path: Path) -> None:
    world = World(tmp_path, RUNS)

    async def scene() -> None:
        stand_in = StandIn(world)
        out = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
        stand_in.hand_over([out], fds=[1])
        os.close(out)
        assert await stand_in.heard() == ["LAUNCHED"]
        await until(lambda: world.script.running() == [])

    serve(world, scene)


def test_a_stand_in_that_is_killed_before_its_answer(tmp_path: Path) -> None:
    world = World(tmp_path, RUNS)

    async def scene() -> None:
        stand_in = StandIn(world)
        stand_in.hand_over([])
        stand_in.channel.close()
        await until(lambda: bool(world.script.launches) or world.script.arriving > 0)
        await until(lambda: world.script.arriving == 0)
        await until(lambda: world.script.running() == [])

    serve(world, scene)


def test_a_stand_in_that_keeps_its_socket_is_launched_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(desks, "_HAND_OVER_SECONDS", 0.5)
    world = World(tmp_path)

    async def scene() -> None:
        stand_in = StandIn(world)
        stand_in.hand_over([])
        message = await asyncio.wait_for(stand_in.channel.receive(), 60)
        assert message is not None and message.verb == "LAUNCHED"
        message.close()
        send_raw(stand_in.socket, packed("LAUNCH", v=1), [0, 1, 2])
        assert await stand_in.heard() == []
        keeper = StandIn(world)
        keeper.hand_over([])
        assert await keeper.heard() == ["LAUNCHED"]

    serve(world, scene)
    assert world.script.numbered == 2


def handed_over(fds: str) -> Callable[[StandIn], None]:
    return lambda stand_in: stand_in.hand_over([0], header={"fds": fds})


def sent(data: bytes, descriptors: Sequence[int] = ()) -> Callable[[StandIn], None]:
    return lambda stand_in: send_raw(stand_in.socket, data, descriptors)


def with_memory(content: bytes) -> Callable[[StandIn], None]:
    def send(stand_in: StandIn) -> None:
        descriptor = memfd(content)
        send_raw(stand_in.socket, packed("LAUNCH", v=1), [descriptor])
        os.close(descriptor)

    return send


@pytest.mark.parametrize(
    ("say", "complaint"),
    [
        (sent(b"x"), "a packet that does not end with a NUL byte"),
        (sent(packed("HELLO", v=1)), "HELLO where LAUNCH with descriptors is expected"),
        (sent(packed("LAUNCH", v=1)), "LAUNCH where LAUNCH with descriptors is expected"),
        (sent(packed("LAUNCH"), [0]), "LAUNCH without v="),
        (sent(packed("LAUNCH", v=2), [0]), "LAUNCH where LAUNCH with descriptors is expected"),
        (sent(packed("LAUNCH", v="x"), [0]), "LAUNCH with v='x'; a number is needed"),
        (sent(packed("LAUNCH", v=1), [0]), "a payload that is not a memfd"),
        (with_memory(b"nonsense"), "a payload without a header"),
        (with_memory(b"argc=1\0\0"), "a payload with argc=1, envc=0 and 0 words"),
        (handed_over(fds="0,1"), "LAUNCH with 1 descriptors for fds='0,1'"),
        (handed_over(fds=""), "LAUNCH with 1 descriptors for fds=''"),
        (handed_over(fds="x"), "LAUNCH with 1 descriptors for fds='x'"),
        (handed_over(fds="1,1"), "a payload with fds='1,1', which names a descriptor twice"),
        (handed_over(fds="two\nlines"), "LAUNCH with 1 descriptors for fds='two\\nlines'"),
    ],
)
def test_whatever_is_no_hand_over_runs_directly(tmp_path: Path, say: Callable[[StandIn], None], complaint: str) -> None:
    world = World(tmp_path)

    async def scene() -> None:
        stand_in = StandIn(world)
        say(stand_in)
        said, direct = await stand_in.heard()
        assert said.startswith(f"SAY slurmckpt: this srun is not captured: {complaint}")
        assert (direct, "\n" in said) == ("DIRECT", False)

    serve(world, scene)
    assert world.script.launches == {}


@pytest.mark.parametrize("manner", ["fails", "silent"])
def test_an_srun_that_cannot_be_launched_runs_directly(tmp_path: Path, manner: str) -> None:
    world = World(tmp_path, manner=manner)

    async def scene() -> None:
        stand_in = StandIn(world)
        stand_in.hand_over([])
        said, direct = await stand_in.heard()
        assert said.startswith("SAY slurmckpt: this srun is not captured: srun cannot be started: the ")
        assert direct == "DIRECT"

    serve(world, scene)
    assert world.script.launches == {}


def test_one_that_says_nothing_is_told_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desks, "_HAND_OVER_SECONDS", 0.05)
    world = World(tmp_path)

    async def scene() -> None:
        assert await StandIn(world).heard() == [
            "SAY slurmckpt: this srun is not captured: no word from its stand-in",
            "DIRECT",
        ]

    serve(world, scene)


def test_one_that_says_nothing_counts_as_arriving(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def scene() -> None:
        stand_in = StandIn(world)
        await until(lambda: world.script.arriving == 1)
        stand_in.channel.close()

    serve(world, scene)


def test_another_user_gets_nothing_launched(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def scene() -> None:
        # Nor can it keep captures waiting by saying nothing.
        stand_in = StandIn(world)
        assert await stand_in.heard() == [
            f"SAY slurmckpt: this srun is not captured: a connection of user id {os.getuid()}",
            "DIRECT",
        ]
        stand_in = StandIn(world)
        stand_in.hand_over([])
        assert "LAUNCHED" not in await stand_in.heard()

    serve(world, scene, SimpleNamespace(uid=os.getuid() + 1, init_pid=os.getpid()))
    assert world.script.numbered == 0


def test_a_process_outside_of_the_pod_gets_nothing_launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    real = os.readlink
    monkeypatch.setattr(os, "readlink", lambda path: "pid:[1]" if path == "/proc/77/ns/pid" else real(path))

    async def scene() -> None:
        stand_in = StandIn(world)
        stand_in.hand_over([])
        said, direct = await stand_in.heard()
        assert said.endswith(f"a connection of process {os.getpid()}, which is not in the pod of the batch script")
        assert direct == "DIRECT"

    serve(world, scene, SimpleNamespace(uid=os.getuid(), init_pid=77))
    assert world.script.numbered == 0


def test_a_pod_that_is_not_built_yet(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def scene() -> None:
        stand_in = StandIn(world)
        stand_in.hand_over([])
        assert (await stand_in.heard())[-1] == "DIRECT"

    serve(world, scene, SimpleNamespace(uid=os.getuid(), init_pid=0))


@pytest.mark.parametrize("manner", ["good", "hangs"])
def test_closing_while_stand_ins_are_served(tmp_path: Path, manner: str) -> None:
    world = World(tmp_path, RUNS, manner)

    async def scene() -> None:
        desk = Desk(world.script, cast(Pod, POD))
        silent, waiting = StandIn(world), StandIn(world)
        waiting.hand_over([])
        await until(lambda: world.script.arriving == 2 and bool(world.script.launches))
        await asyncio.wait_for(desk.close(), 60)
        await asyncio.wait_for(world.script.end(), 60)
        assert (world.script.arriving, world.script.running()) == (0, [])
        assert await silent.heard() == []
        # The end of the connection: it runs directly, or it was launched before that.
        assert await waiting.heard() in ([], ["LAUNCHED"])

    play(scene)


def test_running_out_of_descriptors_is_not_the_end_of_the_desk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(desks, "_PAUSE_SECONDS", 0.01)
    world = World(tmp_path)

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        real, failures = loop.sock_accept, iter([24, 24])

        async def accept(listener: socket.socket) -> Any:
            for number in failures:
                raise OSError(number, os.strerror(number))
            return await real(listener)

        monkeypatch.setattr(loop, "sock_accept", accept)
        stand_in = StandIn(world)
        stand_in.hand_over([])
        assert await stand_in.heard() == ["LAUNCHED"]

    serve(world, scene)
    assert caplog.text.count("an srun of the script cannot be accepted: [Errno 24] Too many open files") == 2


def test_many_at_once(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def scene() -> None:
        stand_ins = [StandIn(world) for _ in range(12)]
        for stand_in in stand_ins:
            stand_in.hand_over([])
        found = await asyncio.gather(*(stand_in.heard() for stand_in in stand_ins))
        # On a busy machine some have to be told to wait.
        assert [words[-1] for words in found] == ["LAUNCHED"] * 12 and set().union(*found) <= {"WAIT", "LAUNCHED"}

    serve(world, scene)
    assert world.script.numbered == 12
