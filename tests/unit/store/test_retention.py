"""What is kept, what goes, and that nothing outside goes with it."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from slurmckpt.errors import StoreError
from slurmckpt.store import record
from slurmckpt.store.layout import JobStore
from slurmckpt.store.partial import Partial
from slurmckpt.store.retention import disown, forget, lingering, prune, remove_all
from tests.unit.store.world import World

SMALL = {"file": b"content", "0/images/core.img": b"core"}


def committed(world: World, *numbers: int) -> None:
    for seq in numbers:
        world.publish(seq, SMALL)


def pruned(world: World, keep: int, *protect: int) -> list[int]:
    return asyncio.run(prune(world.store, world.files, keep, set(protect)))


def test_the_newest_stay(world: World) -> None:
    committed(world, 1, 2, 9, 10)
    assert pruned(world, 2) == [1, 2]
    assert world.names() == {"9", "10"}
    assert pruned(world, 2) == []
    assert pruned(world, 1) == [9]
    assert world.fetch(10)[0].seq == 10


def test_fewer_than_kept(world: World) -> None:
    committed(world, 1)
    assert pruned(world, 3) == []
    assert world.names() == {"1"}


def test_protected_ones_stay(world: World) -> None:
    committed(world, 1, 2, 3)
    assert pruned(world, 1, 1) == [2]
    assert world.names() == {"1", "3"}


@pytest.mark.parametrize("keep", [0, -1])
def test_at_least_one_is_kept(world: World, keep: int) -> None:
    committed(world, 1)
    with pytest.raises(ValueError, match="at least 1 checkpoint is kept"):
        pruned(world, keep)
    assert world.names() == {"1"}


def test_what_earlier_incarnations_were_writing_is_taken_away(world: World) -> None:
    """A rename of theirs that hangs on its way to the store then has nothing to rename."""
    committed(world, 5)
    assert asyncio.run(disown(world.store, world.files)) == 0
    for seq in (4, 7):
        partial = Partial(world.store, seq)
        world.files.run_sync(partial.make)
        if seq == 7:
            late = partial
    assert asyncio.run(disown(world.store, world.files)) == 7
    assert world.names() == {"5"}
    with pytest.raises(StoreError, match=r"was removed or replaced while it was being written$"):
        world.files.run_sync(late.publish)
    # Even when it had looked before.
    with pytest.raises(FileNotFoundError):
        world.files.run_sync(os.rename, world.store.partial(7), world.store.checkpoint(7))
    world.files.run_sync(late.abandon)
    assert world.names() == {"5"}


def test_partials(world: World) -> None:
    """Those of a crash go; one in use stays, and so does one above all, which a newer incarnation may be writing."""
    committed(world, 5)
    for seq in (3, 4, 6, 7):
        world.as_user((world.store.partial(seq) / "0").mkdir, 0o700, True)
    assert pruned(world, 2, 4) == []
    assert world.names() == {"4.partial", "5", "6.partial", "7.partial"}
    assert pruned(world, 2, 7) == []
    assert world.names() == {"5", "7.partial"}


def test_half_removed_ones_go(world: World) -> None:
    committed(world, 1, 2)
    world.as_user(world.store.checkpoint(1).rename, world.store.deleted(1))
    assert pruned(world, 2) == []
    assert world.names() == {"2"}
    committed(world, 3)
    world.as_user((world.store.deleted(2) / "left").mkdir, 0o700, True)
    assert pruned(world, 1) == [2]
    assert world.names() == {"3"}


def test_links_are_not_followed(world: World) -> None:
    committed(world, 1, 2)
    victim = world.top / "victim"
    victim.mkdir()
    victim.chmod(0o777)
    (victim / "kept").write_text("kept")
    world.as_user((world.store.checkpoint(1) / "link").symlink_to, victim)
    world.as_user((world.store.dir / "3.deleted").symlink_to, victim)
    world.as_user((world.store.dir / "1.deleted").symlink_to, victim)
    assert pruned(world, 1) == [1]
    assert (victim / "kept").read_text() == "kept"
    assert "1" not in world.names()
    assert "1.deleted" not in world.names()


def test_fifo_and_socket_names_do_not_hold_it_up(world: World) -> None:
    committed(world, 1, 2)
    world.as_user(os.mkfifo, world.store.checkpoint(1) / "fifo")
    assert pruned(world, 1) == [1]
    assert world.names() == {"2"}


def test_what_cannot_be_removed_is_said_and_the_rest_goes(world: World) -> None:
    committed(world, 1, 2, 3)
    locked = world.store.checkpoint(1) / "0"
    world.as_user(locked.chmod, 0o000)
    with pytest.raises(StoreError, match=r"^1 of the old checkpoints in .* cannot be removed: .*: Permission denied$"):
        pruned(world, 1)
    # It is no checkpoint any more all the same.
    assert world.names() == {"1.deleted", "3"}
    world.as_user((world.store.deleted(1) / "0").chmod, 0o700)
    pruned(world, 1)
    assert world.names() == {"3"}


def test_old_temporary_files_go(world: World) -> None:
    committed(world, 1)
    old, new = world.store.dir / ".lease.json.00.tmp", world.store.dir / ".lease.json.01.tmp"
    world.as_user(old.touch)
    world.as_user(new.touch)
    world.as_user(os.utime, old, (1, 1))
    pruned(world, 1)
    assert not old.exists()
    assert new.exists()


def test_remove_all_leaves_the_record(world: World) -> None:
    committed(world, 1, 2)
    asyncio.run(record.save(world.store, world.files, record.Record(4711, "jane", "cluster")))
    world.as_user(world.store.partial(9).mkdir)
    assert asyncio.run(remove_all(world.store, world.files)) == [1, 2]
    assert world.names() == {"record.json"}
    assert asyncio.run(remove_all(world.store, world.files)) == []


DAY = 86400.0


def job(world: World, job_id: int, days: float, ended: bool = True, epoch: int = 1) -> JobStore:
    """A job of the same user whose directory was last changed this many days ago."""
    store = world.other_job(job_id=job_id)
    asyncio.run(store.prepare(world.files))
    attempt = record.Attempt(epoch=epoch, node="n1", started=1.0, ended=2.0 if ended else None)
    kept = record.Record(job_id, "jane", "cluster", attempts=[attempt])
    asyncio.run(record.save(store, world.files, kept))
    aged(world, store, days)
    return store


def aged(world: World, store: JobStore, days: float) -> None:
    then = time.time() - days * DAY
    world.as_user(os.utime, store.dir, (then, then))


def forgotten(world: World, record_days: int = 30, due: bool = True) -> list[int]:
    if due:
        (world.store.dir.parent / ".swept").unlink(missing_ok=True)
    return asyncio.run(forget(world.store, world.files, record_days))


def jobs(world: World) -> set[str]:
    return {name for name in os.listdir(world.store.dir.parent) if name != ".swept"}


def test_old_records_are_forgotten(world: World) -> None:
    """Of this user's ended jobs, with 30 days: those of 31 days go, those of 29 stay, and the own job does."""
    job(world, 7, 31)
    job(world, 123, 31)
    job(world, 8, 29)
    aged(world, world.store, 400)
    assert forgotten(world) == [7, 123]
    assert jobs(world) == {"8", "4711"}


