"""How processes have their memory locked and guarded, and themselves against speculation, where CRIU does not carry it.

A look at smaps makes the kernel go through all pages of a process, so it is read where there may be something only.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from slurmckpt.capture import procfs
from slurmckpt.capture.processes import Process

# vm.max_map_count is 65530 by default, and a mapping has about 800 bytes of lines.
_SMAPS_BYTES = 64 << 20
# Both in show_smap() and show_smap_vma_flags() of Linux fs/proc/task_mmu.c; key 0 is what all memory has.
_KEY = re.compile(rb"^ProtectionKey:\s+[1-9]", re.MULTILINE)
_ON_FAULT = re.compile(rb"^VmFlags:.* lf\b", re.MULTILINE)
# task_seccomp() in Linux fs/proc/array.c
_SPECULATION = ("Speculation_Store_Bypass", "SpeculationIndirectBranch")


@dataclass(frozen=True)
class Protections:
    """has_keys: a mapping has a protection key (pkeys(7)). locks_on_fault: one is locked page by page, as it is used
    (mlock2(2) with MLOCK_ONFAULT). speculation: lines of /proc/PID/status by their names: what the first thread may
    speculate, by the node's choice, its own (PR_SET_SPECULATION_CTRL), or because it has a seccomp filter. filters: how
    many of these it has.
    """

    process: Process
    has_keys: bool
    locks_on_fault: bool
    speculation: dict[str, str]
    filters: int = 0


def read_protections(processes: Iterable[Process]) -> list[Protections]:
    """Those of all processes that have not gone, in their order."""
    found: list[Protections] = []
    for process in processes:
        status = procfs.read_record(f"{procfs.PROC}/{process.pid}/status")
        if status:
            locks = procfs.fields(status).get("VmLck", "0").split()[:1] not in ([], ["0"])
            smaps = b""
            if locks or _keys_are_shown():
                smaps = procfs.read(f"{procfs.PROC}/{process.pid}/smaps", _SMAPS_BYTES) or b""
            found.append(parse_protections(process, status, smaps))
    return found


def parse_protections(process: Process, status: bytes, smaps: bytes) -> Protections:
    """From the texts of /proc/PID/status and smaps; the latter may be empty."""
    fields = procfs.fields(status)
    return Protections(
        process,
        has_keys=_KEY.search(smaps) is not None,
        locks_on_fault=_ON_FAULT.search(smaps) is not None,
        speculation={name: fields[name] for name in _SPECULATION if name in fields},
        filters=int(fields.get("Seccomp_filters", "0")),
    )


@functools.cache
def _keys_are_shown() -> bool:
    """Whether CPU and kernel have protection keys: only then smaps has such lines."""
    return b"\nProtectionKey:" in (procfs.read(f"{procfs.PROC}/self/smaps") or b"")
