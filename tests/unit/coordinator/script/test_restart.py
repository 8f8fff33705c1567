"""The sruns of a restored script: each gets the descriptors of its restored stand-in, and its input again."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from slurmckpt.capture import procfs
from slurmckpt.capture.processes import Process
from slurmckpt.coordinator.script import restart
from slurmckpt.coordinator.script.launch import Launch, LaunchError
from slurmckpt.errors import Refused
from slurmckpt.store.manifest import LaunchImage, StepImage
from tests.unit.coordinator.parts import image, no_descriptor_is_lost
from tests.unit.coordinator.script.world import World, payload, play

PID = 120


class Restored:
    """A script that has come back with one process, which is the stand-in of every srun."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch, srun: str, manner: str = "good") -> None:
        self.world = World(top, srun, manner)
        self.top = top
        (top / "input").write_text("line 1\nline 2\n")
        with (top / "input").open() as source, (top / "out").open("w") as out:
            self.stand_in = subprocess.Popen(["/bin/sleep", "1000"], stdin=source, stdout=out)
        self.directory = top / "batch"
        (self.directory / "launches").mkdir(parents=True)
        process = Process(self.stand_in.pid, PID, 1, 0, "srun", "", "S", 0)
        monkeypatch.setattr(restart, "pod_processes", lambda init_pid: [process])

    def srun(self, number: int, numbers: Sequence[int], **changes: object) -> LaunchImage:
        name = f"launches/{number}"
        (self.directory / name).write_bytes(payload(list(numbers)).to_bytes())
        signals, status = f"pipe:[{number}1]", f"pipe:[{number}2]"
        return replace(LaunchImage(number, PID, "4", None, signals, status, name, None), **changes)  # type: ignore[arg-type]

    def batch(self, *sruns: LaunchImage) -> StepImage:
        return replace(image(step="batch"), launches=list(sruns))

    async def restart(self, batch: StepImage) -> tuple[list[Launch], list[bytes]]:
        """The launches, when they have ended, and what the stand-ins read."""
        pipes = restart.new_pipes(batch)
        try:
            inherited = restart.inherited(batch, pipes)
            assert len(inherited) == 2 * len(batch.launches)
            launches = await restart.restart(self.world.script, batch, self.directory, 4711, pipes)
            for launch in launches:
                await launch.ended.wait()
            read = []
            for each in batch.launches:
                os.set_blocking(inherited[each.status_pipe], False)
                read.append(os.read(inherited[each.status_pipe], 5))
            return launches, read
        finally:
            for pair in pipes.values():
                pair.close()
            self.stand_in.kill()
            self.stand_in.wait()


def test_an_srun_goes_on_with_the_descriptors_of_its_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Restored(tmp_path, monkeypatch, 'echo "$SLURM_CKPT_LAUNCH: $(cat)"; exit 3')
    (here.directory / "launches" / "7.input").write_bytes(b"line 2\n")

    async def scene() -> None:
        batch = here.batch(here.srun(7, [0, 1], input="launches/7.input"))
        (launch,), read = await here.restart(batch)
        assert read == [struct.pack("=i", 3 << 8)]
        assert (launch.number, launch.step, launch.stand_in) == (7, "4", here.stand_in.pid)
        assert here.world.script.launches == {7: launch}
        assert launch.is_fed

    # srun had read all of it, its step only the first line.
    pidfd = os.pidfd_open(here.stand_in.pid)
    shared = procfs.borrow_descriptor(pidfd, 0)
    os.lseek(shared, 0, os.SEEK_END)
    os.close(shared)
    os.close(pidfd)
    play(scene)
    assert (tmp_path / "out").read_text() == "0: line 2\n"


def test_one_that_had_ended_hears_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Restored(tmp_path, monkeypatch, "echo again")

    async def scene() -> None:
        ended = replace(here.srun(7, []), status=9, payload=None)
        assert await here.restart(here.batch(ended)) == ([], [struct.pack("=i", 9)])
        assert here.world.script.launches == {}

    play(scene)
    assert (tmp_path / "out").read_text() == ""


def test_a_stand_in_that_did_not_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Restored(tmp_path, monkeypatch, "echo again")

    async def scene() -> None:
        with pytest.raises(Refused, match=r"^the stand-in of srun 7 did not come back$"):
            await here.restart(here.batch(here.srun(7, [], pid=PID + 1)))

    play(scene)


@pytest.mark.parametrize("manner", ["fails", "silent"])
def test_an_srun_that_cannot_be_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manner: str) -> None:
    here = Restored(tmp_path, monkeypatch, "echo again", manner)

    async def scene() -> None:
        with pytest.raises(LaunchError, match="srun cannot be started"):
            await here.restart(here.batch(here.srun(7, [1])))
        # Whoever ends the script now does not wait for it.
        assert here.world.script.running() == []
        await here.world.script.end()

    play(scene)


def test_a_descriptor_that_its_stand_in_does_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Restored(tmp_path, monkeypatch, "echo again")

    async def scene() -> None:
        with pytest.raises(OSError, match="Bad file descriptor"):
            await here.restart(here.batch(here.srun(7, [0, 1, 200])))
        assert here.world.script.launches == {}

    play(scene)


def test_several_and_one_of_them_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Restored(tmp_path, monkeypatch, "while :; do sleep 0.02; done")

    async def scene() -> None:
        with pytest.raises(Refused):
            await here.restart(here.batch(here.srun(7, [1]), here.srun(8, [1], pid=PID + 1)))
        (running,) = here.world.script.launches.values()
        # Its stand-in's pipes are closed; and the script ends what is left.
        await here.world.script.end()
        assert running.status == signal.SIGKILL

    play(scene)


def test_pipes_for_all_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.pipe2, iter([True] * 3 + [False])

    def pipe2(flags: int) -> tuple[int, int]:
        if not next(calls):
            raise OSError(24, "Too many open files")
        return real(flags)

    sruns = [LaunchImage(n, PID, "", None, f"pipe:[{n}1]", f"pipe:[{n}2]", "x", None) for n in range(2)]
    monkeypatch.setattr(os, "pipe2", pipe2)
    with no_descriptor_is_lost(), pytest.raises(OSError, match="Too many open files"):
        restart.new_pipes(replace(image(step="batch"), launches=sruns))
