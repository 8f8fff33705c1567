"""Commits: what is published, and what fails before."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from io import FileIO
from pathlib import Path

import pytest

from slurmckpt.errors import Refused, StoreError
from slurmckpt.store import lease, transfer
from slurmckpt.store.manifest import MAX_MANIFEST_BYTES, Manifest, OutputFile, Stored, StoredFile
from slurmckpt.store.partial import Partial, Stopped
from tests.unit.store.planting import plant_fifo, plant_link
from tests.unit.store.world import CONTENTS, KEY, World, lease_kept


def test_lease_lost_before_the_rename(world: World) -> None:
    async def commit() -> None:
        epoch = await lease.take(world.store, world.files, "n1")

        async def check() -> None:
            # Everything is written, and now the job is requeued elsewhere.
            assert (world.store.partial(1) / "manifest.json").exists()
            await lease.take(world.store, world.files, "n2")
            await lease.check(world.store, world.files, epoch)

        arguments = (world.store, world.files, world.manifest(1), KEY)
        await transfer.publish(world.fill(CONTENTS), *arguments, "zstd", 1, check)

    with pytest.raises(lease.LeaseLost, match=r"job 4711 has a newer incarnation \(epoch 2\); this one \(epoch 1\)"):
        asyncio.run(commit())
    assert world.names() == {"lease.json"}
    assert (world.staging / "output/0").exists()


def test_existing_checkpoint_is_not_replaced(world: World) -> None:
    world.publish()
    before = (world.store.checkpoint(1) / "manifest.sig").read_bytes()
    with pytest.raises(StoreError, match="checkpoint 1 exists already in"):
        world.publish(contents={"other": b"other"})
    assert (world.store.checkpoint(1) / "manifest.sig").read_bytes() == before
    assert world.names() == {"1"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"job_id": 4712}, "manifest belongs to job 4712 of jane"),
        ({"outputs": [OutputFile("relative", 0, None)]}, "path = 'relative' is not accepted: an absolute path"),
        ({"freeze_seconds": -1.0}, "freeze_seconds = -1.0 is not accepted"),
        ({"node": "n" * MAX_MANIFEST_BYTES}, "bytes; accepted: at most 67108864"),
    ],
)
def test_what_would_be_refused_is_not_published(world: World, changes: dict[str, object], message: str) -> None:
    manifest = replace(world.manifest(1), **changes)  # type: ignore[arg-type]
    arguments = (world.fill(CONTENTS), world.store, world.files, manifest, KEY)
    with pytest.raises(StoreError, match=r"^checkpoint 1 could not be read back: ") as caught:
        asyncio.run(transfer.publish(*arguments, "zstd", 1, lease_kept))
    assert message in str(caught.value)
    assert world.names() == set()


def test_checkpoint_appears_while_it_is_written(world: World) -> None:
    async def commit() -> None:
        async def check() -> None:
            await world.files.run(world.store.checkpoint(1).mkdir)

        arguments = (world.store, world.files, world.manifest(1), KEY)
        await transfer.publish(world.fill(CONTENTS), *arguments, "zstd", 1, check)

    with pytest.raises(StoreError, match="checkpoint 1 exists already"):
        asyncio.run(commit())
    assert world.names() == {"1"}
    assert list(world.store.checkpoint(1).iterdir()) == []


def test_partial_left_by_a_crash(world: World) -> None:
    """It is never taken for a checkpoint, its number is not given out again, and a commit with it starts afresh."""
    crashed = world.store.partial(1)
    world.as_user(crashed.mkdir)
    world.as_user((crashed / "manifest.json").write_text, "{}")
    world.as_user((crashed / "left").write_text, "left")
    assert world.store.sequence_numbers() == []
    assert world.store.next_seq() == 2
    world.publish()
    assert world.store.sequence_numbers() == [1]
    assert not (world.store.checkpoint(1) / "left").exists()
    world.fetch()


def test_two_writers_of_one_number_do_not_mix(world: World) -> None:
    """The second takes the first one's directory away; the first notices, publishes nothing and harms nothing."""
    first, second = Partial(world.store, 1), Partial(world.store, 1)
    source = world.fill({"a": b"first"}) / "a"

    def write(partial: Partial, name: str) -> None:
        partial.add(name, FileIO(source, "rb"), 0o600, "plain", 1)

    source.chmod(0o644)
    world.staging.chmod(0o755)
    world.as_user(first.make)
    world.as_user(write, first, "a")
    world.as_user(second.make)
    with pytest.raises(OSError, match="No such file"):
        world.as_user(write, first, "b")
    with pytest.raises(StoreError, match="was removed or replaced while it was being written"):
        world.as_user(first.publish)
    world.as_user(first.abandon)
    world.as_user(write, second, "c")
    world.as_user(second.publish)
    assert os.listdir(world.store.checkpoint(1)) == ["c"]


