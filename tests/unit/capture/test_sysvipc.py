"""System V objects of a real IPC namespace: what is seen of them, put right and removed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurmckpt.capture import sysvipc
from slurmckpt.capture.ipcspace import IpcError, PodGone, inside, libc
from tests.unit.capture.conftest import MakePod

pytestmark = pytest.mark.root

# Through ctypes, as Python has no System V calls. Flags and commands: uapi/linux/ipc.h, uapi/linux/sem.h.
CALLS = """
import ctypes
c = ctypes.CDLL(None, use_errno=True)
c.shmat.restype = ctypes.c_void_p
CREAT, RMID, STAT, SETVAL = 0o1000, 0, 2, 16
PAGES = 3 * 4096
def segment(key=0):
    return c.shmget(key, PAGES, CREAT | 0o600)
"""
ONE_OF_EACH = f"""
{CALLS}
kept, gone, unused, used = segment(), segment(), c.semget(77, 1, CREAT | 0o600), c.semget(78, 2, CREAT | 0o600)
for one in (kept, gone):
    address = c.shmat(one, None, 0)
    ctypes.memset(address, 1, PAGES)
c.shmctl(gone, RMID, None)
c.semctl(used, 0, SETVAL, 3)
c.semop(used, (ctypes.c_short * 3)(0, -1, 0), 1)
queue = c.msgget(0, CREAT | 0o600)
ready([kept, gone, unused, used, queue])
"""


def test_every_kind_is_seen(make_pod: MakePod) -> None:
    pod = make_pod(ONE_OF_EACH)
    kept, gone, unused, used, queue = json.loads(pod.report)
    assert sysvipc.look(pod.init) == sysvipc.Objects(
        segments=[kept, gone], removed=[gone], sets=[unused, used], used=[used], queues=[queue], bytes=2 * 3 * 4096
    )


def test_a_pod_without_objects_needs_no_note(make_pod: MakePod, tmp_path: Path) -> None:
    pod = make_pod("ready()")
    assert sysvipc.look(pod.init) == sysvipc.Objects()
    sysvipc.save(pod.init, tmp_path)
    assert not (tmp_path / sysvipc.FILE).exists()
    sysvipc.mend(pod.init, tmp_path)


@pytest.mark.parametrize("value", [0, 1, 32767])
def test_what_criu_forgets_is_put_right(make_pod: MakePod, tmp_path: Path, value: int) -> None:
    """A segment marked for removal, and the time of a set's last use, whatever the semaphore's value is."""
    before = make_pod(ONE_OF_EACH)
    sysvipc.save(before.init, tmp_path)
    after = make_pod(
        f"{CALLS}\nkept, gone, unused, used = segment(), segment(), c.semget(77, 1, CREAT), c.semget(78, 2, CREAT)\n"
        f"c.shmat(gone, None, 0)\nc.semctl(used, 0, SETVAL, {value})\nready([kept, gone, unused, used])"
    )
    assert json.loads(after.report) == json.loads(before.report)[:4]
    sysvipc.mend(after.init, tmp_path)
    found = sysvipc.look(after.init)
    _, gone, _, used = json.loads(after.report)
    assert (found.removed, found.used) == ([gone], [used])
    assert inside(after.init, lambda: libc().semctl(used, 0, 12)) == value


def test_all_is_removed(make_pod: MakePod) -> None:
    """What a process has attached stays until it ends, and nobody finds it by its key any more."""
    pod = make_pod(ONE_OF_EACH.replace("segment()", "segment(99)", 1))
    kept, gone, *_ = json.loads(pod.report)
    sysvipc.clear(pod.init)
    found = sysvipc.look(pod.init)
    assert (found.segments, found.removed, found.sets, found.queues) == ([kept, gone], [kept, gone], [], [])
    assert inside(pod.init, lambda: libc().shmget(99, 0, 0)) == -1


def test_a_note_that_does_not_fit(make_pod: MakePod, tmp_path: Path) -> None:
    (tmp_path / sysvipc.FILE).write_text('{"removed": [7], "used": []}')
    with pytest.raises(IpcError, match=r"^the IPC namespace of the pod cannot be handled: shmctl: Invalid argument$"):
        sysvipc.mend(make_pod("ready()").init, tmp_path)


def test_a_pod_that_is_gone() -> None:
    assert sysvipc.look(2**22 - 1) == sysvipc.Objects()
    with pytest.raises(PodGone, match="the pod is gone"):
        sysvipc.clear(2**22 - 1)
