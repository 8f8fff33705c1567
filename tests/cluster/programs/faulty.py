"""chain.py with a fault in it: at link AT it does FAULT, each time or only the first time.

usage: faulty.py COUNT PAUSE AT FAULT always|once; before the fault it waits while there is a file `hold`
"""

import hashlib
import os
import signal
import sys
import time
from pathlib import Path

from holding import hold  # type: ignore[import-not-found]

count, pause, at, fault, how_often = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
first = Path(f"fault.{os.environ['SLURM_JOB_ID']}.{os.environ.get('SLURM_PROCID', '0')}")
state = b"start"
for number in range(count):
    state = hashlib.sha256(state).digest()
    print(f"{number} {state.hex()}", flush=True)
    time.sleep(pause)
    if number != at or (how_often == "once" and first.exists()):
        continue
    hold(at, at)
    first.touch()
    if fault == "hang":
        time.sleep(3600)
    elif fault == "memory":
        hog = [bytearray(64 << 20) for _ in range(64)]
    elif fault.startswith("exit-"):
        sys.exit(int(fault.removeprefix("exit-")))
    else:
        os.kill(os.getpid(), signal.Signals[fault])
