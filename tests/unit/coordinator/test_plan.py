"""Which checkpoint a restore goes on from, with a real store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurmckpt.coordinator import plan as planning
from slurmckpt.coordinator.plan import Plan, Planner
from slurmckpt.errors import Refused, SlurmckptError, StoreError
from slurmckpt.identity import JobIdentity
from slurmckpt.store import transfer
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.layout import JobStore
from slurmckpt.store.manifest import Manifest
from tests.unit.coordinator.parts import image
from tests.unit.store.world import World

CONTENTS = {"0/images/core-101.img": b"core", "output/0": b"line\n"}


@pytest.fixture
def store(home: Path, tmp_path: Path, user_files: UserFiles) -> Iterator[World]:
    status = home.stat()
    (home / "store").mkdir(mode=0o755)
    home.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(home / "store", status.st_uid, status.st_gid)
    job = JobIdentity("cluster", "jane", status.st_uid, status.st_gid, 4711)
    store = JobStore(home / "store", job)
    asyncio.run(store.prepare(user_files, by_root=False))
    staging = tmp_path / "publishing"
    staging.mkdir()
    yield World(home, job, store, user_files, staging)


def fits(manifest: Manifest) -> str:
    return ""


def planner(store: World, tmp_path: Path, check: object = fits, key: bytes | None = None) -> Planner:
    assert callable(check)
    return Planner(store.store, store.files, key or store.key, tmp_path / "staging", check)


def test_no_checkpoint_at_all(store: World, tmp_path: Path) -> None:
    plans = planner(store, tmp_path)
    assert asyncio.run(plans.next()) is None
    assert (plans.found, plans.refused) == (0, [])
    assert plans.cold_start_reason() == "no checkpoint had been taken"


def test_the_newest_is_taken_whole(store: World, tmp_path: Path) -> None:
    for seq in (1, 2, 10):
        store.publish(seq, CONTENTS)
    plans = planner(store, tmp_path)
    plan = asyncio.run(plans.next())
    assert plan is not None
    assert (plan.manifest.seq, plans.found, plans.refused) == (10, 3, [])
    assert plan.open_steps == {"0"}
    assert {str(path.relative_to(plan.directory)) for path in plan.directory.rglob("*") if path.is_file()} >= set(
        CONTENTS
    )
    assert plan.directory.stat().st_mode & 0o777 == 0o700
    plan.discard()
    assert not plan.directory.exists()


def test_a_changed_one_is_refused_with_its_reason_and_the_one_before_is_taken(store: World, tmp_path: Path) -> None:
    for seq in (1, 2):
        store.publish(seq, CONTENTS, compression="none")
    path = store.store.checkpoint(2) / "0/images/core-101.img"
    store.as_user(path.write_bytes, b"evil")
    plans = planner(store, tmp_path)
    plan = asyncio.run(plans.next())
    assert plan is not None and plan.manifest.seq == 1
    (reason,) = plans.refused
    assert reason.startswith("#2: file 0/images/core-101.img does not have the content that was written")
    assert os.listdir(tmp_path / "staging" / "restore") == ["1"]


def test_another_sites_key(store: World, tmp_path: Path) -> None:
    store.publish(1, CONTENTS)
    plans = planner(store, tmp_path, key=b"another site's key, long enough")
    assert asyncio.run(plans.next()) is None
    assert plans.refused == ["#1: manifest is not signed with this site's key"]
    assert plans.cold_start_reason() == ("no checkpoint fits: #1: manifest is not signed with this site's key")
    assert os.listdir(tmp_path / "staging" / "restore") == []


def test_what_does_not_fit_this_node(store: World, tmp_path: Path) -> None:
    for seq in (1, 2, 3):
        store.publish(seq, CONTENTS)

    def check(manifest: Manifest) -> str:
        return "driver 570.86 -> 575.51" if manifest.seq > 1 else ""

    plans = planner(store, tmp_path, check)
    plan = asyncio.run(plans.next())
    assert plan is not None and plan.manifest.seq == 1
    assert plans.refused == ["#3: driver 570.86 -> 575.51", "#2: driver 570.86 -> 575.51"]


def test_after_the_oldest_there_is_none(store: World, tmp_path: Path) -> None:
    for seq in (1, 2):
        store.publish(seq, CONTENTS)
    plans = planner(store, tmp_path)

    async def scene() -> list[int | None]:
        found = []
        for _ in range(3):
            plan = await plans.next()
            found.append(plan.manifest.seq if plan else None)
            if plan:
                plans.refuse(plan.manifest.seq, "CRIU said no")
        return found

    assert asyncio.run(scene()) == [2, 1, None]
    assert plans.cold_start_reason() == "no checkpoint fits: #2: CRIU said no; #1: CRIU said no"


def test_what_an_earlier_try_left_in_staging_is_replaced(store: World, tmp_path: Path) -> None:
    store.publish(1, CONTENTS)
    left = tmp_path / "staging" / "restore" / "1"
    left.mkdir(parents=True)
    (left / "stale").touch()
    plan = asyncio.run(planner(store, tmp_path).next())
    assert plan is not None and not (plan.directory / "stale").exists()


def test_the_image_of_a_step_is_given_until_it_is_restored(store: World, tmp_path: Path) -> None:
    manifest = replace(store.manifest(1), steps=[image(step="0"), image(step="3")])
    plan = Plan(manifest, tmp_path, {"0", "3"})
    assert plan.image("3") is manifest.steps[1]
    assert plan.image("1") is None
    plan.open_steps.discard("3")
    assert plan.image("3") is None
    assert plan.image("0") is manifest.steps[0]


@pytest.mark.parametrize(("steps", "again"), [(["0"], True), (["batch"], False), (["batch", "0"], False)])
def test_whether_the_script_runs_from_its_top(store: World, tmp_path: Path, steps: list[str], again: bool) -> None:
    manifest = replace(store.manifest(1), steps=[image(step=step) for step in steps])
    assert Plan(manifest, tmp_path).runs_script_again is again


def test_from_the_newest_on_again(store: World, tmp_path: Path) -> None:
    """For a restore in place: with a place of its own, beside a plan that is still in use."""
    store.publish(1, CONTENTS)
    plans = planner(store, tmp_path)
    first = asyncio.run(plans.next())
    again = asyncio.run(plans.again(tmp_path / "other").next())
    assert first is not None and again is not None
    assert (first.manifest.seq, again.manifest.seq) == (1, 1)
    assert first.directory.exists() and again.directory == tmp_path / "other" / "restore" / "1"


def failing(times: int, error: Exception) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let a coroutine function fail so often, and then do what it does."""
    left = iter(range(times))

    def around(real: Callable[..., Any]) -> Callable[..., Any]:
        async def asked(*args: Any) -> Any:
            if next(left, None) is not None:
                raise error
            return await real(*args)

        return asked

    return around


