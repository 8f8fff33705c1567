"""Prints a chain of hashes, one link a line; also appends each link to a file of its own. See programs/holding.py."""

import hashlib
import sys
import time

from holding import hold  # type: ignore[import-not-found]

count, pause = int(sys.argv[1]), float(sys.argv[2])
state = b"start"
with open(sys.argv[3], "a") if len(sys.argv) > 3 else open("/dev/null", "w") as own:
    for number in range(count):
        hold(number, count)
        state = hashlib.sha256(state).digest()
        line = f"{number} {state.hex()}"
        print(line, flush=True)
        print(line, file=own, flush=True)
        time.sleep(pause)
sys.exit(int(sys.argv[4]) if len(sys.argv) > 4 else 0)
