"""How a pod holds its files and pipes: what is written at its end only, what lost its name, what is too much."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurmckpt.capture.inspect.descriptors import Writing
from slurmckpt.capture.preflight import scan

pytestmark = pytest.mark.root


def test_how_each_file_is_written(make_pod: Callable[..., Any], tmp_path: Path) -> None:
    pod = make_pod(
        f"""
import ctypes
os.chdir({str(tmp_path)!r})
def opened(name, flags, at=None):
    with open(name, "w") as file:
        file.write("0123456789")
    descriptor = os.open(name, flags | os.O_CREAT)
    if at is not None:
        os.lseek(descriptor, at, os.SEEK_SET)
    return descriptor
keep = [
    opened("appended", os.O_WRONLY | os.O_APPEND), opened("read and appended", os.O_RDWR | os.O_APPEND, 3),
    opened("written to its end", os.O_WRONLY, 10), opened("begun again", os.O_WRONLY, 0),
    opened("read and written", os.O_RDWR, 10), opened("read", os.O_RDONLY),
    opened("both", os.O_WRONLY | os.O_APPEND), os.open("both", os.O_RDWR),
]
mmap = ctypes.CDLL(None, use_errno=True).mmap
mmap.restype = ctypes.c_void_p
descriptor = opened("mapped", os.O_RDWR)
assert mmap(None, ctypes.c_size_t(4096), 3, 1, descriptor, ctypes.c_long(0)) != 2**64 - 1
os.close(descriptor)
ready()
"""
    )
    found = {Path(file.path).name: (file.writing, file.mapped) for file in scan(pod.init, pod.leader).open_files}
    assert found == {
        "appended": (Writing.APPENDED, False),
        "read and appended": (Writing.APPENDED, False),
        "written to its end": (Writing.ONWARDS, False),
        "begun again": (Writing.ANYWHERE, False),
        "read and written": (Writing.ONWARDS_AND_READ, False),
        "both": (Writing.ANYWHERE, False),
        "mapped": (Writing.ANYWHERE, True),
    }


def test_named_pipes_by_whichever_end(make_pod: Callable[..., Any], tmp_path: Path) -> None:
    """One that has lost its name CRIU makes anew itself, for a moment."""
    pod = make_pod(
        f"""
os.chdir({str(tmp_path)!r})
for name in ("read", "both", "lost", "closed"):
    os.mkfifo(name)
keep = [os.open(name, os.O_RDONLY | os.O_NONBLOCK) for name in ("read", "both", "lost")]
keep.append(os.open("both", os.O_WRONLY))
os.unlink("lost")
ready()
"""
    )
    found = scan(pod.init, pod.leader)
    assert sorted(Path(pipe.path).name for pipe in found.named_pipes) == ["both", "read"]
    assert not found.open_files


def test_a_file_that_has_lost_its_name_and_has_another(make_pod: Callable[..., Any], tmp_path: Path) -> None:
    """CRIU gives it a name for the time of the dump only. One without any name is kept as a whole."""
    pod = make_pod(
        f"""
import ctypes
os.chdir({str(tmp_path)!r})
keep = []
for name in ("open", "mapped", "nowhere"):
    keep.append(open(name, "w+"))
    keep[-1].write("x" * 100)
    keep[-1].flush()
    if name != "nowhere":
        os.link(name, "other " + name)
    os.unlink(name)
mmap = ctypes.CDLL(None, use_errno=True).mmap
mmap.restype = ctypes.c_void_p
assert mmap(None, ctypes.c_size_t(4096), 1, 2, keep[1].fileno(), ctypes.c_long(0)) != 2**64 - 1
keep.pop(1).close()
ready()
"""
    )
    found = scan(pod.init, pod.leader)
    what = "which was deleted or replaced and still has another name: close it, or delete its other name, too"
    assert [text.partition(") ")[2] for text in found.refusals] == [
        f"has {tmp_path}/open open, {what}",
        f"has {tmp_path}/mapped mapped, {what}",
    ]
    assert found.open_files == []


@pytest.mark.parametrize("count", [1024, 1025])
def test_more_pipes_than_criu_can_capture(make_pod: Callable[..., Any], count: int) -> None:
    pod = make_pod(
        f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
keep = [os.pipe() for _ in range({count})]
ready()
"""
    )
    reason = "and the rest of the pod read from more than 1024 pipes, which CRIU cannot capture: close pipes that"
    found = scan(pod.init, pod.leader).refusals
    assert [reason in text for text in found] == ([True] if count > 1024 else []), found


def test_a_lease_for_writing_is_refused(make_pod: Callable[..., Any], tmp_path: Path) -> None:
    """Whoever opens the file to save it would break it. One for reading is no reason."""
    pod = make_pod(
        f"""
import fcntl
kept = [open({str(tmp_path)!r} + name, "w+") for name in ("/written", "/other")]
kept.append(open({str(tmp_path)!r} + "/read", "w+"))
kept.append(open({str(tmp_path)!r} + "/read"))
kept.pop(2).close()
fcntl.fcntl(kept[0], fcntl.F_SETLEASE, fcntl.F_WRLCK)
fcntl.fcntl(kept[2], fcntl.F_SETLEASE, fcntl.F_RDLCK)
ready([fcntl.fcntl(one, fcntl.F_GETLEASE) for one in kept])
"""
    )
    assert pod.report == "[1, 2, 0]"
    (sentence,) = scan(pod.init, pod.leader, set()).refusals
    assert f"has a lease for writing on {tmp_path}/written, which saving the file would break: give it back" in sentence
