"""Checkpoints between the root-only staging directory and the store that nobody trusts.

Towards the store: root opens what it captured, the user's thread writes it. From the store: the user's thread reads,
into files that root has made, and only what has arrived there is verified and used.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import stat
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from typing import IO, Literal, cast

import zstandard
from blake3 import blake3

from slurmckpt import faults
from slurmckpt.errors import Refused, StoreError
from slurmckpt.identity import JobIdentity
from slurmckpt.store.files import create, open_regular, read_small, write_all
from slurmckpt.store.identity import UserFiles, beat
from slurmckpt.store.layout import JobStore
from slurmckpt.store.manifest import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    SIGNATURE_NAME,
    Manifest,
    Stored,
    StoredFile,
)
from slurmckpt.store.partial import CHUNK_BYTES, Partial, Stopped
from slurmckpt.store.signature import sign, verify

MAX_SIGNATURE_BYTES = 4096

# zstd's largest window at level 19 is 2^23 bytes (ZSTD_defaultCParameters); a hostile frame may not ask for much more.
_MAX_WINDOW = 2**24


async def publish(
    staging: Path,
    store: JobStore,
    files: UserFiles,
    manifest_without_files: Manifest,
    key: bytes,
    compression: Literal["zstd", "none"],
    level: int,
    lease_check: Callable[[], Awaitable[None]],
) -> Manifest:
    """Commit the files below `staging` as checkpoint `manifest_without_files.seq`, and give the complete manifest.

    level: of zstd. lease_check: called right before the rename; what it raises (LeaseLost) ends the commit.
    Only regular files are carried, not empty directories. Staging stays as it is, so that the caller can try again.
    Raises StoreError with one line; then nothing is published and what was written is removed.
    """
    stored: Stored = "zstd" if compression == "zstd" else "plain"
    partial = Partial(store, manifest_without_files.seq)
    try:
        faults.at("commit.begin")
        sources = await asyncio.to_thread(_list_staging, staging)
        await files.run(partial.make)
        written = []
        for source in sources:
            file = await asyncio.to_thread(open_regular, staging, source.path)
            written.append(await files.run(partial.add, source.path, file, source.mode, stored, level))
        manifest = replace(manifest_without_files, files=written)
        data = _readable(manifest, store.job)
        await files.run(partial.seal, data, sign(data, key))
        await lease_check()
        await files.run(partial.publish)
    except BaseException as error:
        partial.stop.set()
        # The user's thread works in order: once abandon() runs, nothing else of this commit does.
        with contextlib.suppress(OSError):
            await asyncio.shield(files.run(partial.abandon))
        if isinstance(error, OSError):
            where = f"checkpoint {manifest_without_files.seq} cannot be written to {store.dir}"
            raise StoreError(f"{where}: {_reason(error)}") from error
        raise
    return manifest


async def fetch(store: JobStore, seq: int, files: UserFiles, key: bytes, staging: Path) -> Manifest:
    """Copy checkpoint `seq` to the root-only directory `staging` (new or empty), verify it there, give its manifest.

    What the manifest does not name is not copied. Raises Refused with the reason when the checkpoint cannot be used,
    StoreError when staging cannot be; then staging is left empty.
    """
    stop = threading.Event()
    try:
        await asyncio.to_thread(_make_staging, staging)
    except OSError as error:
        raise StoreError(f"staging directory {staging} cannot be made: {_reason(error)}") from error
    try:
        manifest = await _fetch_manifest(store, seq, files, key, staging)
        for file in manifest.files:
            target = await asyncio.to_thread(_create_staged, staging, file)
            await files.run(_receive, store.checkpoint(seq), file, target, stop)
    except BaseException as error:
        stop.set()
        await asyncio.shield(files.run(_nothing))  # until then the user's thread may still be writing to staging
        await asyncio.shield(asyncio.to_thread(_empty, staging))
        if isinstance(error, OSError):
            raise StoreError(f"staging directory {staging} cannot be written: {_reason(error)}") from error
        raise
    return manifest


async def _fetch_manifest(store: JobStore, seq: int, files: UserFiles, key: bytes, staging: Path) -> Manifest:
    """The manifest, once its signature stands and it is that of the job and number it was found under."""
    data = await files.run(
        _read_meta, store.checkpoint(seq), MANIFEST_NAME, MAX_MANIFEST_BYTES, f"checkpoint {seq} has no manifest"
    )
    signature = await files.run(
        _read_meta, store.checkpoint(seq), SIGNATURE_NAME, MAX_SIGNATURE_BYTES, "manifest has no signature"
    )
    # The very bytes that were read are verified, parsed and kept: the store is not asked again.
    if not verify(data, signature.decode("ascii", "replace").strip(), key):
        raise Refused("manifest is not signed with this site's key")
    manifest = Manifest.from_json(data)
    _check_owner(manifest, store.job, seq)
    await asyncio.to_thread(_keep, staging, data, signature)
    return manifest


def _check_owner(manifest: Manifest, job: JobIdentity, seq: int) -> None:
    found = (manifest.cluster, manifest.user, manifest.uid, manifest.job_id, manifest.seq)
    if found != (job.cluster, job.user, job.uid, job.job_id, seq):
        raise Refused(
            f"manifest belongs to job {manifest.job_id} of {manifest.user} (uid {manifest.uid}) on {manifest.cluster}, "
            f"checkpoint {manifest.seq}; found as checkpoint {seq} of job {job.job_id} of {job.user} (uid {job.uid}) "
            f"on {job.cluster}"
        )


def _readable(manifest: Manifest, job: JobIdentity) -> bytes:
    """The manifest as bytes that fetch() accepts: what would be refused then is an error now, while the job runs."""
    data = manifest.to_json()
    try:
        if len(data) > MAX_MANIFEST_BYTES:
            raise Refused(f"manifest has {len(data)} bytes; accepted: at most {MAX_MANIFEST_BYTES}")
        _check_owner(Manifest.from_json(data), job, manifest.seq)
    except Refused as error:
        raise StoreError(f"checkpoint {manifest.seq} could not be read back: {error}") from error
    return data


def _read_meta(base: Path, name: str, limit: int, when_missing: str) -> bytes:
    """In the user's thread: manifest or signature, bounded."""
    try:
        return read_small(base, name, limit)
    except FileNotFoundError as error:
        raise Refused(when_missing) from error
    except OSError as error:
        raise Refused(f"{name} cannot be read: {_reason(error)}") from error


