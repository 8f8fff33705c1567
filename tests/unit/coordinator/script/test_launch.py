"""One real srun under its launcher: what it gets, how it ends, and whatever may go wrong with either."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from slurmckpt.coordinator.proc import parent_of, start_time
from slurmckpt.coordinator.script import launch as launches
from slurmckpt.coordinator.script.launch import Launch, LaunchError, Pipes
from tests.unit.awaiting import until
from tests.unit.coordinator.parts import launch as plain
from tests.unit.coordinator.parts import no_descriptor_is_lost
from tests.unit.coordinator.script.world import (
    RUNS,
    World,
    dead,
    launch_of,
    payload,
    play,
    signal_word,
    told,
    two_pipes,
)
from tests.unit.pod.harness import build


@pytest.fixture(scope="session")
def built() -> None:
    if os.geteuid() != 0 or not shutil.which("make") or not shutil.which("cc"):
        pytest.skip("the launcher needs root, make and cc")
    build("launcher")


@pytest.fixture(params=["good", "real"], ids=["double", "real"])
def manner(request: pytest.FixtureRequest) -> str:
    """Of the launcher: the double, which the other tests rely on, must do as the program does."""
    if request.param == "real":
        request.getfixturevalue("built")
    return str(request.param)


def output(path: Path) -> dict[int, int]:
    """Standard streams, as a script gives them to its srun: /dev/null and a file."""
    return {0: os.open("/dev/null", os.O_RDONLY), 1: os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)}


def close(given: dict[int, int]) -> None:
    for descriptor in given.values():
        os.close(descriptor)


def test_an_srun_from_its_start_to_its_end(tmp_path: Path, manner: str) -> None:
    world = World(tmp_path, 'echo "$A $0 $*"; echo "to 7" >&7; exit 3', manner)

    async def scene() -> None:
        given = output(tmp_path / "out") | {7: os.open(tmp_path / "seven", os.O_WRONLY | os.O_CREAT)}
        with two_pipes() as pipes:
            launch = launch_of(given, pipes)
            await world.start(launch, pipes, given)
            assert launch.pid > 0 and launch.status is None
            await launch.ended.wait()
            assert launch.status == 3 << 8
            assert told(pipes) == 3 << 8
        close(given)

    play(scene)
    assert (tmp_path / "out").read_text() == f"b {world.program} ./train.py\n"
    assert (tmp_path / "seven").read_text() == "to 7\n"
    assert list(world.notes.iterdir()) == []


async def running(world: World, launch: Launch, pipes: Pipes, given: dict[int, int]) -> None:
    """Start an srun that RUNS, and wait until it does."""
    await world.start(launch, pipes, given)
    await until(lambda: (world.top / "out").read_text() == "ready\n")


def test_signals_go_to_it(tmp_path: Path, manner: str) -> None:
    world = World(tmp_path, RUNS, manner)

    async def scene() -> None:
        given = output(tmp_path / "out")
        with two_pipes() as pipes:
            launch = launch_of(given, pipes)
            await running(world, launch, pipes, given)
            note = (world.notes / "launch-0.pid").read_text()
            assert note == f"{launch.pid} {start_time(launch.pid)}\n"
            assert stat.S_IMODE(world.notes.stat().st_mode) == 0o700
            os.write(pipes.signals_write, signal_word(signal.SIGUSR1))
            await launch.ended.wait()
            assert (launch.status, told(pipes)) == (7 << 8, 7 << 8)
        close(given)

    play(scene)


def test_it_ends_with_its_stand_in(tmp_path: Path, manner: str) -> None:
    world = World(tmp_path, RUNS, manner)

    async def scene() -> None:
        given = output(tmp_path / "out")
        with two_pipes() as pipes:
            launch = launch_of(given, pipes)
            await running(world, launch, pipes, given)
            os.close(pipes.signals_write)
            await launch.ended.wait()
            assert launch.status == signal.SIGKILL
        close(given)

    play(scene)


@pytest.mark.parametrize("whom", ["srun", "launcher"])
def test_one_that_is_killed(tmp_path: Path, manner: str, whom: str) -> None:
    world = World(tmp_path, RUNS, manner)

    async def scene() -> None:
        given = output(tmp_path / "out")
        with two_pipes() as pipes:
            launch = launch_of(given, pipes)
            await running(world, launch, pipes, given)
            os.kill(launch.pid if whom == "srun" else parent_of(launch.pid), signal.SIGKILL)
            await launch.ended.wait()
            assert launch.status == signal.SIGKILL
            # PR_SET_PDEATHSIG
            await until(lambda: dead(launch.pid))
            # The stand-in hears it as well, or sees the end of the pipe.
            os.close(pipes.status_write)
            assert os.read(pipes.status_read, 4) in (signal_word(signal.SIGKILL), b"")
        close(given)

    play(scene)


@pytest.mark.parametrize("stopped", ["neither", "srun", "launcher"])
def test_it_can_be_ended_although_the_user_has_stopped_it(tmp_path: Path, manner: str, stopped: str) -> None:
    world = World(tmp_path, RUNS, manner)

    async def scene() -> None:
        given = output(tmp_path / "out")
        with two_pipes() as pipes:
            launch = launch_of(given, pipes)
            await running(world, launch, pipes, given)
            if stopped != "neither":
                os.kill(launch.pid if stopped == "srun" else parent_of(launch.pid), signal.SIGSTOP)
            launch.kill()
            await asyncio.wait_for(launch.ended.wait(), 60)
            assert (launch.status, launch.killed) == (signal.SIGKILL, True)
            await until(lambda: dead(launch.pid))
            # Once more does no harm.
            launch.kill()
        close(given)

    play(scene)


def test_an_srun_that_has_ended_before_we_look_at_it_has_run(tmp_path: Path) -> None:
    """Otherwise its stand-in would be told to run it again."""
    world = World(tmp_path, "echo once; exit 5", manner="late")

    async def scene() -> None:
        given = output(tmp_path / "out")
        with two_pipes() as pipes:
            launch = launch_of(given, pipes)
            await world.start(launch, pipes, given)
            await launch.ended.wait()
            assert (launch.status, told(pipes)) == (5 << 8, 5 << 8)
        close(given)

    play(scene)
    assert (tmp_path / "out").read_text() == "once\n"


def test_a_process_that_is_not_its_launchers_child_is_not_its_srun(tmp_path: Path) -> None:
    """srun may have ended, and its number may be another process's by now."""
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1)
    world = World(tmp_path, RUNS, manner=str(stranger.pid))

    async def scene() -> None:
        given = output(tmp_path / "out")
        with two_pipes() as pipes:
            launch = launch_of(given, pipes)
            await world.start(launch, pipes, given)
            launch.kill()
            await asyncio.wait_for(launch.ended.wait(), 60)
        close(given)

    play(scene)
    assert stranger.poll() is None
    stranger.communicate(b"\n", timeout=60)
    assert stranger.returncode == 0


