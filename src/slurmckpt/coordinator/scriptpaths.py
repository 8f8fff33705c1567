"""The path by which a batch script began, on a node where the same script lies elsewhere.

SlurmdSpoolDir may hold the node's name. A shell reads on from its open file, but programs remember the path: $0, or the
program that the workers of Python's multiprocessing load again. So a link takes the place of the directory that slurmd
had made for the job on the other node, until the job leaves this one.

Root makes it, so only at a path that slurmd itself had used: that is found out on the node where it did, and comes with
the manifest, which is signed.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from slurmckpt.coordinator import scriptfile
from slurmckpt.coordinator.scriptfile import NAME, ScriptFile

_NOTE = "script.links"
_TRIES = 5


def read(path: str, job_id: int) -> ScriptFile:
    """As scriptfile.read(), with the paths. To be called as the job's user."""
    script = scriptfile.read(path)
    return replace(script, paths=(script.path,)) if _is_slurmds(script.path, job_id) else script


def lead(paths: Iterable[str], script: ScriptFile, run: Path) -> list[str]:
    """Let all these paths lead to the script of this node. run: the job's directory, where it is noted what was made.

    Gives what is worth knowing of those that do not.
    """
    complaints = []
    for path in paths:
        if script.path and path != script.path:
            try:
                _link(os.path.dirname(path), os.path.dirname(script.path), run)
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                complaints.append(f"the batch script is not found at {path} any more, where it began: {reason}")
    return complaints


def remove(run: Path) -> None:
    """Take away what was made for the job with this directory. For anybody who cleans up after it."""
    for link, made in _noted(run):
        with contextlib.suppress(OSError):
            if os.path.islink(link):
                os.unlink(link)
        for directory in reversed(made):
            # Another job of that node may have its link there, too.
            with contextlib.suppress(OSError):
                os.rmdir(directory)


def _is_slurmds(path: str, job_id: int) -> bool:
    """Whether slurmd has put the batch script of this job there: above the job's directory nobody but root could."""
    directory, name = os.path.split(path)
    above, own = os.path.split(directory)
    # _batch_dir in slurmstepd's mgr.c
    return name == NAME and own == f"job{job_id:05d}" and bool(above.strip("/")) and _missing(above) == []


def _link(link: str, target: str, run: Path) -> None:
    spool = os.path.dirname(link)
    for left in reversed(range(_TRIES)):
        missing = _missing(spool)
        if missing is None:
            raise ValueError(f"{spool} is not root's alone")
        # A slurmd of that name on this node cleans its directory up, and would follow the link.
        if not missing and any(not entry.is_symlink() for entry in os.scandir(spool)):
            raise ValueError(f"{spool} belongs to a slurmd of this node")
        _note(run, link, missing or [spool])
        try:
            for directory in missing:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(directory, 0o755)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(link)
            os.symlink(target, link)
            return
        except FileNotFoundError:
            # Another job has just removed the directory again.
            if not left:
                raise


def _missing(directory: str) -> list[str] | None:
    """Those of this directory and the ones above it that are not there, from above; None when one is not root's."""
    parts = [part for part in directory.split("/") if part]
    for count in range(len(parts) + 1):
        path = "/" + "/".join(parts[:count])
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            return ["/" + "/".join(parts[: number + 1]) for number in range(count - 1, len(parts))]
        except OSError:
            return None
        writable = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != 0 or writable or ".." in parts:
            return None
    return []


def _note(run: Path, link: str, made: list[str]) -> None:
    """Before anything is made."""
    with (run / _NOTE).open("a", encoding="utf-8") as file:
        file.write(json.dumps([link, made]) + "\n")


def _noted(run: Path) -> Iterator[tuple[str, list[str]]]:
    with contextlib.suppress(OSError, ValueError):
        for line in (run / _NOTE).read_text(encoding="utf-8").splitlines():
            entry: Any = json.loads(line)
            yield str(entry[0]), [str(directory) for directory in entry[1]]
