"""The facts about a host that CRIU's images depend on."""

from __future__ import annotations

import os
import re
from pathlib import Path

from slurmckpt.fingerprint.compare import Fingerprint

# /proc/cpuinfo of x86 also lists what only the kernel uses: power management, virtualisation, mitigations of
# microcode. They differ between nodes of one model and no user code depends on them. These patterns name what user
# code can execute or be dispatched on, and what decides the layout of the saved registers (xsave, pku, amx).
# Names as in arch/x86/include/asm/cpufeatures.h of the kernel.
_X86_USER_FLAGS = re.compile(
    r"fpu|cx8|cx16|cmov|mmx|mmxext|3dnow\w*|fxsr|sse\w*|ssse3|syscall|lahf_lm|abm|lzcnt|popcnt|movbe|"
    r"fma\w*|f16c|avx\w*|aes|vaes|pclmulqdq|vpclmulqdq|sha_ni|sha512|sm3|sm4|gfni|bmi[12]|tbm|xop|adx|rdrand|rdseed|"
    r"rdpid|rdtscp|tsc|fsgsbase|xsave\w*|xgetbv1|osxsave|pku|ospke|amx_\w+|clflush|clflushopt|clwb|cldemote|clzero|"
    r"prefetchwt1|3dnowprefetch|erms|fsrm|fzrm|fsrs|fsrc|movdiri|movdir64b|enqcmd|serialize|waitpkg|monitorx|mwaitx|"
    r"rtm|hle|uintr|user_shstk|cmpccxadd",
    re.ASCII,
)


def host(criu_version: str, proc: Path = Path("/proc"), os_release: Path = Path("/etc/os-release")) -> Fingerprint:
    """This host's keys `host.*`. criu_version as CRIU prints it, "" where it is not known. Raises OSError."""
    cpu = _cpuinfo(proc / "cpuinfo")
    facts = {
        "host.arch": os.uname().machine,
        "host.kernel": (proc / "sys/kernel/osrelease").read_text().strip(),
        "host.page-size": str(os.sysconf("SC_PAGE_SIZE")),
        "host.os": _os_name(os_release),
        "host.libc": _libc(),
        "host.criu": criu_version,
        "host.cpu.vendor": cpu.get("vendor_id") or cpu.get("CPU implementer", ""),
        "host.cpu.model": cpu.get("model name") or cpu.get("CPU part", ""),
        "host.cpu.flags": _user_flags(cpu),
    }
    return {key: value for key, value in facts.items() if value}


def _cpuinfo(path: Path) -> dict[str, str]:
    """The fields of the first processor: a node with two kinds of processors is beyond Slurm's own model."""
    fields: dict[str, str] = {}
    for line in path.read_text(errors="replace").splitlines():
        if not line.strip() and fields:
            break
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    return fields


def _user_flags(cpu: dict[str, str]) -> str:
    if "flags" in cpu:
        return " ".join(sorted(flag for flag in set(cpu["flags"].split()) if _X86_USER_FLAGS.fullmatch(flag)))
    # On arm64 the list holds only what user code may use.
    return " ".join(sorted(set(cpu.get("Features", "").split())))


def _libc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (OSError, ValueError):
        return ""  # another C library


def _os_name(path: Path) -> str:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return ""
    match = re.search(r'^PRETTY_NAME="?([^"\n]*)"?$', text, re.MULTILINE)
    return match[1] if match else ""
