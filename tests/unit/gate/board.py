"""What ranks of NCCL's double that run random programs share with the test."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from tests.unit.gate.programs import Program

MOST_RANKS = 8
MOST_OPERATIONS = 256
MOST_COMMUNICATORS = 64
MOST_STOPS = 4


class Board(ctypes.Structure):
    """Memory of all ranks and of the test.

    sums: the device memory of the ranks, where a test looks at it. enqueued: collectives, once they are enqueued.
    """

    _fields_ = [
        ("sums", ctypes.c_double * 2 * MOST_COMMUNICATORS * MOST_RANKS),
        ("enqueued", ctypes.c_uint64 * MOST_COMMUNICATORS * MOST_RANKS),
        ("met", ctypes.c_ubyte * MOST_RANKS * MOST_OPERATIONS),
        ("stopped", ctypes.c_ubyte * MOST_STOPS),
        ("passed", ctypes.c_ubyte),
        ("closing", ctypes.c_ubyte),
    ]


@dataclass(frozen=True)
class Case:
    """A program, and where one of its ranks stops until a test is there: before these operations, in this order.

    version: of the profiler interface that the double has. in_place: some ranks send to themselves in place.
    """

    program: Program
    stopping: int
    stops: tuple[int, ...]
    version: int = 7
    in_place: bool = False
