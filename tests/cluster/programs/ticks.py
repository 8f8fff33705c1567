"""ticks.py NAME: it and a child of its own each append to a file, 20 times a second, until `stop` exists. SIGTSTP does not stop them."""

import os
import signal
import sys
import time

signal.signal(signal.SIGTSTP, lambda number, frame: None)
name = sys.argv[1] + os.environ["SLURM_PROCID"]
if os.fork() == 0:
    name += ".child"
with open(f"{name}.ticks", "a", buffering=1) as ticks:
    while not os.path.exists("stop"):
        ticks.write("tick\n")
        time.sleep(0.05)
