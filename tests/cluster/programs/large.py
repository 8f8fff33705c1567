"""Hold very much memory and go on changing it; compare all of it in the end. large.py GIGABYTES ROUNDS"""

import os
import sys

import numpy  # type: ignore[import-not-found]

PIECE = 1 << 23  # of 8 bytes
pieces, rounds = int(float(sys.argv[1]) * 1e9) // (8 * PIECE), int(sys.argv[2])
memory = numpy.empty((pieces, PIECE), dtype="uint64")
pages = numpy.arange(PIECE, dtype="uint64") >> numpy.uint64(9)
for number in range(pieces):
    # Every page has a content of its own.
    memory[number] = pages + numpy.uint64(number << 20)
print("filled", flush=True)
for turn in range(rounds):
    memory[turn % pieces] += numpy.uint64(1)
    print("round", turn, flush=True)
    while turn == rounds // 2 and not os.path.exists("go"):
        memory[turn % pieces] ^= numpy.uint64(1)
        memory[turn % pieces] ^= numpy.uint64(1)
added = [len(range(number, rounds, pieces)) for number in range(pieces)]
exact = all((memory[number] == pages + numpy.uint64((number << 20) + added[number])).all() for number in range(pieces))
print("exact" if exact else "differs", flush=True)
