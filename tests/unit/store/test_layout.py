"""Directories and sequence numbers. (What needs another identity is in test_root.)"""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from pathlib import Path

import pytest

from slurmckpt.errors import StoreError
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.layout import JobStore
from tests.unit.store.world import World


def test_paths(world: World) -> None:
    directory = world.store.root / "cluster" / "jane" / "4711"
    assert world.store.dir == directory
    assert world.store.lease == directory / "lease.json"
    assert world.store.record == directory / "record.json"
    assert world.store.checkpoint(12) == directory / "12"
    assert world.store.partial(12) == directory / "12.partial"


def test_prepare_again_changes_nothing(world: World) -> None:
    world.publish()
    asyncio.run(world.store.prepare(world.files))
    assert world.store.sequence_numbers() == [1]


def test_prepare_makes_the_root_but_not_its_parent(world: World) -> None:
    made = JobStore(world.top / "other", world.job)
    world.top.chmod(0o777)
    asyncio.run(made.prepare(world.files))
    assert stat.S_IMODE(made.dir.stat().st_mode) == 0o700
    # A parent that is missing is a file system that is not mounted.
    with pytest.raises(
        StoreError, match=r"^store directory .*/missing/store cannot be made: No such file or directory$"
    ):
        asyncio.run(JobStore(world.top / "missing" / "store", world.job).prepare(world.files))


def test_file_in_the_place_of_the_jobs_directory(world: World) -> None:
    store = world.other_job(job_id=4712)
    world.as_user(store.dir.write_text, "file")
    with pytest.raises(StoreError, match=r"/4712 is not a directory"):
        asyncio.run(store.prepare(world.files))


def test_sequence_numbers_are_those_of_committed_checkpoints(world: World) -> None:
    assert world.store.sequence_numbers() == []
    assert world.store.next_seq() == 1
    for name in ("2", "10", "9", "007", "0", "-3", "1e3", "٣", "x", "11.partial.x", "9" * 30, "4711x"):
        world.as_user((world.store.dir / name).mkdir)
    world.as_user((world.store.dir / "20").write_text, "a file")
    world.as_user((world.store.dir / "21").symlink_to, "2")
    assert world.store.sequence_numbers() == [2, 9, 10]
    assert world.store.next_seq() == 11


@pytest.mark.parametrize("name", ["12.partial", "12.deleted"])
def test_next_seq_shares_no_number(world: World, name: str) -> None:
    world.as_user((world.store.dir / "3").mkdir)
    world.as_user((world.store.dir / name).mkdir)
    assert world.store.sequence_numbers() == [3]
    assert world.store.next_seq() == 13


def test_missing_store_has_no_checkpoints(world: World) -> None:
    store = world.other_job(job_id=9)
    assert (store.sequence_numbers(), store.next_seq()) == ([], 1)


@pytest.mark.parametrize(("mode", "made"), [(0o1777, 0o1777), (0o755, 0o755), (0o777, 0o755)])
def test_the_clusters_directory_is_for_all_where_the_store_is(world: World, mode: int, made: int) -> None:
    """The user whose job comes first makes it, where root may not: the next user needs a place in it, too."""
    root = world.top / "open"
    root.mkdir()
    os.chown(root, world.job.uid, world.job.gid)
    root.chmod(mode)
    store = JobStore(root, world.job)
    asyncio.run(store.prepare(world.files, by_root=False))
    assert stat.S_IMODE(store.dir.parent.parent.stat().st_mode) == made
    assert stat.S_IMODE(store.dir.parent.stat().st_mode) == 0o700


# --- the user's thread --------------------------------------------------------------------------------------------


def test_run_does_not_hold_up_the_event_loop(world: World) -> None:
    """The function ends only when the event loop goes on while it runs."""
    go = threading.Event()

    async def main() -> bool:
        waiting = asyncio.ensure_future(world.files.run(go.wait, 30))
        await asyncio.sleep(0)
        go.set()
        return await waiting

    assert asyncio.run(main())


def test_one_thread_in_order(world: World) -> None:
    order: list[int] = []

    def note(number: int) -> int:
        order.append(number)
        return threading.get_ident()

    async def main() -> list[int]:
        return await asyncio.gather(*(world.files.run(note, number) for number in range(20)))

    threads = asyncio.run(main())
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()
    assert order == list(range(20))


def test_errors_come_back_and_the_thread_lives_on(world: World) -> None:
    with pytest.raises(FileNotFoundError):
        world.files.run_sync(Path("/nowhere").read_text)
    with pytest.raises(FileNotFoundError):
        asyncio.run(world.files.run(Path("/nowhere").read_text))
    assert world.files.run_sync(int, "7") == 7


@pytest.mark.skipif(os.geteuid() == 0, reason="root may")
def test_only_root_acts_for_others() -> None:
    with pytest.raises(StoreError, match=r"the files of uid 1 cannot be handled by uid \d+: only root"):
        UserFiles.for_user(1, 1, [])
