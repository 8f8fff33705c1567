"""Whether a task's surroundings are those that root made.

A task that can choose what lies at /usr/libexec must not be wrapped.
"""

from __future__ import annotations

import os
from pathlib import Path

from slurmckpt.errors import SlurmckptError


class Unwrappable(SlurmckptError):
    """This task runs without checkpoints. The message is the reason."""


def check(shim_pid: int, uid: int, proc: Path = Path("/proc")) -> list[int]:
    """The supplementary groups of the shim, once its root, user namespace and user are what they must be.

    Raises Unwrappable.
    """
    shim, own = proc / str(shim_pid), proc / "self"
    try:
        # Two roots are the same when they are the same directory of the same mount tree; a container has another one.
        there, here = os.stat(shim / "root"), os.stat(own / "root")
        if (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino):
            raise Unwrappable("the task runs in a container, which this version does not support")
        if os.readlink(shim / "ns/user") != os.readlink(own / "ns/user"):
            raise Unwrappable("the task runs in a user namespace of its own, which this version does not support")
        fields = {}
        for line in (shim / "status").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            fields[name] = value.split()
    except OSError as error:
        raise Unwrappable(f"the task shim cannot be examined: {error.strerror}") from error
    if "Uid" not in fields or "Groups" not in fields:
        raise Unwrappable("the task shim is ending")
    if any(int(value) != uid for value in fields["Uid"]):
        raise Unwrappable(f"the task shim runs with user ids {' '.join(fields['Uid'])}, not as {uid}")
    return [int(group) for group in fields["Groups"]]
