"""Commit and verified return of checkpoints, and what a hostile or broken store can do about it."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import zstandard
from blake3 import blake3

from slurmckpt.errors import Refused
from slurmckpt.store import transfer
from slurmckpt.store.signature import sign
from tests.unit.store.planting import plant_fifo, plant_link, stored
from tests.unit.store.world import CONTENTS, KEY, World, lease_kept

Compression = Literal["zstd", "none"]


COMPRESSIONS: list[Compression] = ["zstd", "none"]


def refused(world: World, message: str, seq: int = 1, key: bytes = KEY) -> None:
    """The checkpoint is refused with this line, and nothing of it stays in staging."""
    with pytest.raises(Refused) as caught:
        world.fetch(seq, key)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert os.listdir(world.top / "fetched") == []


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("level", [1, 19])
def test_everything_comes_back(world: World, compression: Compression, level: int) -> None:
    contents = CONTENTS | {os.fsdecode(b"0/shm/not-\xff-utf8"): b"name"}
    published = world.publish(contents=contents, compression=compression, level=level)
    manifest, staging = world.fetch()
    assert manifest == published
    found = {
        str(path.relative_to(staging)): path.read_bytes()
        for path in staging.rglob("*")
        if path.is_file() and path.name not in ("manifest.json", "manifest.sig")
    }
    assert found == contents
    assert {file.path: file.size for file in manifest.files} == {name: len(data) for name, data in contents.items()}
    assert {file.path: file.blake3 for file in manifest.files} == {
        name: blake3(data).hexdigest() for name, data in contents.items()
    }
    assert stat.S_IMODE(staging.stat().st_mode) == 0o700


def test_compression_is_recorded(world: World) -> None:
    files = {file.path: file for file in world.publish().files}
    zeros = files["0/images/zeros.img"]
    assert (zeros.stored, zeros.size) == ("zstd", 9 * 2**20)
    assert zeros.stored_size == (world.store.checkpoint(1) / zeros.path).stat().st_size < 10_000
    plain = {file.path: file for file in world.publish(seq=2, compression="none").files}
    assert all(file.stored == "plain" and file.stored_size == file.size for file in plain.values())


def test_modes_come_back_without_set_user_id(world: World) -> None:
    world.fill({"0/shm/a": b"a", "0/shm/b": b"b"})
    (world.staging / "0/shm/a").chmod(0o640)
    (world.staging / "0/shm/b").chmod(0o4755)
    arguments = (world.store, world.files, world.manifest(1), KEY)
    asyncio.run(transfer.publish(world.staging, *arguments, "zstd", 1, lease_kept))
    _, staging = world.fetch()
    assert stat.S_IMODE((staging / "0/shm/a").stat().st_mode) == 0o640
    assert stat.S_IMODE((staging / "0/shm/b").stat().st_mode) == 0o755


def test_store_belongs_to_the_user_and_is_closed_to_others(world: World) -> None:
    """As root with another uid: every file and directory is the user's, whatever the umask is."""
    world.fill(CONTENTS)
    world.store = world.other_job(user="john", job_id=4712)
    world.job = world.store.job
    umask = os.umask(0o777)
    try:
        asyncio.run(world.store.prepare(world.files))
        arguments = (world.store, world.files, world.manifest(1), KEY)
        asyncio.run(transfer.publish(world.staging, *arguments, "zstd", 1, lease_kept))
    finally:
        os.umask(umask)
    entries = [world.store.dir.parent, world.store.dir, *world.store.dir.rglob("*")]
    assert len(entries) > len(CONTENTS)
    for path in entries:
        status = path.lstat()
        assert (status.st_uid, status.st_gid) == (world.job.uid, world.job.gid), path
        assert stat.S_IMODE(status.st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_staging_of_a_fetch_belongs_to_the_caller(world: World) -> None:
    world.publish()
    _, staging = world.fetch()
    assert {path.stat().st_uid for path in [staging, *staging.rglob("*")]} == {os.geteuid()}


# --- what is not what was written ---------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("name", [name for name, data in CONTENTS.items() if data])
def test_flipped_bit_in_a_file(world: World, name: str, compression: Compression, where: float) -> None:
    # Small ones of incompressible content, so that no bit of the frame is without meaning.
    contents = {other: os.urandom(5000) for other in CONTENTS}
    world.publish(contents=contents, compression=compression)
    path = world.store.checkpoint(1) / name
    data = bytearray(path.read_bytes())
    data[int(where * (len(data) - 1))] ^= 0x10
    path.write_bytes(data)
    refused(world, f"file {name} does not have the content that was written (")


def test_flipped_bit_names_both_hashes(world: World) -> None:
    world.publish(compression="none")
    path = world.store.checkpoint(1) / "output/0"
    path.write_bytes(b"line 1\nline 3\n")
    was, now = blake3(b"line 1\nline 2\n").hexdigest(), blake3(b"line 1\nline 3\n").hexdigest()
    refused(
        world, f"file output/0 does not have the content that was written (blake3 {now[:16]} instead of {was[:16]})"
    )


@pytest.mark.parametrize("name", ["manifest.json", "manifest.sig"])
def test_flipped_bit_in_manifest_or_signature(world: World, name: str) -> None:
    world.publish()
    path = world.store.checkpoint(1) / name
    data = path.read_bytes()
    for position in range(0, len(data.rstrip()), 97):
        changed = bytearray(data)
        changed[position] ^= 1
        path.write_bytes(changed)
        refused(world, "manifest is not signed with this site's key")


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("name", list(CONTENTS))
def test_missing_file(world: World, name: str, compression: Compression) -> None:
    world.publish(compression=compression)
    (world.store.checkpoint(1) / name).unlink()
    refused(world, f"file {name} is missing")


def test_missing_checkpoint_manifest_and_signature(world: World) -> None:
    refused(world, "checkpoint 1 has no manifest")
    world.publish()
    (world.store.checkpoint(1) / "manifest.sig").unlink()
    refused(world, "manifest has no signature")
    (world.store.checkpoint(1) / "manifest.json").unlink()
    refused(world, "checkpoint 1 has no manifest")


@pytest.mark.parametrize("signature", ["", "0" * 64, "\xff", "x" * 5000])
def test_bad_signature(world: World, signature: str) -> None:
    world.publish()
    (world.store.checkpoint(1) / "manifest.sig").write_text(signature, encoding="latin-1")
    refused(world, "larger than 4096 bytes" if len(signature) > 4096 else "manifest is not signed with this site's key")


def test_foreign_key(world: World) -> None:
    world.publish()
    refused(world, "manifest is not signed with this site's key", key=b"another key of another site")


def test_user_signs_a_changed_manifest_with_a_key_of_the_own(world: World) -> None:
    world.publish()
    directory = world.store.checkpoint(1)
    data = (directory / "manifest.json").read_bytes().replace(b"4.2.1", b"4.2.2")
    (directory / "manifest.json").write_bytes(data)
    (directory / "manifest.sig").write_text(sign(data, b"the user's own key"))
    refused(world, "manifest is not signed with this site's key")


@pytest.mark.parametrize(
    ("changes", "seq"),
    [({"job_id": 4712}, 1), ({"user": "john"}, 1), ({"uid": 47119}, 1), ({"cluster": "other"}, 1), ({}, 2)],
)
def test_manifest_moved_here_from_elsewhere(world: World, changes: dict[str, str | int], seq: int) -> None:
    """A good checkpoint, well signed, but of another job, user, cluster or number."""
    world.publish()
    world.forge(1, lambda manifest: replace(manifest, **changes))  # type: ignore[arg-type]
    if seq != 1:
        world.store.checkpoint(1).rename(world.store.checkpoint(seq))
    values = {"job_id": 4711, "user": "jane", "uid": world.job.uid, "cluster": "cluster"} | changes
    refused(
        world,
        f"manifest belongs to job {values['job_id']} of {values['user']} (uid {values['uid']}) on {values['cluster']}, "
        f"checkpoint 1; found as checkpoint {seq} of job 4711 of jane",
        seq,
    )


@pytest.mark.parametrize("path", ["../evil", "/etc/evil", "a/../../evil", "a//b", "./a", "a/", "", "a\0b"])
def test_signed_path_out_of_the_checkpoint(world: World, path: str) -> None:
    world.publish()
    world.forge(1, lambda manifest: replace(manifest, files=[replace(manifest.files[0], path=path)]))
    refused(world, "is not accepted: a relative path without")


# --- what a user can plant ----------------------------------------------------------------------------------------

PLACES = ["manifest.json", "manifest.sig", "output/0", "0/images/pages-1.img"]


def plant_link_to_good_content(path: Path, world: World) -> None:
    path.symlink_to(world.top / "copy")


def plant_dangling_link(path: Path, _: World) -> None:
    path.symlink_to("nowhere")


def plant_directory(path: Path, _: World) -> None:
    path.mkdir()


def plant_socket(path: Path, _: World) -> None:
    # The path is longer than a socket address may be.
    directory = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{directory}/{path.name}")
    os.close(directory)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "plant", [plant_link, plant_link_to_good_content, plant_dangling_link, plant_fifo, plant_directory, plant_socket]
)
def test_planted_in_the_place_of_a_file(world: World, place: str, plant: Callable[[Path, World], None]) -> None:
    world.publish()
    (world.top / "secret").write_text("secret")
    path = world.store.checkpoint(1) / place
    shutil.copy(path, world.top / "copy")
    path.unlink()
    world.as_user(plant, path, world) if plant is not plant_socket else plant(path, world)
    refused(world, "cannot be read: ")


