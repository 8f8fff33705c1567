"""Attributes that CRIU does not carry are noted, and given back to the same threads of another pod."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from slurmckpt.capture import attributes
from slurmckpt.capture.processes import pod_processes
from tests.unit.capture.conftest import MakePod

# A leader with a thread; report: the thread's id inside the pod.
THREADED = """
import ctypes, os, threading
c = ctypes.CDLL(None)
tids = []
def run():
    if CHANGE:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        c.prctl(29, 123456, 0, 0, 0)
    tids.append(threading.get_native_id())
    event.wait()
event = threading.Event()
threading.Thread(target=run, daemon=True).start()
while not tids:
    time.sleep(0.001)
if CHANGE:
    open("/proc/self/coredump_filter", "w").write("0x11")
    c.syscall(IOPRIO_SET, 1, 0, 3 << 13)
ready(tids[0])
"""


def program(change: bool) -> str:
    number = attributes._SYSCALLS[os.uname().machine][0]
    return THREADED.replace("CHANGE", str(change)).replace("IOPRIO_SET", str(number))


def state(leader: int) -> tuple[str, list[tuple[list[int], int, str]]]:
    tids = [leader, *(int(name) for name in os.listdir(f"/proc/{leader}/task") if int(name) != leader)]
    return (
        Path(f"/proc/{leader}/coredump_filter").read_text(),
        [
            (
                sorted(os.sched_getaffinity(tid)),
                attributes._io_priority(tid),
                Path(f"/proc/{tid}/timerslack_ns").read_text(),
            )
            for tid in tids
        ],
    )


@pytest.mark.root
def test_threads_get_back_what_they_had(make_pod: MakePod, tmp_path: Path) -> None:
    before, after = make_pod(program(True)), make_pod(program(False))
    assert before.report == after.report
    cpus = attributes.cpus_of([os.getpid()])
    attributes.save(pod_processes(before.init), cpus, tmp_path)
    wanted = state(before.leader)
    assert state(after.leader) != wanted
    attributes.apply(after.init, cpus, tmp_path)
    assert state(after.leader) == wanted
    assert wanted[0] == "00000011\n"
    main, thread = wanted[1]
    assert main == (cpus, 3 << 13, "50000\n")
    assert thread == ([cpus[-1]], 0, "123456\n")


@pytest.mark.root
def test_without_a_note_nothing_happens(make_pod: MakePod, tmp_path: Path) -> None:
    attributes.apply(make_pod("ready()").init, [0], tmp_path)


@pytest.mark.root
def test_what_cannot_be_set_is_left(make_pod: MakePod, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pod = make_pod("ready()")
    number = pod_processes(pod.init, pod.leader)[0].ns_pid
    note = {"given": [0], "threads": {str(number): [[0], 0, ""]}, "filters": {}}
    (tmp_path / attributes.FILE).write_text(json.dumps(note))
    attributes.apply(pod.init, [1000], tmp_path)
    assert f"the CPUs of process {number} (python" in caplog.text


@pytest.mark.parametrize(
    ("cpus", "before", "now", "wanted"),
    [
        ({0, 1}, [0, 1], [0, 1], {0, 1}),
        ({1}, [0, 1], [4, 6], {6}),
        ({0, 1}, [0, 1], [4, 6, 8], {4, 6, 8}),
        ({3}, [0, 1, 2, 3], [4, 6], {6}),
        ({2}, [0, 1], [4, 6], {4, 6}),
        ({1}, [0, 1], [], {1}),
        ({2, 3}, [0, 1, 2, 3], [10, 11, 12, 13], {12, 13}),
    ],
)
def test_places_are_counted_within_the_given_cpus(
    cpus: set[int], before: list[int], now: Iterable[int], wanted: set[int]
) -> None:
    assert attributes.placed(cpus, before, list(now)) == wanted


def test_a_process_that_is_gone_has_no_cpus() -> None:
    assert attributes.cpus_of([2**22 + 1, os.getpid()]) == sorted(os.sched_getaffinity(0))
