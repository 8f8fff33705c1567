"""Pids of a captured pod: those that its processes had, and from which on new ones are given.

CRIU gives every process and thread its pid again, but new ones would get those that the kernel gives a young pod: the
low ones, and then those of processes that ended before the checkpoint and that a restored program may remember.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from slurmckpt.capture import notes
from slurmckpt.errors import Refused

FILE = "last-pid"
_CORE = re.compile(r"core-([1-9][0-9]{0,9})\.img", re.ASCII)


def save(last: int, images: Path) -> None:
    """Note beside the images the last pid that was given in the pod. Raises OSError."""
    with notes.create(images / FILE) as file:
        file.write(f"{last}\n")


def highest(images: Path) -> int:
    """The highest pid of a process or thread in these images; 0 without any. Raises OSError."""
    return max((int(found[1]) for name in os.listdir(images) if (found := _CORE.fullmatch(name))), default=0)


def last(images: Path) -> int:
    """After which pid new ones are to be given. Without a note after the highest. Raises OSError or Refused."""
    try:
        text = (images / FILE).read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return highest(images)
    except UnicodeDecodeError:
        text = ""
    if not re.fullmatch(r"[1-9][0-9]{0,9}", text, re.ASCII):
        raise Refused(f"the note of the last pid in the checkpoint cannot be read: {text[:40]!r}")
    return int(text)


def check(images: Path, pid_max: int) -> None:
    """Raises Refused when a pid of these images is too high here. pid_max: the first number that is."""
    if (pid := highest(images)) >= pid_max:
        raise Refused(
            f"it has a process or thread {pid}, and kernel.pid_max is {pid_max} on this node: set it to 4194304"
        )