@pytest.mark.parametrize("place", ["0", "0/images", "."])
def test_planted_link_in_the_place_of_a_directory(world: World, place: str) -> None:
    world.publish()
    path = world.store.checkpoint(1) / place
    moved = world.top / "moved"
    shutil.move(path, moved)
    moved.chmod(0o755)
    path.symlink_to(moved)
    refused(world, "cannot be read: ")


def test_extra_files_are_ignored(world: World) -> None:
    published = world.publish()
    directory = world.store.checkpoint(1)
    (directory / "0/images/extra.img").write_text("extra")
    os.mkfifo(directory / "fifo")
    (directory / "link").symlink_to("/etc/passwd")
    manifest, staging = world.fetch()
    assert manifest == published
    names = {str(path.relative_to(staging)) for path in staging.rglob("*") if not path.is_dir()}
    assert names == {*CONTENTS, "manifest.json", "manifest.sig"}


def test_links_in_the_way_of_a_commit(world: World) -> None:
    """A planted link is replaced, not followed: what it points to stays as it is."""
    victim = world.top / "victim"
    victim.mkdir()
    (victim / "file").write_text("kept")
    victim.chmod(0o777)
    world.as_user(os.symlink, victim, world.store.partial(1))
    world.publish()
    assert [path.name for path in victim.iterdir()] == ["file"]
    assert not world.store.checkpoint(1).is_symlink()
    world.fetch()