def _receive(base: Path, file: StoredFile, target: FileIO, stop: threading.Event) -> None:
    """In the user's thread: copy one file to `target`, and close it. The hash is of the very bytes that were written.

    Raises Refused when the store's file is not what was written, OSError when `target` cannot be written.
    """
    with target:
        try:
            raw = open_regular(base, file.path)
        except FileNotFoundError as error:
            raise Refused(f"file {file.path} is missing") from error
        except OSError as error:
            raise Refused(f"file {file.path} cannot be read: {_reason(error)}") from error
        with raw:
            there = os.fstat(raw.fileno()).st_size
            if there != file.stored_size:
                raise _changed(file, f"{there} bytes in the store instead of {file.stored_size}")
            faults.at("restore.fetch")
            hasher = blake3()
            size = 0
            for chunk in _content(file, _Source(raw, file)):
                if stop.is_set():
                    raise Stopped
                size += len(chunk)
                if size > file.size:
                    raise _changed(file, f"more than {file.size} bytes")
                hasher.update(chunk)
                write_all(target, chunk)
                beat()
    if size != file.size:
        raise _changed(file, f"{size} bytes instead of {file.size}")
    if hasher.hexdigest() != file.blake3:
        raise _changed(file, f"blake3 {hasher.hexdigest()[:16]} instead of {file.blake3[:16]}")


class _Source:
    """At most `file.stored_size` bytes of the store's file, however long its owner makes it while it is read."""

    def __init__(self, raw: FileIO, file: StoredFile) -> None:
        self._raw = raw
        self._file = file
        self._left = file.stored_size

    def read(self, size: int = CHUNK_BYTES) -> bytes:
        try:
            chunk = self._raw.read(min(size, self._left)) or b""
        except OSError as error:
            raise Refused(f"file {self._file.path} cannot be read: {_reason(error)}") from error
        self._left -= len(chunk)
        return chunk


def _content(file: StoredFile, source: _Source) -> Iterator[bytes]:
    """The content in chunks of bounded size, whatever a frame would like to become."""
    if file.stored == "plain":
        while chunk := source.read():
            yield chunk
        return
    try:
        with zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).stream_reader(cast("IO[bytes]", source)) as reader:
            while chunk := reader.read(CHUNK_BYTES):
                yield chunk
    except zstandard.ZstdError as error:
        raise _changed(file, f"zstd: {error}") from error


def _changed(file: StoredFile, how: str) -> Refused:
    return Refused(f"file {file.path} does not have the content that was written ({how})")


@dataclass(frozen=True)
class _Staged:
    path: str
    mode: int


def _list_staging(staging: Path) -> list[_Staged]:
    """The regular files below `staging`, sorted. Raises StoreError for what cannot be carried, OSError."""
    found: list[_Staged] = []
    directories = [""]
    while directories:
        directory = directories.pop()
        with os.scandir(staging / directory) as entries:
            for entry in entries:
                path = f"{directory}/{entry.name}" if directory else entry.name
                mode = entry.stat(follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode):
                    directories.append(path)
                elif not stat.S_ISREG(mode) or path in (MANIFEST_NAME, SIGNATURE_NAME):
                    raise StoreError(f"staging {staging} holds {path}, which is no regular file or has a reserved name")
                else:
                    found.append(_Staged(path, mode & 0o777))
    return sorted(found, key=lambda file: file.path)


def _make_staging(staging: Path) -> None:
    with contextlib.suppress(FileExistsError):
        os.makedirs(staging, 0o700)
    if not stat.S_ISDIR(os.lstat(staging).st_mode) or os.listdir(staging):
        raise StoreError(f"staging {staging} is not an empty directory")
    os.chmod(staging, 0o700)


def _create_staged(staging: Path, file: StoredFile) -> FileIO:
    """The file to copy to, with its final mode: the directory lets nobody but root in."""
    path = staging / file.path
    os.makedirs(path.parent, 0o700, exist_ok=True)
    return create(path, mode=file.mode)


def _keep(staging: Path, manifest: bytes, signature: bytes) -> None:
    for name, data in ((MANIFEST_NAME, manifest), (SIGNATURE_NAME, signature)):
        with create(staging / name) as file:
            write_all(file, data)


def _empty(staging: Path) -> None:
    for entry in list(os.scandir(staging)):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                os.unlink(entry.path)


def _nothing() -> None:
    """Run in a thread to wait for what runs there before it."""


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
