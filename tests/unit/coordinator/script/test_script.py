"""All sruns of one script: their numbers, which step belongs to which, and their common end."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from slurmckpt.coordinator.script import script as scripts
from slurmckpt.coordinator.script.launch import LaunchError
from slurmckpt.coordinator.script.marks import Marks
from slurmckpt.coordinator.script.script import Script, prepare
from tests.unit.awaiting import until
from tests.unit.coordinator.parts import launch
from tests.unit.coordinator.script.world import RUNS, World, dead, payload, play, told


async def launched(
    script: Script, stand_in: int = 0, environment: list[bytes] | None = None, argv: list[bytes] | None = None
) -> int:
    """One srun whose output goes to `out`; gives its wait status."""
    descriptor = os.open(script.directory.parent / "out", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    made = payload([1], environment)
    try:
        made = made.with_words(argv or made.argv, made.environment)
        one, pipes = await script.launch(made, [descriptor], stand_in)
    finally:
        os.close(descriptor)
    await one.ended.wait()
    status = told(pipes)
    pipes.close()
    return status


def test_every_srun_is_numbered_in_the_environment_of_now(tmp_path: Path) -> None:
    world = World(tmp_path, 'echo "$SLURM_CKPT_LAUNCH $SLURM_NODEID $SLURM_NEW"; exit 4')
    world.script.then, world.script.now = {b"SLURM_NODEID": b"1"}, {b"SLURM_NODEID": b"2", b"SLURM_NEW": b"x"}
    world.script.numbered = 4

    async def scene() -> None:
        environment = [b"PATH=/bin", b"SLURM_NODEID=1", b"SLURM_CKPT_LAUNCH=99"]
        assert await launched(world.script, environment=environment) == 4 << 8
        assert await launched(world.script, environment=[b"SLURM_NODEID=3"]) == 4 << 8
        assert list(world.script.launches) == [5]

    play(scene)
    assert (tmp_path / "out").read_text() == "0 2 x\n1 3 x\n"
    assert world.script.numbered == 6


def test_an_srun_that_names_a_node_of_before_runs_on_this_one(tmp_path: Path) -> None:
    world = World(tmp_path, 'echo "$@"')
    nodes = [{b"SLURM_JOB_NODELIST": node, b"SLURM_JOB_NUM_NODES": b"1"} for node in (b"n1", b"n3")]
    world.script.then, world.script.now = nodes
    world.script.former = frozenset([b"n2"])

    async def scene() -> None:
        for name in (b"n1", b"n2", b"n3", b"n4"):
            await launched(world.script, os.getpid(), argv=[b"srun", b"-w", name, b"a.out"])

    play(scene)
    assert (tmp_path / "out").read_text() == "-w n3 a.out\n" * 3 + "-w n4 a.out\n"
    assert [one.renamed for one in world.script.launches.values()] == ["n1", "n2", "", ""]
    # The next node is another one: it is saved as the script wrote it.
    assert world.script.launches[0].payload.argv[2] == b"n1"


def test_an_srun_that_cannot_be_started_is_none_of_the_script(tmp_path: Path) -> None:
    world = World(tmp_path, manner="fails")

    async def scene() -> None:
        with pytest.raises(LaunchError, match="the cgroup is gone"):
            await launched(world.script)
        assert world.script.launches == {}
        world.behave("good")
        assert await launched(world.script) == 0
        # Its number is not given again: the mark may be in an environment somewhere.
        assert list(world.script.launches) == [1]

    play(scene)


def test_those_whose_stand_in_is_gone_are_forgotten(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def scene() -> None:
        await launched(world.script, stand_in=os.getpid())
        await launched(world.script, stand_in=0x7FFFFFFF)
        assert list(world.script.launches) == [0, 1]
        await launched(world.script)
        # The first one has not read its status yet; it may be captured before it does.
        assert list(world.script.launches) == [0, 2]

    play(scene)


def test_sruns_that_would_take_too_much_memory_are_not_captured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user may start any number of stand-ins, each with 6 MiB of environment, and our memory is root's."""
    world, large = World(tmp_path), [b"A=" + b"x" * 100_000]
    monkeypatch.setattr(scripts, "_MAX_HELD", 250_000)

    async def scene() -> None:
        for _ in range(2):
            await launched(world.script, stand_in=os.getpid(), environment=large)
        reason = (
            r"^arguments and environments of all sruns of the script take 3\d\d kB;"
            r" at most 250 kB are kept in memory$"
        )
        with pytest.raises(LaunchError, match=reason):
            await launched(world.script, environment=large)
        assert await launched(world.script, environment=[b"A=b"]) == 0
        # Those that are over, and whose stand-ins know it, count no more.
        for one in world.script.launches.values():
            one.stand_in = 0x7FFFFFFF
        assert await launched(world.script, environment=large) == 0

    play(scene)


