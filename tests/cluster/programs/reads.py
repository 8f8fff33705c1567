"""Reads what another program has made, in one of several ways, and prints the numbers that it finds: KIND FILE PAUSE.

stream: a line at a time. mapped: through a mapping. library: by a function of a shared library. module: by a module that
Python has imported, and forgotten where from.
"""

import ctypes
import importlib
import mmap
import os
import sys
import time
from collections.abc import Iterator

from holding import hold  # type: ignore[import-not-found]

COUNT = 150


def numbers(kind: str, path: str) -> Iterator[int]:
    if kind == "stream":
        with open(path) as file:
            for text in file:
                yield int(text)
    elif kind == "mapped":
        with open(path) as file:
            content = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        while entry := content.readline():
            yield int(entry)
    elif kind == "library":
        library = ctypes.CDLL(path)
        while True:
            yield library.next_number()
    else:
        sys.path.insert(0, os.path.dirname(path))
        yield from importlib.import_module("counting").numbers()


kind, path, pause = sys.argv[1], sys.argv[2], float(sys.argv[3])
for number, place in zip(numbers(kind, path), range(COUNT), strict=False):
    hold(place, COUNT)
    print(f"{kind} {number}", flush=True)
    time.sleep(pause)
