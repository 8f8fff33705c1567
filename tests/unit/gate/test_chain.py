"""The gate takes the place of a profiler plugin that the user has set: that one must hear what it would have heard."""

from __future__ import annotations

import os
import subprocess
from ctypes import c_void_p
from pathlib import Path

import pytest

from slurmckpt.capture.gate import layout
from slurmckpt.capture.gate.region import Region
from tests.unit.gate.nccl import Buffer, Nccl, Ranks
from tests.unit.gate.test_processes import gated

RECORDER = Path(__file__).resolve().parents[2] / "doubles/profiler/recorder.c"
ALL = (1 << 12) - 1


@pytest.fixture(scope="session")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The plugin, by the newest version of the interface that it has; 4: none that can be chained."""
    folder = tmp_path_factory.mktemp("recorder")
    made = {}
    for version in (5, 6, 7):
        made[version] = folder / f"libnccl-profiler-recorder{version}.so"
        command = ["cc", "-shared", "-fPIC", f"-DVERSION={version}", "-o", str(made[version]), str(RECORDER)]
        subprocess.run(command, check=True)
    made[4] = folder / "libnccl-profiler-old.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", str(made[4]), os.devnull], check=True)
    return made


def program(nccl: Nccl, unique: bytes, rank: int) -> int:
    """Of everything something."""
    communicator = nccl.init(2, unique, rank)
    buffer, other = Buffer([1.0]), Buffer([2.0])
    stream = nccl.library.double_stream_create()
    communicator.all_reduce(buffer)
    nccl.group_start()
    communicator.send(buffer, 1 - rank)
    communicator.receive(other, 1 - rank)
    communicator.all_reduce(buffer)
    nccl.group_end()
    nccl.synchronize()
    nccl.library.double_capture_begin(c_void_p(stream))
    communicator.all_reduce(buffer, stream)
    nccl.library.double_capture_end(c_void_p(stream))
    part = communicator.split(0, rank)
    assert part is not None
    part.all_reduce(buffer)
    nccl.synchronize()
    part.destroy()
    communicator.destroy()
    return os.getpid()


def heard(libnccl: Path, environment: dict[str, str], folder: Path) -> list[list[str]]:
    """The lines of each rank's recorder; empty when it was not called."""
    unique = Nccl(libnccl).unique_id()
    folder.mkdir()
    environment = environment | {"RECORDER_FILE": str(folder / "events")}
    with Ranks(libnccl, 2, lambda nccl, rank: program(nccl, unique, rank), environment) as ranks:
        pids = ranks.results()
    files = [folder / f"events.{pid}" for pid in pids]
    return [file.read_text().splitlines() if file.exists() else [] for file in files]


@pytest.mark.parametrize("handles", ["each", "one", "none"])
@pytest.mark.parametrize("mask", [0, 1 << 8, 1 << 11, 1 << 3, ALL])
@pytest.mark.parametrize(("nccl_has", "plugin_has"), [(5, 5), (6, 6), (6, 5), (7, 7)])
def test_it_hears_the_same(
    mask: int,
    handles: str,
    nccl_has: int,
    plugin_has: int,
    libnccl: Path,
    built: Path,
    recorder: dict[int, Path],
    tmp_path: Path,
) -> None:
    common = {"RECORDER_MASK": str(mask), "RECORDER_HANDLES": handles, "NCCL_DOUBLE_PROFILER": str(nccl_has)}
    compare(mask, str(recorder[plugin_has]), common, libnccl, built, tmp_path)


# Events of copy engines (v6) and phases of kernels (v7), which not every plugin knows.
@pytest.mark.parametrize("mask", [1 << 12, 1 << 14, 1 << 15, 1 << 15 | 1 << 3])
@pytest.mark.parametrize(("nccl_has", "plugin_has"), [(6, 6), (6, 5), (7, 7), (7, 6), (7, 5)])
def test_it_hears_the_same_of_what_newer_versions_have(
    mask: int, nccl_has: int, plugin_has: int, libnccl: Path, built: Path, recorder: dict[int, Path], tmp_path: Path
) -> None:
    common = {"RECORDER_MASK": str(mask), "RECORDER_HANDLES": "each", "NCCL_DOUBLE_PROFILER": str(nccl_has)}
    known = mask & (ALL | (7 << 12 if plugin_has >= 6 else 0) | (1 << 15 if plugin_has >= 7 else 0))
    compare(known, str(recorder[plugin_has]), common, libnccl, built, tmp_path)


def compare(mask: int, plugin: str, common: dict[str, str], libnccl: Path, built: Path, tmp_path: Path) -> None:
    """With the gate before it the plugin hears what it hears without."""
    alone = heard(libnccl, common | {"NCCL_PROFILER_PLUGIN": plugin}, tmp_path / "alone")
    with Region.create(tmp_path / "gate", -1, -1) as region:
        chained = heard(
            libnccl, common | gated(built, tmp_path / "gate") | {"SLURM_CKPT_GATE_NEXT": plugin}, tmp_path / "chained"
        )
        members = region.snapshot().members
    assert chained == alone
    assert all(lines[0].startswith("init ") and len(lines) > 4 for lines in alone) or mask == 0
    # And the gate has counted, and is left by everybody.
    assert [(one.collectives, one.transfers, one.captured) for one in members] == [
        (2, 2, 1),
        (2, 2, 1),
        (1, 0, 0),
        (1, 0, 0),
    ]
    assert not any(one.is_inside or one.deferred for one in members)
    assert {one.state for one in members} == {layout.State.LEFT}


@pytest.mark.parametrize("next_plugin", ["/nonexistent/libnccl-profiler.so", "old"])
def test_one_that_cannot_be_chained_is_left_out_and_said(
    next_plugin: str, libnccl: Path, built: Path, recorder: dict[int, Path], tmp_path: Path
) -> None:
    given = str(recorder[4]) if next_plugin == "old" else next_plugin
    environment = gated(built, tmp_path / "gate") | {"SLURM_CKPT_GATE_NEXT": given}
    with Region.create(tmp_path / "gate", -1, -1) as region:
        assert heard(libnccl, environment, tmp_path / "heard") == [[], []]
        assert region.header().notes & layout.NOTE_CHAIN_LOST
        assert all(one.collectives for one in region.snapshot().members)


def test_it_hears_the_same_when_there_is_no_region(
    libnccl: Path, built: Path, recorder: dict[int, Path], tmp_path: Path
) -> None:
    plugin = str(recorder[6])
    alone = heard(libnccl, {"NCCL_PROFILER_PLUGIN": plugin, "RECORDER_MASK": str(ALL)}, tmp_path / "alone")
    environment = gated(built, tmp_path / "missing") | {"SLURM_CKPT_GATE_NEXT": plugin, "RECORDER_MASK": str(ALL)}
    assert heard(libnccl, environment, tmp_path / "chained") == alone