def from_the_file_system(kind: type[SlurmckptError]) -> SlurmckptError:
    error = kind("file core-101.img is missing")
    error.__cause__ = FileNotFoundError(2, "No such file or directory")
    return error


@pytest.mark.parametrize(
    "error, times, taken",
    [
        (from_the_file_system(Refused), 1, 2),
        (OSError(116, "Stale file handle"), 1, 2),
        (from_the_file_system(Refused), 2, 1),
        # What has been read is what is there.
        (Refused("file core-101.img was changed"), 1, 1),
    ],
)
def test_a_store_that_answers_with_an_error_is_asked_once_more(
    store: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, times: int, taken: int
) -> None:
    monkeypatch.setattr(planning, "_AGAIN_SECONDS", 0.001)
    monkeypatch.setattr(transfer, "fetch", failing(times, error)(transfer.fetch))
    for seq in (1, 2):
        store.publish(seq, CONTENTS)
    found = asyncio.run(planner(store, tmp_path).next())
    assert found is not None and found.manifest.seq == taken


def test_a_list_that_cannot_be_read_is_asked_for_once_more(
    store: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a job with checkpoints would begin anew."""
    monkeypatch.setattr(planning, "_AGAIN_SECONDS", 0.001)
    store.publish(1, CONTENTS)
    plans = planner(store, tmp_path)
    failed = failing(1, from_the_file_system(StoreError))(store.files.run)
    monkeypatch.setattr(plans, "_files", SimpleNamespace(run=failed))
    found = asyncio.run(plans.next())
    assert found is not None and found.manifest.seq == 1