def test_the_end_of_all(tmp_path: Path) -> None:
    world = World(tmp_path, RUNS)

    async def scene() -> None:
        out = tmp_path / "out"
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        pipes = [(await world.script.launch(payload([1]), [descriptor], 0))[1] for _ in range(2)]
        await until(lambda: out.read_text() == "ready\nready\n")
        running = world.script.running()
        assert [one.number for one in running] == [0, 1]
        await world.script.end()
        assert world.script.running() == [] and all(one.killed for one in running)
        await until(lambda: all(dead(one.pid) for one in running))
        for each in pipes:
            each.close()
        os.close(descriptor)
        # There is nothing left to end.
        await world.script.end()

    play(scene)


def test_one_that_does_not_end_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(scripts, "_END_SECONDS", 0.05)
    world = World(tmp_path)
    world.script.launches = {0: launch(0)}

    async def scene() -> None:
        await world.script.end()

    play(scene)
    assert "1 sruns of the script do not end" in caplog.text


def environment(top: Path) -> list[bytes]:
    return [b"PATH=" + os.fsencode(top), b"SLURM_NODEID=1", b"A=b", b"SLURM_CKPT_LAUNCH=3"]


def test_what_a_script_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "find_srun", lambda environment, uid, groups: tmp_path / f"srun of {uid} {groups}")
    handed = payload([0], environment(tmp_path))
    run = tmp_path / "run"
    run.mkdir()
    os.umask(0o077)
    script = prepare(handed, os.getpid(), (12, 34, [56]), Path("/libexec"), run, None, Marks())
    os.umask(0o022)
    assert script is not None
    program = tmp_path / "srun of 12 {56, 34}"
    assert script.surroundings.program in (program, tmp_path / "srun of 12 {34, 56}")
    assert (script.surroundings.launcher, script.surroundings.notes) == (Path("/libexec/launcher"), run / "pods")
    assert (script.surroundings.uid, script.surroundings.gid, script.surroundings.groups) == (12, 34, [56])
    assert script.then == script.now == {b"SLURM_NODEID": b"1"}
    assert script.binds == [
        (run / "pod", Path("/libexec/pod")),
        (script.surroundings.program, Path("/libexec/pod/srun")),
        (Path("/libexec/srun"), script.surroundings.program),
    ]
    # The user's processes go through it, whatever the umask of the coordinator is.
    assert stat.S_IMODE((run / "pod").stat().st_mode) == 0o755
    assert (run / "pod" / "srun").read_bytes() == b""
    # Once more in the same incarnation, after a restore that failed.
    then = {b"SLURM_NODEID": b"0"}
    again = prepare(handed, os.getpid(), (12, 34, [56]), Path("/libexec"), run, then, Marks())
    assert again is not None and (again.then, again.now) == (then, {b"SLURM_NODEID": b"1"})


def test_without_an_srun(tmp_path: Path) -> None:
    assert (
        prepare(payload([0], [b"PATH=/nowhere"]), os.getpid(), (12, 34, []), Path("/"), tmp_path, None, Marks()) is None
    )
    assert list(tmp_path.iterdir()) == []
