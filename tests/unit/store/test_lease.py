"""Only the newest incarnation publishes, however many start at once and whatever became of lease.json."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from slurmckpt.errors import StoreError
from slurmckpt.store import lease, record
from slurmckpt.store.identity import UserFiles
from tests.unit.store.world import World


def take(world: World, node: str = "n1") -> int:
    return asyncio.run(lease.take(world.store, world.files, node))


def current(world: World) -> int:
    return asyncio.run(lease.current(world.store, world.files))


def check(world: World, epoch: int) -> None:
    asyncio.run(lease.check(world.store, world.files, epoch))


def test_epochs_rise(world: World) -> None:
    assert current(world) == 0
    assert [take(world), take(world, "n2"), take(world, "n3")] == [1, 2, 3]
    assert current(world) == 3
    content = json.loads(world.store.lease.read_text())
    assert (content["format"], content["epoch"], content["node"]) == (1, 3, "n3")
    assert content["time"] == pytest.approx(world.store.lease.stat().st_mtime, abs=5)


def test_the_newest_keeps_and_older_ones_lose(world: World) -> None:
    first = take(world)
    check(world, first)
    second = take(world)
    check(world, second)
    with pytest.raises(
        lease.LeaseLost, match=r"^job 4711 has a newer incarnation \(epoch 2\); this one \(epoch 1\) may not"
    ):
        check(world, first)


def check_claim(world: World, epoch: int) -> None:
    asyncio.run(lease.check_claim(world.store, world.files, epoch))


def test_a_look_at_the_claim(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first = take(world)
    with monkeypatch.context() as patched:
        # It must be cheap as long as nothing has happened: no more than one stat.
        patched.setattr(lease, "_guarded_current", None)
        check_claim(world, first)
    second = take(world)
    check_claim(world, second)
    with pytest.raises(lease.LeaseLost, match=r"newer incarnation \(epoch 2\)"):
        check_claim(world, first)


def test_a_claim_that_somebody_removed_is_not_a_lost_lease(world: World) -> None:
    epoch = take(world)
    (world.store.dir / f".epoch-{epoch}").unlink()
    check_claim(world, epoch)
    world.store.lease.unlink()
    check_claim(world, epoch)


def test_a_look_that_fails_says_nothing_about_the_lease(world: World) -> None:
    epoch = take(world)
    os.rename(world.store.dir, world.store.dir.with_name("gone"))
    with pytest.raises(lease.DirectoryGone, match=rf"^store directory {world.store.dir} was removed$"):
        check_claim(world, epoch)


def renew(world: World, epoch: int) -> None:
    asyncio.run(lease.renew(world.store, world.files, "n1", epoch))


def test_a_directory_that_was_removed_is_made_anew(world: World) -> None:
    epoch = take(world)
    shutil.rmtree(world.store.dir)
    renew(world, epoch)
    assert sorted(os.listdir(world.store.dir)) == [f".epoch-{epoch}", "lease.json"]
    check(world, epoch)
    assert take(world) == epoch + 1


def test_it_is_not_made_anew_for_an_incarnation_that_was_given_up(world: World) -> None:
    """Its epoch is lower than any that Slurm's count gives to those after it, with or without the old directory."""
    epoch = take(world)
    shutil.rmtree(world.store.dir)
    world.store.dir.mkdir()
    os.chown(world.store.dir, world.job.uid, world.job.gid)
    assert asyncio.run(lease.take(world.store, world.files, "n2", least=2)) == 2
    for _ in range(2):
        with pytest.raises(lease.LeaseLost):
            renew(world, epoch)
    check(world, 2)


def test_nothing_is_made_where_the_store_is_not_there(world: World) -> None:
    """A mount that is gone leaves an empty directory, or what lies below it."""
    epoch = take(world)
    shutil.rmtree(world.store.dir.parent)
    with pytest.raises(StoreError, match=r"^store directory .* cannot be made anew: No such file or directory$"):
        renew(world, epoch)
    assert not world.store.dir.parent.exists()


def test_an_epoch_is_no_lower_than_asked_for(world: World) -> None:
    assert asyncio.run(lease.take(world.store, world.files, "n1", least=4)) == 4
    assert asyncio.run(lease.take(world.store, world.files, "n1", least=2)) == 5


