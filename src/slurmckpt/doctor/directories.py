"""The places where slurmckpt writes: staging, the store and the log."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
from pathlib import Path

from slurmckpt import faults
from slurmckpt.doctor import filesystem, trusted
from slurmckpt.doctor.finding import Finding, ok, problem, skipped, warning
from slurmckpt.doctor.host import Host
from slurmckpt.units import format_bytes

# Of a store of any size: so little is left when nobody looks.
_NEARLY_FULL = 0.05


def staging(host: Host) -> Finding:
    """Node-local, only root's, with room for what must stay free. The coordinator makes it when it is missing."""
    if not host.is_node:
        return skipped("only compute nodes have one")
    path, reserve = host.settings.staging.path, host.settings.staging.reserve
    place = filesystem.existing(path)
    if not place.is_dir():
        return problem(f"{place} is not a directory", "remove it, or set staging.path")
    if fault := trusted.directory_fault(place):
        remedy = (
            f"chown root:root {place}; chmod 0755 {place}" if place == path else "set staging.path to another place"
        )
        return problem(f"{place} {fault}: an image in it could be exchanged", remedy)
    kind, free = filesystem.kind(place), shutil.disk_usage(place).free
    if not filesystem.is_local(kind):
        return warning(
            f"{path} is on {kind or 'an unknown file system'}: jobs are frozen for as long as writing there takes",
            "set staging.path to a fast local disk",
        )
    if free <= reserve:
        return problem(
            f"{path}: {format_bytes(free)} are free, and {format_bytes(reserve)} must stay free (staging.reserve)",
            "make room, or set staging.path to a larger disk; the memory of a node's jobs must fit",
        )
    made = "" if place == path else f", made by the first job in {place}"
    return ok(f"{path} ({kind}{made}): {format_bytes(free - reserve)} can be used")


def injected_faults(host: Host) -> Finding:
    """None is ordered: they are for tests."""
    if faults.DIRECTORY.exists():
        return problem(f"{faults.DIRECTORY} exists: jobs fail where it says", f"rm -r {faults.DIRECTORY}")
    return ok("none are ordered")


def store(host: Host) -> Finding:
    """Is there, shared by the nodes, and users can write their part of it and nobody else's."""
    path = host.settings.store.path
    if not host.is_node:
        return skipped("only compute nodes write it")
    shared = host.cluster is None or host.cluster.several_nodes
    if not path.exists():
        if shared:
            return problem(f"{path} does not exist here", "mount the store on all nodes, or set store.path")
        return ok(f"{path} is made by the first job")
    if not path.is_dir():
        return problem(f"{path} is not a directory", "set store.path to the directory that all nodes share")
    cluster = path / host.cluster.name if host.cluster and host.cluster.name else None
    for directory in (path, cluster):
        if directory is not None and directory.is_dir() and _anyone_removes(directory):
            return problem(
                f"in {directory} every user can remove the checkpoints of others (mode {_mode(directory)})",
                f"chmod 1777 {directory}",
            )
    found = _writable(host, path, cluster)
    if found.verdict != "ok":
        return found
    kind = filesystem.kind(path)
    if shared and filesystem.is_local(kind):
        return warning(
            f"{path} is on {kind}, which is usually local to one node: another node would not find a checkpoint",
            "set store.path to a file system that all nodes share, if this one is not",
        )
    room = shutil.disk_usage(path)
    free = f"{path} ({kind}): {format_bytes(room.free)} free"
    if room.free < room.total * _NEARLY_FULL:
        return warning(
            f"{free} of {format_bytes(room.total)}: when it is full, jobs run on without new checkpoints",
            "slurmckpt status shows what each job takes, slurmckpt prune removes what no job needs any more",
        )
    return ok(f"{free}; {found.text}")


def log(host: Host) -> Finding:
    """The log is a file that only root changes; on the controller, SlurmUser's hook writes there too."""
    path = host.settings.log.path
    if not (host.is_node or host.is_controller):
        return skipped("only compute nodes and the controller write it")
    if not path.parent.is_dir():
        return problem(f"{path.parent} does not exist", "make it, or set log.path")
    if host.is_node and (fault := _log_directory_fault(path.parent)):
        return problem(f"{path.parent} {fault}", "set log.path to a directory of root, such as /var/log")
    user = host.cluster.config.get("SlurmUser", "").partition("(")[0] if host.cluster else ""
    if not host.is_controller or user in ("", "root"):
        return ok(str(path))
    try:
        uid = pwd.getpwnam(user).pw_uid
        owner = path.stat()
    except (KeyError, OSError):
        owner, uid = None, -1
    if owner is None or not (owner.st_uid == uid and owner.st_mode & stat.S_IWUSR):
        return warning(
            f"{user} cannot write {path}: what the requeue hook decides goes to syslog, or nowhere without one",
            f"install -o {user} -g root -m 0640 /dev/null {path}" if owner is None else f"chown {user} {path}",
        )
    return ok(f"{path}, which {user} can write")


def _anyone_removes(directory: Path) -> bool:
    mode = directory.stat().st_mode
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX


def _mode(directory: Path) -> str:
    return f"{stat.S_IMODE(directory.stat().st_mode):04o}"


def _writable(host: Host, path: Path, cluster: Path | None) -> Finding:
    """Whether a user's directory can be made: by root, or where root is nobody (root_squash) by the user."""
    if cluster is None:
        return skipped(f"{path} is there; who may write in it is not known without the cluster's name")
    if cluster.is_dir():
        if cluster.stat().st_mode & stat.S_IWOTH:
            return ok("users can make their directories")
        if host.root and os.access(cluster, os.W_OK):
            return ok("root makes the users' directories")
    elif host.root and os.access(path, os.W_OK):
        return ok("the first job makes the cluster's directory")
    if not host.root:
        return skipped(f"{path} is there; whether root may make users' directories in it, only root can see")
    return problem(
        f"root may not write {path} (root_squash?), and users cannot make their directories in {cluster}",
        f"where root may: mkdir -p {cluster}; chmod 1777 {cluster}",
    )


def _log_directory_fault(directory: Path) -> str:
    """Less than trusted.directory_fault(): a group may write there, as root:syslog in Ubuntu's /var/log."""
    return "can be written by everybody" if directory.stat().st_mode & stat.S_IWOTH else ""