def test_a_job_with_a_checkpoint_is_never_forgotten(world: World) -> None:
    committed(world, 1)
    other = job(world, 7, 31)
    world.as_user(world.store.checkpoint(1).rename, other.checkpoint(1))
    aged(world, other, 4000)
    assert forgotten(world) == []
    assert other.sequence_numbers() == [1]


def test_a_job_without_an_end_may_still_run(world: World) -> None:
    """It is taken for lost after a year; with a longer record_days, after that."""
    job(world, 7, 364, ended=False)
    job(world, 8, 366, ended=False)
    empty = world.other_job(job_id=9)
    asyncio.run(empty.prepare(world.files))
    aged(world, empty, 366)
    assert forgotten(world, 400) == []
    assert forgotten(world, 30) == [8, 9]


def test_what_a_crash_left_goes_with_its_record(world: World) -> None:
    old = job(world, 7, 31)
    world.as_user((old.partial(3) / "0").mkdir, 0o700, True)
    aged(world, old, 31)
    assert forgotten(world) == [7]


def test_it_looks_once_a_day(world: World) -> None:
    assert forgotten(world) == []
    job(world, 7, 31)
    assert forgotten(world, due=False) == []
    marker = world.store.dir.parent / ".swept"
    then = time.time() - 1.1 * DAY
    world.as_user(os.utime, marker, (then, then))
    assert forgotten(world, due=False) == [7]
    assert time.time() - marker.stat().st_mtime < DAY


