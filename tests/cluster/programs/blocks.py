"""Prints numbered lines in blocks of a fixed size that end in mid-line, as a block-buffered stdout does."""

import os
import sys
import time

from holding import hold  # type: ignore[import-not-found]

count, size, pause = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
rank = os.environ.get("SLURM_PROCID", "0")
text = "".join(f"{rank} line {number} {'x' * (number % 50)}\n" for number in range(count)).encode()
for start in range(0, len(text), size):
    hold(start, len(text))
    os.write(1, text[start : start + size])
    time.sleep(pause)
