"""pool.py ROUNDS SECONDS: a pool of four processes works on two maps at once; one line a result."""

from __future__ import annotations

import hashlib
import multiprocessing
import sys
import time

from holding import hold  # type: ignore[import-not-found]

pause = float(sys.argv[2])


def work(number: int) -> str:
    time.sleep(pause * 2)
    return hashlib.sha256(b"%d" % number * 100_000).hexdigest()


def main() -> None:
    rounds = int(sys.argv[1])
    with multiprocessing.Pool(4, maxtasksperchild=7) as pool:
        both = zip(pool.imap(work, range(rounds)), pool.imap(work, range(rounds, 2 * rounds), chunksize=3), strict=True)
        for number, (one, other) in enumerate(both):
            hold(number, rounds)
            print(number, one, other, flush=True)


if __name__ == "__main__":
    main()