def test_only_the_last_claim_stays(world: World) -> None:
    for _ in range(5):
        take(world)
    assert sorted(os.listdir(world.store.dir)) == [".epoch-5", "lease.json"]


def test_concurrent_takes_never_share_an_epoch(world: World) -> None:
    """As nodes would do it: eight of them, each with an identity thread of its own."""
    takers, times = 8, 10

    def one(number: int) -> list[int]:
        with UserFiles.for_user(world.job.uid, world.job.gid, []) as files:
            return [asyncio.run(lease.take(world.store, files, f"n{number}")) for _ in range(times)]

    with ThreadPoolExecutor(takers) as pool:
        taken = list(pool.map(one, range(takers)))
    epochs = [epoch for epochs in taken for epoch in epochs]
    assert len(set(epochs)) == takers * times
    assert all(epochs == sorted(epochs) for epochs in taken)
    assert current(world) == max(epochs)
    for epoch in epochs:
        if epoch < max(epochs):
            with pytest.raises(lease.LeaseLost):
                check(world, epoch)
    check(world, max(epochs))


def test_slow_taker_writes_an_older_lease_last(world: World) -> None:
    take(world)
    old = world.store.lease.read_bytes()
    take(world)
    world.store.lease.write_bytes(old)
    assert current(world) == 2
    with pytest.raises(lease.LeaseLost):
        check(world, 1)
    assert take(world) == 3


def remove(path: Path) -> None:
    path.unlink()


def garbage(path: Path) -> None:
    path.write_bytes(b"\xff{")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:10])


def no_number(path: Path) -> None:
    path.write_text('{"epoch": "8"}')


def negative(path: Path) -> None:
    path.write_text('{"epoch": -5}')


def nested(path: Path) -> None:
    path.write_text("[" * 50_000)


def huge(path: Path) -> None:
    path.write_bytes(b" " * (lease.MAX_LEASE_BYTES + 1))


def absurd(path: Path) -> None:
    path.write_text('{"epoch": 99999999999999999999999999}')


def link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("damage", [remove, garbage, cut, no_number, negative, nested, huge, absurd, link, fifo])
@pytest.mark.parametrize("source", ["manifest", "record", "claim", "nothing"])
def test_broken_lease(world: World, damage: Callable[[Path], None], source: str) -> None:
    """The epoch goes on above everything that other files of the job speak of."""
    take(world)
    world.publish()
    claim = world.store.dir / ".epoch-1"
    if source != "claim":
        claim.unlink()
    if source == "manifest":
        world.forge(1, lambda manifest: replace(manifest, epoch=7))
    elif source == "record":
        attempts = [record.Attempt(epoch=7, node="n1", started=1.0), record.Attempt(epoch=2, node="n1", started=1.0)]
        asyncio.run(record.save(world.store, world.files, record.Record(4711, "jane", "cluster", attempts)))
    elif source == "claim":
        claim.rename(world.store.dir / ".epoch-7")
    else:
        shutil.rmtree(world.store.checkpoint(1))
    world.as_user(damage, world.store.lease)
    assert take(world) == (1 if source == "nothing" else 8)
    assert json.loads(world.store.lease.read_text())["epoch"] == current(world)


def test_directory_in_the_place_of_the_lease(world: World) -> None:
    world.as_user(world.store.lease.mkdir)
    with pytest.raises(StoreError, match=r"^lease .*/lease.json cannot be taken: Is a directory$"):
        take(world)


def test_missing_directory(world: World) -> None:
    world.as_user(world.store.dir.rmdir)
    with pytest.raises(StoreError, match=r"^lease .*/lease.json cannot be taken: No such file or directory$"):
        take(world)
    with pytest.raises(StoreError, match=r"^store directory .* was removed$") as caught:
        check(world, 1)
    assert not isinstance(caught.value, lease.LeaseLost)


def test_planted_claims_end_in_an_error_not_in_a_loop(world: World) -> None:
    for epoch in range(1, 3):
        world.as_user((world.store.dir / f".epoch-{epoch}").symlink_to, "nowhere")
    assert take(world) == 3
    world.as_user((world.store.dir / f".epoch-{lease.MAX_EPOCH}").touch)
    with pytest.raises(StoreError, match="no free epoch after"):
        take(world)
