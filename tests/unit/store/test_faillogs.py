"""CRIU's logs of failures: bounded in number and size, and with nothing but the user's rights."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from slurmckpt.errors import StoreError
from slurmckpt.store import faillogs
from tests.unit.store.world import World


def keep(world: World, text: str, what: str = "dump") -> Path:
    return asyncio.run(faillogs.keep(world.store, world.files, what, text))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each log comes a minute after the one before."""
    seconds = iter(range(1_795_953_600, 1_795_999_999, 60))
    monkeypatch.setattr(time, "gmtime", lambda gmtime=time.gmtime: gmtime(next(seconds)))


def test_it_is_named_by_its_time(world: World, clock: None) -> None:
    path = keep(world, "Error: é\n")
    assert path == world.store.dir / "logs/20261129-120000-dump.log"
    assert path.read_text(encoding="utf-8") == "Error: é\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert keep(world, "x", "restore").name == "20261129-120100-restore.log"


def test_only_the_last_ones_and_only_their_ends_are_kept(world: World, clock: None) -> None:
    for number in range(faillogs.MAX_LOGS + 3):
        last = keep(world, f"{number}" + "x" * 2 * faillogs.MAX_BYTES + "end")
    found = sorted(path.name for path in world.store.logs.iterdir())
    assert len(found) == faillogs.MAX_LOGS
    assert found[0] == "20261129-120300-dump.log" and found[-1] == last.name
    assert last.stat().st_size == faillogs.MAX_BYTES
    assert last.read_text().endswith("xend")


def test_two_in_the_same_second(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "gmtime", lambda gmtime=time.gmtime: gmtime(1_795_953_600))
    keep(world, "one")
    assert keep(world, "two").read_text() == "two"


def test_other_files_are_left_alone(world: World, clock: None) -> None:
    keep(world, "x")
    world.as_user((world.store.logs / "notes").write_text, "mine")
    for _ in range(20):
        keep(world, "x")
    assert (world.store.logs / "notes").read_text() == "mine"


def test_a_link_in_its_place_is_not_followed(world: World, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o777)
    world.as_user(world.store.logs.symlink_to, elsewhere)
    with pytest.raises(StoreError, match="CRIU's log cannot be kept at "):
        keep(world, "x")
    assert list(elsewhere.iterdir()) == []