def test_nothing_else_in_the_users_directory_is_touched(world: World) -> None:
    user = world.store.dir.parent
    victim = job(world, 7, 31).dir
    world.as_user((user / "notes").mkdir)
    world.as_user((user / "08").mkdir)
    world.as_user((user / "9999999999").mkdir)
    world.as_user((user / "5").symlink_to, victim)
    world.as_user((user / "6").write_text, "not a directory")
    for name in ("notes", "08", "9999999999", "6"):
        world.as_user(os.utime, user / name, (1, 1))
    stranger = world.store.root / "cluster" / "joe" / "7"
    stranger.mkdir(parents=True)
    os.utime(stranger, (1, 1))
    assert forgotten(world) == [7]
    assert jobs(world) == {"notes", "08", "9999999999", "5", "6", "4711"}
    assert stranger.exists()


def test_a_half_forgotten_job_goes(world: World) -> None:
    leftover = world.store.dir.parent / "7.deleted"
    world.as_user((leftover / "left").mkdir, 0o700, True)
    assert forgotten(world) == []
    assert jobs(world) == {"4711"}


def test_what_cannot_be_forgotten_is_said_and_the_rest_goes(world: World) -> None:
    locked = job(world, 7, 31)
    world.as_user((locked.partial(1) / "0").mkdir, 0o700, True)
    world.as_user((locked.partial(1) / "0" / "file").touch)
    world.as_user((locked.partial(1) / "0").chmod, 0o000)
    aged(world, locked, 31)
    job(world, 8, 31)
    with pytest.raises(StoreError, match=r"^1 of the old records in .* cannot be removed: .*: Permission denied$"):
        forgotten(world)
    assert jobs(world) == {"4711", "7.deleted"}


# --- jobs that ended with nobody there -----------------------------------------------------------------------------


def quiet_for(world: World, job_id: int, images: bool = True, hours: float = 2) -> JobStore:
    """Another job of the user, with a checkpoint or without, that last changed so long ago."""
    other = world.other_job(job_id=job_id)
    world.as_user(os.makedirs, other.checkpoint(1) if images else other.dir)
    when = time.time() - hours * 3600
    world.as_user(os.utime, other.dir, (when, when))
    return other


def test_jobs_that_linger(world: World) -> None:
    committed(world, 1)
    old = time.time() - 7200
    world.as_user(os.utime, world.store.dir, (old, old))
    quiet = [quiet_for(world, 101), quiet_for(world, 102, hours=1000)]
    quiet_for(world, 103, images=False)
    quiet_for(world, 104, hours=0.5)
    world.as_user(os.makedirs, world.store.dir.parent / "not-a-job")
    found = asyncio.run(lingering(world.store, world.files))
    assert sorted(other.dir for other in found) == [other.dir for other in quiet]
    assert asyncio.run(lingering(world.store, world.files)) == [], "once a day"
