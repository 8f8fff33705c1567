"""Sockets of every kind, each in a state of its own: sockets.py [NAME]...

Each case is a generator: what it does before its yield is done before the checkpoint, what follows is done after the
file `go` is there, and says whether everything is as it was.
"""

import os
import socket
import sys
import time

import sockets_inet  # type: ignore[import-not-found]
import sockets_unix  # type: ignore[import-not-found]
from sockets_common import Case  # type: ignore[import-not-found]

CASES = {
    function.__name__: function
    for function in [*vars(sockets_unix).values(), *vars(sockets_inet).values()]
    if callable(function) and getattr(function, "__annotations__", None) == {"return": Case}
}


def main() -> None:
    """Run the cases."""
    names = sys.argv[1:] or [*CASES, *sockets_inet.OPTIONS]
    cases = {name: sockets_inet.options_of(name) if name in sockets_inet.OPTIONS else CASES[name]() for name in names}
    for case in cases.values():
        next(case)
    print("ready", flush=True)
    while not os.path.exists("go"):
        time.sleep(0.05)
    socket.setdefaulttimeout(10)
    for name, case in cases.items():
        try:
            next(case)
        except StopIteration:
            print(name, "ok", flush=True)
        except (OSError, AssertionError) as error:
            print(name, f"FAILED: {type(error).__name__}: {error}", flush=True)
    print("end", flush=True)


main()
