"""The gate's file: made before a pod starts, read and written while it runs.

It is never mapped here: the file is the user's, and who cuts it off would kill whoever has it mapped.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from pathlib import Path
from types import TracebackType

from slurmckpt.capture.gate import layout
from slurmckpt.errors import SlurmckptError

_WORD = struct.Struct("=I")
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class GateError(SlurmckptError):
    """The gate's memory is not there, or is not what it should be."""


class Region:
    """An open region. A context manager: the file is closed at the end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def create(cls, path: Path, uid: int, gid: int) -> Region:
        """Make a region for the ranks of this user, in the place of whatever has this name. Raises GateError."""
        descriptor = -1
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            descriptor = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
            os.ftruncate(descriptor, layout.SIZE)
            os.pwrite(descriptor, layout.empty(), 0)
            os.fchown(descriptor, uid, gid)
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            raise GateError(f"{path}: no gate can be made: {error.strerror}") from error
        return cls(descriptor)

    @classmethod
    def open(cls, path: Path) -> Region:
        """The region at `path`. Raises GateError when there is none."""
        try:
            descriptor = os.open(path, _FLAGS)
        except OSError as error:
            raise GateError(f"{path}: the gate cannot be opened: {error.strerror}") from error
        region = cls(descriptor)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size != layout.SIZE:
                raise GateError(f"{path}: is not a gate of this version: not a file of {layout.SIZE} bytes")
            region.header()
        except BaseException:
            region.close()
            raise
        return region

    def header(self) -> layout.Header:
        """The header as it is now. Raises GateError."""
        header = layout.header(self._read(0, layout.HEADER_SIZE))
        if header is None:
            raise GateError("the gate's memory has been overwritten: it does not begin as a gate of this version")
        return header

    def snapshot(self) -> layout.Snapshot:
        """Everything that is in use. Raises GateError."""
        header = self.header()
        members = tuple(layout.members(self._read(layout.MEMBERS_AT, header.members_used * layout.MEMBER_SIZE)))
        known = {member.index: member for member in members}
        pairs = tuple(layout.pairs(self._read(layout.PAIRS_AT, header.pairs_used * layout.PAIR_SIZE), known))
        return layout.Snapshot(header, members, pairs)

    def write(self, offset: int, value: int) -> None:
        """Write one word of 32 bits. Raises GateError."""
        try:
            os.pwrite(self._descriptor, _WORD.pack(value & 0xFFFFFFFF), offset)
        except OSError as error:
            raise GateError(f"the gate's memory cannot be written: {error.strerror}") from error

    def open_gate(self) -> None:
        """Let everybody through. Raises GateError."""
        self.write(layout.CLOSED_AT, 0)

    def close(self) -> None:
        """Close the file. The gate stays as it is."""
        os.close(self._descriptor)

    def __enter__(self) -> Region:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, offset: int, size: int) -> bytes:
        try:
            data = os.pread(self._descriptor, size, offset)
        except OSError as error:
            raise GateError(f"the gate's memory cannot be read: {error.strerror}") from error
        if len(data) != size:
            raise GateError("the gate's memory has been cut off")
        return data
