"""Change files where they have content already, always depending on it; compare it with what the program remembers.

inplace.py KIND PATH COUNT PAUSE, where KIND is file, mapped or hdf
"""

import hashlib
import os
import sys
import time
from typing import Any

from holding import hold  # type: ignore[import-not-found]

kind, path, count, pause = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
PLACES, SIZE = 64, 32


class File:
    """A file that is read and written at many places."""

    def __init__(self) -> None:
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.write(self.file, bytes(PLACES * SIZE))

    def read(self, place: int) -> bytes:
        return os.pread(self.file, SIZE, place * SIZE)

    def write(self, place: int, data: bytes) -> None:
        os.pwrite(self.file, data, place * SIZE)

    def extend(self, number: int) -> None:
        os.ftruncate(self.file, PLACES * SIZE + number % 5)


class Mapped:
    """numpy.memmap."""

    def __init__(self) -> None:
        import numpy  # type: ignore[import-not-found]

        self.array = numpy.memmap(path, dtype="uint8", mode="w+", shape=(PLACES, SIZE))

    def read(self, place: int) -> bytes:
        return bytes(self.array[place])

    def write(self, place: int, data: bytes) -> None:
        self.array[place] = list(data)

    def extend(self, number: int) -> None:
        if number % 10 == 0:
            self.array.flush()


class Hdf:
    """An HDF5 file with a data set that grows."""

    def __init__(self) -> None:
        import h5py  # type: ignore[import-not-found]

        # Without a cache for chunks each access goes to the file.
        self.file = h5py.File(path, "w", rdcc_nbytes=0)
        self.array = self.file.create_dataset("places", (PLACES, SIZE), dtype="uint8", chunks=(1, SIZE))
        self.log = self.file.create_dataset("log", (0,), maxshape=(None,), dtype="int64", chunks=(16,))

    def read(self, place: int) -> bytes:
        return bytes(self.array[place].tobytes())

    def write(self, place: int, data: bytes) -> None:
        self.array[place] = list(data)

    def extend(self, number: int) -> None:
        self.log.resize((number + 1,))
        self.log[number] = number
        assert self.log[:].tolist() == list(range(number + 1)), self.log[:]
        self.file.flush()


thing: Any = {"file": File, "mapped": Mapped, "hdf": Hdf}[kind]()
memory = [bytes(SIZE)] * PLACES
for number in range(count):
    hold(number, count)
    place = number * number % PLACES
    before = thing.read(place)
    memory[place] = hashlib.sha256(memory[place] + b"%d" % number).digest()
    thing.write(place, hashlib.sha256(before + b"%d" % number).digest())
    thing.extend(number)
    print(f"{kind} {number}", flush=True)
    time.sleep(pause)
print(kind, "exact" if [thing.read(place) for place in range(PLACES)] == memory else "differs", flush=True)
