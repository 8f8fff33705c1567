"""look.h for Python: tell what is held whenever a file look.N appears, until there is a file `stop`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable


def loop(tell: Callable[[], None]) -> None:
    print("ready", flush=True)
    look = 0
    while not os.path.exists("stop"):
        if os.path.exists(f"look.{look}"):
            print(f"look {look}")
            tell()
            print(f"end {look}", flush=True)
            look += 1
        time.sleep(0.02)
    print("last", flush=True)
