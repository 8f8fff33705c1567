"""One look at a pod."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

from slurmckpt.capture.preflight import Limits, PodScan, scan

MakePod = Callable[..., Any]


# The command name of a Python started as the pods' leaders are: it depends on how this interpreter was installed.
PYTHON = subprocess.run(
    [sys.executable, "-c", "print('(' + open('/proc/self/comm').read().strip() + ')')"],
    capture_output=True,
    check=True,
    text=True,
).stdout.strip()


def look(pod: Any, known: tuple[str, ...] = (), **limits: int) -> PodScan:
    return scan(pod.init, pod.leader, set(known), Limits(**limits))


def one_refusal(pod: Any, known: tuple[str, ...] = ()) -> str:
    found = look(pod, known)
    assert len(found.refusals) == 1, found.refusals
    return found.refusals[0]
