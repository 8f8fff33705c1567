"""Where a process is in the cgroup hierarchies of this node, as files to write a pid to.

Slurm names its cgroups differently from release to release (26.05: by SLUID), so paths are read, never built.
"""

from __future__ import annotations

import re
from pathlib import Path

_OCTAL = re.compile(r"\\([0-7]{3})")


def procs_files(pid: int, proc: Path = Path("/proc")) -> list[Path]:
    """`cgroup.procs` of every hierarchy that `pid` is in and that is mounted here, cgroup v1 and v2 (cgroups(7)).

    Raises OSError when the process is gone.
    """
    mounts = _mounts((proc / "self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape"))
    found = []
    for line in (proc / str(pid) / "cgroup").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        _, controllers, path = line.split(":", 2)
        for kind, options, root, point in mounts:
            if controllers == "" and kind != "cgroup2":
                continue
            if controllers != "" and not (kind == "cgroup" and set(controllers.split(",")) <= options):
                continue
            inside = _below(path, root)
            if inside is None:
                continue
            file = Path(point) / inside / "cgroup.procs"
            if file.exists():
                found.append(file)
                break
    return found


def _mounts(mountinfo: str) -> list[tuple[str, set[str], str, str]]:
    """(file system, super options, root, mount point) of every cgroup mount."""
    mounts = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if len(fields) >= 5 and len(tail) >= 3 and tail[0] in ("cgroup", "cgroup2"):
            mounts.append((tail[0], set(tail[2].split(",")), _unescape(fields[3]), _unescape(fields[4])))
    return mounts


def _unescape(field: str) -> str:
    """A path of mountinfo: blanks, newlines and backslashes are written as octal there (proc_pid_mountinfo(5))."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), field)


def _below(path: str, root: str) -> str | None:
    """The part of `path` below `root`; None when it is not below it."""
    if ".." in path.split("/"):
        # What lies outside the root of our cgroup namespace is written that way (cgroup_namespaces(7)).
        return None
    if root == "/":
        return path.lstrip("/")
    if path == root or path.startswith(root + "/"):
        return path[len(root) :].lstrip("/")
    return None