# --- compressed frames --------------------------------------------------------------------------------------------


def test_decompression_bomb(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 KiB that would become 2 GiB: no more than one chunk is ever made of it, and nothing of that is written."""
    context = zstandard.ZstdCompressor(level=1).compressobj(size=2**31)
    bomb = b"".join(context.compress(bytes(2**24)) for _ in range(2**7)) + context.flush()
    assert len(bomb) < 300_000
    stored(world, bomb, 1000, bytes(1000))
    made: list[int] = []
    monkeypatch.setattr(transfer, "write_all", lambda _, data: made.append(len(data)))
    refused(world, "file file does not have the content that was written (more than 1000 bytes)")
    assert sum(made) <= len((world.store.checkpoint(1) / "manifest.json").read_bytes()) + 64 + 1


def test_frame_that_wants_a_huge_window(world: World) -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    context = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data = context.compress(b"small") + context.flush()
    stored(world, data, 5, b"small")
    refused(world, "file file does not have the content that was written (zstd: ")


@pytest.mark.parametrize("cut", [1, 3, 100, 4000])
def test_truncated_frame(world: World, cut: int) -> None:
    """The file in the store is shorter than written; and, well signed, a frame that ends too early."""
    content = os.urandom(5000)
    frame = zstandard.compress(content)
    stored(world, frame, 5000, content)
    (world.store.checkpoint(1) / "file").write_bytes(frame[:-cut])
    refused(world, f"({len(frame) - cut} bytes in the store instead of {len(frame)})")
    shutil.rmtree(world.store.checkpoint(1))
    stored(world, frame[:-cut], 5000, content)
    refused(world, "file file does not have the content that was written (")


@pytest.mark.parametrize("data", [b"", b"not zstd at all", zstandard.compress(b"other")])
def test_not_the_frame(world: World, data: bytes) -> None:
    stored(world, data, 5000, bytes(5000))
    refused(world, "file file does not have the content that was written (")
