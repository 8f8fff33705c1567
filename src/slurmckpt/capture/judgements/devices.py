"""Devices, open or mapped, and terminals."""

from __future__ import annotations

import os
import stat
from collections.abc import Container, Iterator

from slurmckpt.capture.inspect.descriptors import FileDescriptor
from slurmckpt.capture.inspect.inspection import Inspection
from slurmckpt.capture.judgements import CLOSE, shown
from slurmckpt.capture.processes import Process
from slurmckpt.capture.refusals import Reason

# Linux Documentation/admin-guide/devices.txt: null, zero, full, random, urandom; tty and ptmx
_DEVICES = frozenset({(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2)})
_ZERO = (1, 5)
_TERMINAL_MAJORS = range(136, 144)
_NVIDIA = "/dev/nvidia"
_GPU_PREFIXES = ("/dev/dri/", "/dev/kfd")


def judge(seen: Inspection) -> Iterator[Reason]:
    """Every device that CRIU cannot dump, but for those of NVIDIA's: whether these go is the driver's to say."""
    masters = masters_of(seen)
    for one in seen.descriptors.files:
        if (reason := refused(one, masters, seen)) is not None:
            yield reason
    for mappings in seen.mappings:
        for path, status in mappings.devices:
            if (os.major(status.st_rdev), os.minor(status.st_rdev)) != _ZERO and not path.startswith(_NVIDIA):
                yield Reason(mappings.process, *_sentence(path, "mapped"))


def gpu_users(seen: Inspection) -> list[Process]:
    """Those that have a device of NVIDIA's open or mapped."""
    opened = [one.holder.process for one in seen.descriptors.files if one.is_device and one.path.startswith(_NVIDIA)]
    mapped = [each.process for each in seen.mappings if any(path.startswith(_NVIDIA) for path, _ in each.devices)]
    return list({process.pid: process for process in [*opened, *mapped]}.values())


def masters_of(seen: Inspection) -> set[int]:
    """The numbers of the terminals whose masters the pod holds."""
    return {one.terminal for one in seen.descriptors.files if one.terminal >= 0}


def refused(one: FileDescriptor, masters: Container[int], seen: Inspection) -> Reason | None:
    """The reason against an open device; None when it can be dumped, or is none."""
    if not one.is_device or one.path.startswith(_NVIDIA):
        return None
    number = (os.major(one.status.st_rdev), os.minor(one.status.st_rdev))
    if number[0] in _TERMINAL_MAJORS:
        index = (number[0] - _TERMINAL_MAJORS.start) * 256 + number[1]
        if index in masters and one.mount in seen.mounts:
            return None
        return Reason(
            one.holder.process,
            f"uses the terminal {shown(one.path)} from outside the pod, which cannot be captured",
            "run it without a terminal (srun gives one with --pty and --unbuffered)",
        )
    if stat.S_ISCHR(one.status.st_mode) and number in _DEVICES:
        return None
    return Reason(one.holder.process, *_sentence(one.path, "open"))


def _sentence(path: str, state: str) -> tuple[str, str]:
    if path.startswith("/dev/infiniband/"):
        return (
            f"has the InfiniBand device {shown(path)} {state}, which cannot be captured",
            "set NCCL_IB_DISABLE=1 (and UCX_TLS=tcp,self,sm for UCX) so that the ranks talk over TCP",
        )
    if path == "/dev/fuse":
        # CRIU would look at a file there while the program that answers for it stands still, and wait for ever.
        return (
            "serves a FUSE file system, which cannot be captured",
            "unmount it before a checkpoint, or mount it outside the job",
        )
    if path.startswith(_GPU_PREFIXES):
        return (
            f"has the GPU device {shown(path)} {state}, and only those of NVIDIA can be captured",
            "run it without this GPU, or close the device before a checkpoint",
        )
    return f"has the device {shown(path)} {state}, which cannot be captured", CLOSE
