"""Prints its standard input, 300 lines, slowly, and reads no byte before it is needed; notes each line in a file."""

import os
import sys
import time

from holding import hold  # type: ignore[import-not-found]

pause = float(sys.argv[1])
with open(sys.argv[2], "a") as own:
    line, count = b"", 0
    while byte := os.read(0, 1):
        line += byte
        if byte == b"\n":
            hold(count, 300)
            count += 1
            print(line.decode(), end="", flush=True)
            print("read", file=own, flush=True)
            line = b""
            time.sleep(pause)
