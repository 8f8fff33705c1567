"""blas.py ROUNDS SECONDS: products of matrices of small whole numbers, so that threads cannot round; one line a round."""

from __future__ import annotations

import hashlib
import sys
import time

import numpy as np  # type: ignore[import-not-found]
from holding import hold  # type: ignore[import-not-found]

rounds, pause = int(sys.argv[1]), float(sys.argv[2])
numbers = np.random.default_rng(1)
first = numbers.integers(0, 100, (400, 400)).astype(np.float64)
second = numbers.integers(0, 100, (400, 400)).astype(np.float64)
for number in range(rounds):
    hold(number, rounds)
    first = (first @ second) % 101
    print(number, hashlib.sha256(first.tobytes()).hexdigest(), flush=True)
    time.sleep(pause)
