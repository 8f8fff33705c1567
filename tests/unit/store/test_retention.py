"""What is kept, what goes, and that nothing outside goes with it."""

from __future__ import annotations

import asyncio
import os

import pytest

from slurmckpt.errors import StoreError
from slurmckpt.store import record
from slurmckpt.store.retention import prune, remove_all
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
