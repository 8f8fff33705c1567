"""Memory and speculation that a process has guarded itself: what /proc tells of it, and what is said then."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from slurmckpt.capture import procfs
from slurmckpt.capture.inspect import protections
from slurmckpt.capture.inspect.inspection import Inspection
from slurmckpt.capture.inspect.protections import Protections, parse_protections, read_protections
from slurmckpt.capture.judgements.protections import judge
from slurmckpt.capture.preflight import scan
from slurmckpt.capture.processes import Process
from slurmckpt.capture.refusals import sentences
from tests.unit.capture.conftest import MakePod

ME = Process(7, 7, 1, 1000, "python3", "", "S", 0)
STATUS = """Name:\tpython3
VmLck:\t       0 kB
NoNewPrivs:\t0
Seccomp:\t{mode}
Seccomp_filters:\t{filters}
Speculation_Store_Bypass:\t{store}
SpeculationIndirectBranch:\t{branch}
"""
# As on a machine with protection keys.
SMAPS = """7f62f0a60000-7f62f0a70000 rw-p 00000000 00:00 0
Size:                 64 kB
Locked:                0 kB
ProtectionKey:         0
VmFlags: rd wr mr mw me ac
7f62f0a70000-7f62f0a72000 rw-p 00000000 00:00 0                          [heap]
Size:                  8 kB
THPeligible:           0
ProtectionKey:         {key}
VmFlags: rd wr mr mw me {flags} ac
7f62f0a72000-7f62f0a73000 r--p 00000000 fe:00 12                         /home/u/ lf
VmFlags: rd mr mw me sd
"""


def one(
    store: str = "thread vulnerable",
    branch: str = "conditional enabled",
    filters: int = 1,
    key: int = 0,
    flags: str = "",
) -> Protections:
    status = STATUS.format(mode=2 if filters else 0, filters=filters, store=store, branch=branch)
    return parse_protections(ME, status.encode(), SMAPS.format(key=key, flags=flags).encode())


def said(*found: Protections) -> list[str]:
    """Of a pod whose leader is the first."""
    return sentences(judge(cast(Inspection, SimpleNamespace(protections=list(found)))), 10)


def test_nothing_is_said_of_what_all_have() -> None:
    assert said(one(), one(filters=3)) == []
    for store, branch in [("vulnerable", "always enabled"), ("not affected", "not affected"), ("unknown", "unknown")]:
        assert said(one(store, branch), one(store, branch)) == []
    # The kernel gives it to whoever has a filter (before Linux 5.16): the pod's own one, or one of the program's.
    forced = one("thread force mitigated", "conditional force disabled")
    assert said(forced, forced) == []
    assert said(one(filters=0), one("thread force mitigated", "conditional force disabled")) == []
    assert said() == []


@pytest.mark.parametrize(
    ("store", "branch", "shown"),
    [
        ("thread mitigated", "conditional enabled", "Speculation_Store_Bypass, thread mitigated"),
        ("thread force mitigated", "conditional enabled", "Speculation_Store_Bypass, thread force mitigated"),
        ("thread vulnerable", "conditional disabled", "SpeculationIndirectBranch, conditional disabled"),
        # So the kernel shows PR_SPEC_DISABLE_NOEXEC, which it has no word for.
        ("vulnerable", "conditional enabled", "Speculation_Store_Bypass, vulnerable"),
    ],
)
def test_what_it_has_chosen(store: str, branch: str, shown: str) -> None:
    assert said(one(), one(store, branch)) == [
        f"process 7 (python3) has chosen itself what may be speculated ({shown}), which a restore would not give back:"
        " start it without (PR_SET_SPECULATION_CTRL), or let the administrator choose it for the whole node"
    ]


def test_a_mapping_with_a_key() -> None:
    assert said(one(), one(key=1)) == [
        "process 7 (python3) has memory with protection keys (pkey_mprotect), which a restore would not give back: let"
        " the program do without, as it does where the CPU has none"
    ]


def test_a_mapping_that_is_locked_as_it_is_used() -> None:
    assert said(one(), one(flags="lo")) == []
    assert said(one(), one(flags="lo lf")) == [
        "process 7 (python3) has memory that is locked as it is used (MLOCK_ONFAULT), and a restore would take all of"
        " it at once: lock it as a whole (mlock), or unlock it before a checkpoint"
    ]


def test_smaps_is_read_where_there_may_be_something_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    status = STATUS.format(mode=0, filters=0, store="vulnerable", branch="vulnerable")
    (tmp_path / "7/status").write_text(status)
    (tmp_path / "7/smaps").write_text(SMAPS.format(key=2, flags="lf"))
    monkeypatch.setattr(procfs, "PROC", str(tmp_path))
    speculation = dict.fromkeys(("Speculation_Store_Bypass", "SpeculationIndirectBranch"), "vulnerable")
    plain = Protections(ME, False, False, speculation)
    monkeypatch.setattr(protections, "_keys_are_shown", lambda: False)
    assert read_protections([ME, replace(ME, pid=8)]) == [plain]
    (tmp_path / "7/status").write_text(status.replace("       0 kB", "      12 kB"))
    assert read_protections([ME]) == [replace(plain, has_keys=True, locks_on_fault=True)]
    (tmp_path / "7/status").write_text(status)
    monkeypatch.setattr(protections, "_keys_are_shown", lambda: True)
    assert read_protections([ME]) == [replace(plain, has_keys=True, locks_on_fault=True)]


@pytest.mark.root
@pytest.mark.parametrize(("flag", "count"), [(0, 0), (1, 1)], ids=["as a whole", "as it is used"])
def test_a_program_that_locks_its_memory(make_pod: MakePod, flag: int, count: int) -> None:
    """mlock2(2) by its number."""
    number = {"x86_64": 325, "aarch64": 284}[platform.machine()]
    pod = make_pod(
        f"""
import ctypes
c = ctypes.CDLL(None, use_errno=True)
c.mmap.restype = ctypes.c_void_p
place = c.mmap(None, ctypes.c_size_t(1 << 16), 3, 0x22, -1, ctypes.c_long(0))
ready(c.syscall({number}, ctypes.c_void_p(place), ctypes.c_size_t(1 << 16), {flag}))
"""
    )
    assert pod.report == "0"
    assert ["(MLOCK_ONFAULT)" in text for text in scan(pod.init, pod.leader).refusals] == [True] * count
    # While they stand still it is not looked at again.
    assert scan(pod.init, pod.leader, frozen=True).refusals == []
