"""What is done with each file that a pod has open for writing: the site's rules, and what fits into its limit."""

from __future__ import annotations

import contextlib
import os
import pwd
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slurmckpt.capture.inspect.descriptors import Writing
from slurmckpt.capture.inspect.mounts import Mount
from slurmckpt.capture.preflight import OpenFile, PodScan
from slurmckpt.capture.processes import Process
from slurmckpt.config import Files
from slurmckpt.coordinator.proc import start_time
from slurmckpt.errors import Refused
from slurmckpt.filerules import Policy
from slurmckpt.units import format_bytes

# Beside the policies of the settings. "unchanged": too large to be saved, but nobody has written it since the pod
# began. "carried": it comes along with its directory. "pipe": a named pipe, made anew where it is gone. "read": a file
# that is only read, the same (reading.py). "temporary", "link", "directory": in /tmp, and not open (temporary.py).
Treatment = Literal[
    "truncate", "keep", "save", "unchanged", "carried", "pipe", "read", "temporary", "link", "directory"
]

# A file that seems to grow only, and is smaller, is saved all the same: it may be a result that is written anew again
# and again, as by open(path, "w"), or lie on the node itself.
_SMALL_BYTES = 16 << 20


@dataclass(frozen=True)
class Rules:
    """The site's settings, and the job's user with its home (empty: none). own: where files of ours lie.

    shared: devices of file systems that all nodes have. since: when the job began first, ns since 1970.
    """

    settings: Files
    uid: int
    home: str
    own: Path
    shared: Collection[int] = ()
    since: int = sys.maxsize

    def of(self, file: OpenFile) -> Treatment:
        """What is done with this file, as far as it does not depend on others."""
        policy = self.policy(file.path)
        if policy != "auto":
            return policy
        return "truncate" if file.writing <= Writing.ONWARDS and file.size > _SMALL_BYTES else "save"

    def may_cut(self, file: OpenFile) -> bool:
        """Whether a file that does not fit may be cut back instead: nothing speaks for another place than its end."""
        return self.policy(file.path) == "auto" and file.writing < Writing.ANYWHERE

    def policy(self, path: str) -> Policy:
        """What the site says of a file that is written."""
        fitting = (rule.policy for rule in self.settings.rules if rule.fits(path, self.home))
        return next(fitting, self.settings.policy)

    def concern(self, path: str) -> bool:
        """Whether it may be a file of the job's own, and is not brought back in another way."""
        # While CRIU's parasite is in a process, CRIU's own log is open there. /dev/shm is saved as a whole.
        return not Path(path).is_relative_to(self.own) and not path.startswith("/dev/shm/")


@dataclass(frozen=True)
class Pod:
    """A pod as far as files go. root: descriptor of its root directory. since: when it began, ns since 1970.

    vague: devices whose files do not tell by their time of modification whether they were written through a mapping.
    mounts: its own, in order.
    """

    scan: PodScan
    root: int
    since: int
    vague: Collection[int] = ()
    mounts: Sequence[Mount] = ()


@dataclass(frozen=True)
class Surroundings:
    """Where a job's user is at home, links resolved (empty: nowhere here). shared: devices that all nodes have."""

    home: str
    shared: frozenset[int]


def surroundings(uid: int, store: Path) -> Surroundings:
    """Those of this user. store: in which all nodes find the checkpoints. As the user."""
    try:
        home = os.path.realpath(pwd.getpwuid(uid).pw_dir)
    except KeyError:
        home = ""
    shared = set()
    for path in (str(store), home):
        with contextlib.suppress(OSError):
            shared.add(os.stat(path).st_dev)
    return Surroundings(home, frozenset(shared))


def began(init_pid: int) -> int:
    """When a process began, ns since 1970. Raises OSError when it is gone."""
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - start_time(init_pid) / os.sysconf("SC_CLK_TCK")
    return time.time_ns() - int(age * 1e9)


def decide(
    pods: Sequence[Pod], rules: Rules, without: Collection[tuple[int, int]] = (), carried: Sequence[str] = ()
) -> list[dict[OpenFile, Treatment]]:
    """What is done with the files of each pod.

    without: device and inode of files that are brought back in another way. carried: directories that come along.
    Raises Refused when there is more to be saved than may be, with the file that is too large.
    """
    found: list[dict[OpenFile, Treatment]] = [
        {
            file: "carried" if file.path.startswith(tuple(f"{path}/" for path in carried)) else rules.of(file)
            for file in pod.scan.open_files
            if rules.concern(file.path) and (file.device, file.inode) not in without
        }
        for pod in pods
    ]
    holders_of: dict[tuple[int, int], list[tuple[int, OpenFile]]] = {}
    for number, each in enumerate(found):
        for file, treatment in each.items():
            if treatment in ("save", "truncate"):
                holders_of.setdefault((file.device, file.inode), []).append((number, file))
    # A file is one thing, by whichever name and from whichever pod.
    saved = [
        holders for holders in holders_of.values() if any(found[number][file] == "save" for number, file in holders)
    ]
    for number, file in (one for holders in saved for one in holders):
        found[number][file] = "save"
    total = sum(holders[0][1].size for holders in saved)
    for holders in sorted(saved, key=lambda holders: holders[0][1].size, reverse=True):
        if total <= rules.settings.max_save:
            break
        if all(_is_untouched(file, pods[number]) for number, file in holders):
            instead: Treatment = "unchanged"
        elif all(rules.may_cut(file) for _, file in holders):
            instead = "truncate"
        else:
            continue
        for number, file in holders:
            found[number][file] = instead
        total -= holders[0][1].size
    if total > rules.settings.max_save:
        number, file = max(
            (
                (number, file)
                for number, each in enumerate(found)
                for file, treatment in each.items()
                if treatment == "save"
            ),
            key=lambda one: one[1].size,
        )
        raise Refused(_too_large(pods[number].scan.processes, file, rules.settings))
    return found


def _is_untouched(file: OpenFile, pod: Pod) -> bool:
    return file.modified < pod.since and not (file.mapped and file.device in pod.vague)


def _too_large(processes: Sequence[Process], file: OpenFile, settings: Files) -> str:
    """Without any size that grows: the same sentence is told once."""
    holder = next((str(process) for process in processes if process.pid == file.pid), f"process {file.pid}")
    return (
        f"{holder} writes {file.path} in place, and no more than {format_bytes(settings.max_save)} of such files is"
        " saved: raise files.max_save, or give it another policy in files.rules"
    )
