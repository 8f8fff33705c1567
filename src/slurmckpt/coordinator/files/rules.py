"""What is done with each file that a pod has open for writing: the site's rules, and what fits into its limit."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slurmckpt.capture.preflight import OpenFile, PodScan
from slurmckpt.capture.processes import Process
from slurmckpt.config import Files
from slurmckpt.coordinator.proc import start_time
from slurmckpt.errors import Refused
from slurmckpt.units import format_bytes

# Beside the policies of the settings. "unchanged": too large to be saved, but nobody has written it since the pod
# began. "carried": it comes along with its directory.
Treatment = Literal["truncate", "keep", "save", "unchanged", "carried"]


@dataclass(frozen=True)
class Rules:
    """The site's settings, and the job's user with its home (empty: none). own: where files of ours lie."""

    settings: Files
    uid: int
    home: str
    own: Path

    def of(self, file: OpenFile) -> Literal["truncate", "keep", "save"]:
        """What is done with this file, its size left aside."""
        policy = next(
            (rule.policy for rule in self.settings.rules if rule.fits(file.path, self.home)), self.settings.policy
        )
        if policy == "auto":
            return "save" if file.in_place else "truncate"
        return policy

    def concern(self, file: OpenFile) -> bool:
        """Whether it is a file of the job's own, and not brought back in another way."""
        # While CRIU's parasite is in a process, CRIU's own log is open there. /dev/shm is saved as a whole.
        return not Path(file.path).is_relative_to(self.own) and not file.path.startswith("/dev/shm/")


@dataclass(frozen=True)
class Pod:
    """A pod as far as files go. root: descriptor of its root directory. since: when it began, ns since 1970.

    vague: devices whose files do not tell by their time of modification whether they were written through a mapping.
    """

    scan: PodScan
    root: int
    since: int
    vague: Collection[int] = ()


def home_of(uid: int) -> str:
    """The home of a user, links resolved; empty when it has none here. As the user."""
    try:
        return os.path.realpath(pwd.getpwuid(uid).pw_dir)
    except KeyError:
        return ""


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
            if rules.concern(file) and (file.device, file.inode) not in without
        }
        for pod in pods
    ]
    saved: dict[tuple[int, int], list[tuple[int, OpenFile]]] = {}
    for number, each in enumerate(found):
        for file, treatment in each.items():
            if treatment == "save":
                saved.setdefault((file.device, file.inode), []).append((number, file))
    total = sum(holders[0][1].size for holders in saved.values())
    for holders in sorted(saved.values(), key=lambda holders: holders[0][1].size, reverse=True):
        if total <= rules.settings.max_save:
            break
        if all(_is_untouched(file, pods[number]) for number, file in holders):
            for number, file in holders:
                found[number][file] = "unchanged"
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
        raise Refused(_too_large(pods[number].scan.processes, file, total, rules.settings))
    return found


def _is_untouched(file: OpenFile, pod: Pod) -> bool:
    return file.modified < pod.since and not (file.mapped and file.device in pod.vague)


def _too_large(processes: Sequence[Process], file: OpenFile, total: int, settings: Files) -> str:
    holder = next((str(process) for process in processes if process.pid == file.pid), f"process {file.pid}")
    rest = "" if total == file.size else f", with others {format_bytes(total)}"
    return (
        f"{holder} writes {file.path} in place ({format_bytes(file.size)}{rest}), and no more than"
        f" {format_bytes(settings.max_save)} of such files is saved: raise files.max_save, or give it another policy"
        " in files.rules"
    )
