"""Watches on files: what is found again by its handle or its path, and what has been told but not been read."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.awaiting import wait_until
from tests.unit.capture.looking import PYTHON, look, one_refusal

pytestmark = pytest.mark.root
MakePod = Callable[..., Any]
_WATCH = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
keep = libc.inotify_init1(os.O_NONBLOCK)
for path in {paths!r}:
    if libc.inotify_add_watch(keep, path.encode(), 0x100) < 0:  # IN_CREATE
        ready("no: " + os.strerror(ctypes.get_errno()))
"""
LOST = (
    f"process 2 {PYTHON} watches files (inotify) on a file system ({{kind}}) where they cannot be found again:"
    " end the watch before a checkpoint, or let the program look by itself now and then (polling)"
)
UNREAD = (
    f"process 2 {PYTHON} has not yet read what happened to files that it watches ({{kind}}), and a restore would lose"
    " it: a later checkpoint will do, once it has read it"
)


def test_ordinary_watches_come_back(make_pod: MakePod, tmp_path: Path) -> None:
    """On a disk, and in a tmpfs; /etc is found in any case, as CRIU searches there."""
    (tmp_path / "watched").mkdir()
    memory = Path(f"/dev/shm/slurmckpt-test-{os.getpid()}")
    memory.mkdir()
    try:
        pod = make_pod(_WATCH.format(paths=[str(tmp_path / "watched"), str(memory), "/etc"]) + "ready()")
        assert look(pod).refusals == []
    finally:
        memory.rmdir()


def test_what_has_no_handle_is_told(make_pod: MakePod) -> None:
    assert one_refusal(make_pod(_WATCH.format(paths=["/proc/self"]) + "ready()")) == LOST.format(kind="proc")


def test_an_overlay_is_told(make_pod: MakePod, tmp_path: Path) -> None:
    """Its handles cannot be opened, unless it was mounted with nfs_export."""
    disk = tmp_path / "disk"
    disk.mkdir()
    # An overlay cannot lie on another one, as /tmp may be.
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", disk], check=True)
    try:
        for name in ("lower", "upper", "work", "merged"):
            (disk / name).mkdir()
        options = f"lowerdir={disk}/lower,upperdir={disk}/upper,workdir={disk}/work"
        if subprocess.run(
            ["mount", "-t", "overlay", "overlay", "-o", options, disk / "merged"], check=False
        ).returncode:
            pytest.skip("no overlayfs here")
        pod = make_pod(_WATCH.format(paths=[f"{disk}/merged"]) + "ready()")
        assert one_refusal(pod) == LOST.format(kind="overlay")
    finally:
        subprocess.run(["umount", "--lazy", disk / "merged"], check=False)
        subprocess.run(["umount", "--lazy", disk], check=True)


def test_what_was_told_and_not_read(make_pod: MakePod, tmp_path: Path) -> None:
    watched = tmp_path / "watched"
    watched.mkdir()
    code = _WATCH.format(paths=[str(watched)])
    pod = make_pod(code + "signal.signal(signal.SIGUSR1, lambda *_: os.read(keep, 4096))\nready()")
    (watched / "created").touch()
    assert look(pod).passing == look(pod).moments == [UNREAD.format(kind="inotify")]
    # The batch script must not be left out for what is over in a moment.
    assert look(pod).refusals == []
    os.kill(pod.leader, signal.SIGUSR1)
    wait_until(lambda: not look(pod).passing, "nothing passing")
    assert look(pod).moments == []


def test_fanotify(make_pod: MakePod, tmp_path: Path) -> None:
    watched = tmp_path / "watched"
    watched.mkdir()
    code = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
keep = libc.fanotify_init(0x602, 0)  # FAN_REPORT_FID | FAN_REPORT_DIR_FID | FAN_NONBLOCK
if libc.fanotify_mark(keep, 1, ctypes.c_ulong(0x40000100), -100, b"{watched}") != 0:  # FAN_MARK_ADD, FAN_CREATE
    ready("no: " + os.strerror(ctypes.get_errno()))
"""
    pod = make_pod(code + "ready()")
    if pod.report.startswith("no: "):
        pytest.skip(f"no fanotify here: {pod.report[4:]}")
    assert look(pod).refusals == []
    (watched / "created").touch()
    assert look(pod).passing == [UNREAD.format(kind="fanotify")]