@pytest.mark.parametrize(
    ("manner", "reason"),
    [
        ("fails", "the cgroup is gone"),
        ("silent", "the launcher ended without a word"),
        ("garbage", "STARTED with pid='many'; a number is needed"),
        ("hangs", "no answer"),
        ("0", "[Errno 22] Invalid argument"),
        ("missing", "[Errno 2] No such file or directory"),
        ("denied", "[Errno 13] Permission denied"),
    ],
)
def test_an_srun_that_cannot_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manner: str, reason: str
) -> None:
    world = World(tmp_path, RUNS, manner)
    if manner == "missing":
        world.launcher.unlink()
    if manner == "denied":
        world.launcher.chmod(0o644)
    if manner == "hangs":
        monkeypatch.setattr(launches, "_START_SECONDS", 0.5)

    async def scene() -> None:
        given = output(tmp_path / "out")
        with two_pipes() as pipes:
            launch = launch_of(given, pipes)
            with pytest.raises(LaunchError) as raised:
                await world.start(launch, pipes, given)
            assert str(raised.value).startswith(f"srun cannot be started: {reason}")
            # Whoever waits for its end need not.
            assert launch.ended.is_set()
            launch.kill()
        close(given)

    play(scene)


def test_more_descriptors_than_a_packet_can_carry(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def scene() -> None:
        given = dict.fromkeys(range(251), os.open("/dev/null", os.O_RDONLY))
        with two_pipes() as pipes:
            launch = launch_of(given, pipes)
            with pytest.raises(LaunchError, match="srun cannot be started"):
                await world.start(launch, pipes, given)
        os.close(given[0])

    play(scene)


def test_a_start_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, RUNS, "hangs")

    async def scene() -> None:
        given = output(tmp_path / "out")
        with two_pipes() as pipes:
            launch = launch_of(given, pipes)
            starting = asyncio.create_task(world.start(launch, pipes, given))
            await asyncio.wait([starting], timeout=0.5)
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
            assert launch.ended.is_set()
        close(given)
        mine = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        assert [pid for pid in mine if "launcher" in Path(f"/proc/{pid}/cmdline").read_text()] == []

    play(scene)


def test_without_a_note_it_runs_all_the_same(tmp_path: Path) -> None:
    world = World(tmp_path, "exit 4")
    world.notes.write_text("no directory")

    async def scene() -> None:
        given = output(tmp_path / "out")
        with two_pipes() as pipes:
            launch = launch_of(given, pipes)
            await world.start(launch, pipes, given)
            await launch.ended.wait()
            assert launch.status == 4 << 8
        close(given)

    play(scene)


def test_pipes_are_all_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.pipe2, iter([True, False])

    def pipe2(flags: int) -> tuple[int, int]:
        if not next(calls):
            raise OSError(24, "Too many open files")
        return real(flags)

    monkeypatch.setattr(os, "pipe2", pipe2)
    with no_descriptor_is_lost(), pytest.raises(OSError, match="Too many open files"):
        Pipes.new()


FILE, PIPE, NULL, SOCKET = stat.S_IFREG, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK


@pytest.mark.parametrize(
    ("source", "out", "errors", "connected", "fed"),
    [
        (NULL, FILE, FILE, False, False),
        (NULL, NULL, NULL, False, False),
        (NULL, PIPE, FILE, True, False),
        (NULL, FILE, PIPE, True, False),
        (NULL, SOCKET, FILE, True, False),
        (FILE, FILE, FILE, True, True),
        (PIPE, NULL, NULL, True, True),
        (SOCKET, FILE, FILE, True, False),
    ],
)
def test_what_binds_an_srun_to_its_script(source: int, out: int, errors: int, connected: bool, fed: bool) -> None:
    launch = plain(source=source, output=out, errors=errors)
    assert (launch.is_connected, launch.is_fed) == (connected, fed)
    assert launch.pipes_inside == [number for number, mode in enumerate((source, out, errors)) if mode == PIPE]


def test_an_srun_without_standard_streams() -> None:
    launch = Launch(0, payload([]), {}, "pipe:[1]", "pipe:[2]")
    assert (launch.is_connected, launch.is_fed, launch.pipes_inside) == (True, False, [])
