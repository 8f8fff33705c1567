"""A checkpoint while it is being written: `<seq>.partial`, which becomes `<seq>` in one rename or goes away.

Every method runs in the user's thread. Names are resolved from the descriptor of the directory that was made, so that
two writers with the same number (a node given up for dead may still be writing) never mix their files.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable
from io import FileIO

import zstandard
from blake3 import blake3

from slurmckpt import faults
from slurmckpt.errors import StoreError
from slurmckpt.store.files import create, make_directory, remove_tree, sync_directory, write_all
from slurmckpt.store.identity import beat
from slurmckpt.store.layout import JobStore
from slurmckpt.store.manifest import MANIFEST_NAME, SIGNATURE_NAME, Stored, StoredFile

CHUNK_BYTES = 4 * 2**20

# Compression runs beside the job: more threads would take its cores.
_ZSTD_THREADS = 2


class Stopped(Exception):
    """The copy was told to stop."""


class Partial:
    """The directory `<seq>.partial` of this writer. `stop` may be set from any thread and ends a running add()."""

    def __init__(self, store: JobStore, seq: int) -> None:
        """Nothing is touched before make()."""
        self.stop = threading.Event()
        self._parent = store.dir
        self._path = store.partial(seq)
        self._final = store.checkpoint(seq)
        self._directories: set[str] = set()
        self._fd = -1

    def make(self) -> None:
        """Make the directory. A partial that an earlier try with this number left behind is removed.

        Raises StoreError when the checkpoint exists already, OSError when the directory cannot be made.
        """
        self._refuse_existing()
        remove_tree(self._path)
        make_directory(self._path)
        self._fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def add(self, path: str, source: FileIO, mode: int, stored: Stored, level: int) -> StoredFile:
        """Store the content of `source` at the relative `path`, durable, and close `source`.

        The hash is of the very bytes that were stored. Raises OSError, Stopped, or StoreError when `source` changes.
        """
        with source:
            size = os.fstat(source.fileno()).st_size
            self._make_directories(path)
            # Buffered, because one write(2) may take less than it was given when the disk is nearly full.
            with io.BufferedWriter(create(path, self._fd)) as target:
                if stored == "zstd":
                    compressor = zstandard.ZstdCompressor(level=level, threads=_ZSTD_THREADS)
                    # No "with": after an error it would end the frame, fail at that, and hide the error.
                    frame = compressor.stream_writer(target, size=size, closefd=False)
                    digest = self._copy(path, source, frame.write, size)
                    frame.flush(zstandard.FLUSH_FRAME)
                else:
                    digest = self._copy(path, source, target.write, size)
                target.flush()
                faults.at("commit.fsync")
                os.fsync(target.fileno())
                stored_size = os.fstat(target.fileno()).st_size
        return StoredFile(path, size, mode, digest, stored, stored_size)

    def seal(self, manifest: bytes, signature: str) -> None:
        """Write signature and manifest, in this order, and make every name in the checkpoint durable."""
        faults.at("commit.sign")
        for name, data in ((SIGNATURE_NAME, signature.encode() + b"\n"), (MANIFEST_NAME, manifest)):
            with create(name, self._fd) as file:
                write_all(file, data)
                os.fsync(file.fileno())
        for directory in sorted(self._directories, reverse=True):
            sync_directory(directory, self._fd)
        os.fsync(self._fd)

    def publish(self) -> None:
        """Rename `<seq>.partial` to `<seq>`, durable. Raises StoreError when somebody was faster or took it away."""
        self._refuse_existing()
        if not self._is_ours():
            raise StoreError(f"{self._path} was removed or replaced while it was being written")
        faults.at("commit.rename")
        os.rename(self._path, self._final)
        faults.at("commit.renamed")
        sync_directory(self._parent)
        self.close()

    def abandon(self) -> None:
        """Remove the directory, when it is still the one that this writer made."""
        try:
            if self._is_ours():
                remove_tree(self._path)
        finally:
            self.close()

    def close(self) -> None:
        """Give the descriptor of the directory back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _refuse_existing(self) -> None:
        if os.path.lexists(self._final):
            raise StoreError(f"checkpoint {self._final.name} exists already in {self._parent}")

    def _copy(self, path: str, source: FileIO, write: Callable[[bytes], int], size: int) -> str:
        """Copy `size` bytes; gives their blake3."""
        faults.at("commit.copy")
        hasher = blake3()
        left = size
        while left > 0:
            if self.stop.is_set():
                raise Stopped
            chunk = source.read(min(CHUNK_BYTES, left))
            if not chunk:
                raise StoreError(
                    f"staging file {path} became shorter while it was read: {left} of {size} bytes missing"
                )
            hasher.update(chunk)
            write(chunk)
            beat()
            left -= len(chunk)
        return hasher.hexdigest()

    def _make_directories(self, path: str) -> None:
        parts = path.split("/")[:-1]
        for count in range(1, len(parts) + 1):
            directory = "/".join(parts[:count])
            if directory not in self._directories:
                make_directory(directory, self._fd)
                self._directories.add(directory)

    def _is_ours(self) -> bool:
        if self._fd < 0:
            return False
        try:
            there = os.stat(self._path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        here = os.fstat(self._fd)
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)
