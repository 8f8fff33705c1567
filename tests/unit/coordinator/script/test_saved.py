"""What a checkpoint keeps of the sruns of a script, and what comes out of it again."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from slurmckpt.capture.processes import Process
from slurmckpt.coordinator.script import saved
from slurmckpt.coordinator.script.launch import Launch
from slurmckpt.coordinator.script.saved import Saved
from slurmckpt.coordinator.script.stand_ins import StandIn
from slurmckpt.coordinator.wire import WireError
from slurmckpt.store.manifest import LaunchImage
from tests.unit.coordinator.parts import image
from tests.unit.coordinator.script.world import World, payload


def waiting(number: int, status: int | None = None, step: str = "") -> StandIn:
    launch = Launch(number, payload([0, 1]), {}, f"pipe:[{number}1]", f"pipe:[{number}2]", step=step)
    return StandIn(Process(4000 + number, 100 + number, 1, 0, "srun", "", "S", 0), launch, status, launch.step)


def test_without_a_script_nothing_is_kept(tmp_path: Path) -> None:
    assert saved.save(None, [], {}, tmp_path / "batch") == Saved([], None)
    assert list(tmp_path.iterdir()) == []


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    script = World(tmp_path).script
    script.then = {b"SLURM_A": b"a=\xff", b"SLURM_B": b""}
    directory = tmp_path / "batch"
    directory.mkdir()
    sruns = [waiting(3, step="1"), waiting(4, status=256), waiting(5)]
    found = saved.save(script, sruns, {3: b"line 2\n", 5: b""}, directory)
    assert found.launches == [
        LaunchImage(3, 103, "1", None, "pipe:[31]", "pipe:[32]", "launches/3", "launches/3.input"),
        LaunchImage(4, 104, "", 256, "pipe:[41]", "pipe:[42]", None, None),
        LaunchImage(5, 105, "", None, "pipe:[51]", "pipe:[52]", "launches/5", None),
    ]
    first = found.launches[0]
    assert saved.load_payload(first, directory).argv == payload([0, 1]).argv
    assert saved.load_payload(first, directory).numbers("fds") == [0, 1]
    assert saved.load_input(first, directory) == b"line 2\n"
    assert saved.load_input(found.launches[2], directory) == b""
    assert found.environment == "environment"
    batch = image(step="batch")
    assert saved.load_environment(batch, directory) is None
    object.__setattr__(batch, "environment", found.environment)
    assert saved.load_environment(batch, directory) == script.then
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_an_srun_that_has_ended_since_the_boundary_is_kept_as_running(tmp_path: Path) -> None:
    """The image holds its step as it was: without it, the rest of that step would be lost."""
    one = waiting(3, step="0")
    one.launch.status = 0
    one.launch.ended.set()
    (launch,) = saved.save(World(tmp_path).script, [one], {}, tmp_path).launches
    assert (launch.status, launch.payload) == (None, "launches/3")


def test_two_stand_ins_cannot_wait_for_one_srun(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        saved.save(World(tmp_path).script, [waiting(3), waiting(3)], {}, tmp_path)


def test_a_payload_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "launches").mkdir()
    (tmp_path / "launches" / "3").write_bytes(b"nonsense")
    with pytest.raises(WireError, match="a payload without a header"):
        saved.load_payload(LaunchImage(3, 103, "", None, "a", "b", "launches/3", None), tmp_path)
