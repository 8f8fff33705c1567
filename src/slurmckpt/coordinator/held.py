"""The beginnings of lines that a task shim holds back, in the memory that it shares with us (docs/architecture.md).

slurmstepd would keep an incomplete line in its own memory, where no image and no file has it. The shim passes on whole
lines only, so what a task has written is in its output, or here.
"""

from __future__ import annotations

import fcntl
import os
import struct

from slurmckpt.coordinator.wire import WireError

STREAMS = (1, 2)
SLOT = 2048
SIZE = SLOT * len(STREAMS)
# SLURM_IO_MAX_MSG_LEN of slurmstepd: longer lines are passed on in pieces of this size.
LIMIT = 1024
_LENGTH = struct.Struct("=I")


def check(memory: int) -> None:
    """Raises WireError unless the descriptor is such a memory."""
    try:
        # Only files in memory have seals. Any other file could make us wait, or take what we write for root's wish.
        fcntl.fcntl(memory, fcntl.F_GET_SEALS)
    except OSError as error:
        raise WireError("a memory for held lines that is not a memfd") from error
    if os.fstat(memory).st_size != SIZE:
        raise WireError(f"a memory for held lines of {os.fstat(memory).st_size} bytes; {SIZE} are expected")


def read(memory: int) -> dict[int, bytes]:
    """What is held of each stream that holds anything. The content is the user's.

    To be called while the shim sleeps.
    """
    found = {}
    for number, stream in enumerate(STREAMS):
        slot = os.pread(memory, SLOT, number * SLOT)
        if len(slot) < _LENGTH.size:
            continue
        (length,) = _LENGTH.unpack_from(slot)
        if 0 < length < LIMIT:
            found[stream] = slot[_LENGTH.size : _LENGTH.size + length]
    return found


def write(memory: int, held: dict[int, bytes]) -> None:
    """Let the shim begin with this. To be called before RUN."""
    for number, stream in enumerate(STREAMS):
        text = held.get(stream, b"")
        if len(text) >= LIMIT:
            raise WireError(f"{len(text)} held bytes; fewer than {LIMIT} are possible")
        os.pwrite(memory, _LENGTH.pack(len(text)) + text, number * SLOT)
