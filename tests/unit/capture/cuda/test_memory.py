"""Does what is on the GPUs fit into the job's memory?"""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmckpt.capture.cuda import memory

MIB = 1 << 20


def write(place: Path, **values: object) -> None:
    place.mkdir(parents=True, exist_ok=True)
    (place / "cgroup.procs").touch()
    for name, value in values.items():
        (place / name.replace("__", ".")).write_text(f"{value}\n")


def test_the_tightest_of_all_limits_counts(tmp_path: Path) -> None:
    write(tmp_path / "job", memory__max=1000 * MIB, memory__current=600 * MIB)
    write(tmp_path / "job" / "step", memory__max="max", memory__current=500 * MIB)
    found = memory.room(tmp_path / "job" / "step")
    assert found == memory.Room(1000 * MIB, 400 * MIB, tmp_path / "job")


def test_a_cgroup_of_version_1(tmp_path: Path) -> None:
    write(tmp_path / "job", memory__limit_in_bytes=1000 * MIB, memory__usage_in_bytes=900 * MIB)
    (tmp_path / "job" / "memory.stat").write_text(f"cache 5\ntotal_inactive_file {300 * MIB}\n")
    assert memory.room(tmp_path / "job") == memory.Room(1000 * MIB, 400 * MIB, tmp_path / "job")
    write(tmp_path / "free", memory__limit_in_bytes=9223372036854771712, memory__usage_in_bytes=1)
    assert memory.room(tmp_path / "free") is None


def test_what_does_not_fit_is_refused_with_the_amount(tmp_path: Path) -> None:
    write(tmp_path, memory__max=1000 * MIB, memory__current=800 * MIB)
    memory.check(100 * MIB, [tmp_path], 10**12)
    with pytest.raises(memory.NoRoom, match=r"have 315 MB on their GPUs.*ask for 164M more with --mem"):
        # 300 MiB and a margin of 64, less the 200 that are free
        memory.check(300 * MIB, [tmp_path], 10**12)
    with pytest.raises(memory.NoRoom, match="the node has"):
        memory.check(100 * MIB, [], 50 * MIB)
    memory.check(0, [tmp_path], 0)