@pytest.mark.parametrize("stored", ["zstd", "plain"])
def test_staging_file_that_becomes_shorter(world: World, stored: Stored) -> None:
    class Shrinking(FileIO):
        """Has less than its size said."""

        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(100) if self.tell() < 300 else b""

    source = Shrinking(world.fill({"file": bytes(1000)}) / "file", "rb")
    partial = Partial(world.store, 1)
    world.as_user(partial.make)
    with pytest.raises(
        StoreError, match=r"^staging file file became shorter while it was read: 700 of 1000 bytes missing$"
    ):
        world.as_user(partial.add, "file", source, 0o600, stored, 1)
    assert source.closed
    world.as_user(partial.abandon)
    assert world.names() == set()


def test_cancelled_commit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a file: the user's thread lets go of it; after the cancellation the partial is gone."""
    ended: list[type[BaseException]] = []
    original = Partial.add

    def add(partial: Partial, path: str, source: FileIO, mode: int, stored: Stored, level: int) -> StoredFile:
        try:
            return original(partial, path, source, mode, stored, level)
        except BaseException as error:
            ended.append(type(error))
            raise

    monkeypatch.setattr(Partial, "add", add)

    async def commit() -> None:
        arguments = (world.store, world.files, world.manifest(1), KEY)
        task = asyncio.create_task(transfer.publish(world.staging, *arguments, "zstd", 19, lease_kept))
        while not (world.store.partial(1) / "big").exists():
            await asyncio.sleep(0)
        task.cancel()
        await task

    world.fill({"big": os.urandom(2**20) * 64})
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(commit())
    assert ended == [Stopped]
    assert world.names() == set()


@pytest.mark.parametrize("plant", [plant_link, plant_fifo])
def test_staging_with_what_cannot_be_carried(world: World, plant: Callable[[Path, World], None]) -> None:
    world.fill(CONTENTS)
    plant(world.staging / "0/odd", world)
    arguments = (world.store, world.files, world.manifest(1), KEY)
    with pytest.raises(StoreError, match="holds 0/odd, which is no regular file"):
        asyncio.run(transfer.publish(world.staging, *arguments, "zstd", 1, lease_kept))
    assert world.names() == set()


def test_staging_of_a_fetch_must_be_empty(world: World) -> None:
    world.publish()
    (world.top / "fetched").mkdir()
    (world.top / "fetched" / "left").write_text("left")
    with pytest.raises(StoreError, match="is not an empty directory"):
        world.fetch()
    assert (world.top / "fetched" / "left").read_text() == "left"


def test_store_that_cannot_be_written(world: World) -> None:
    world.as_user(world.store.dir.rmdir)
    with pytest.raises(StoreError, match=r"^checkpoint 1 cannot be written to .*: No such file or directory$"):
        world.publish()


def test_publish_and_fetch_leave_no_descriptor(world: World) -> None:
    world.publish()
    (world.store.checkpoint(1) / "output/0").write_text("changed")
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(Refused):
            world.fetch()
        with pytest.raises(StoreError):
            world.publish()
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_manifest_is_written_last(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever moment a crash picks: a directory that holds a manifest holds everything else."""
    seen: list[set[str]] = []
    original = Partial.seal

    def seal(partial: Partial, manifest: bytes, signature: str) -> None:
        directory = world.store.partial(1)
        seen.append({str(p.relative_to(directory)) for p in directory.rglob("*") if not p.is_dir()})
        original(partial, manifest, signature)

    monkeypatch.setattr(Partial, "seal", seal)
    published = world.publish()
    assert seen == [set(CONTENTS)]
    assert Manifest.from_json((world.store.checkpoint(1) / "manifest.json").read_bytes()) == published
