"""Prints its standard input line by line, slowly, and reads no byte before it is needed; notes each line in a file."""

import os
import sys
import time

pause = float(sys.argv[1])
with open(sys.argv[2], "a") as own:
    line = b""
    while byte := os.read(0, 1):
        line += byte
        if byte == b"\n":
            print(line.decode(), end="", flush=True)
            print("read", file=own, flush=True)
            line = b""
            time.sleep(pause)
