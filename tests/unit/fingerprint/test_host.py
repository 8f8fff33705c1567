"""Facts about the host, from a prepared /proc and from this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurmckpt.fingerprint.host import host

X86 = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Platinum 8480+
flags\t\t: fpu tsc msr sse sse2 sse4_1 avx avx2 avx512f amx_tile pku xsave xsavec constant_tsc ibrs md_clear hypervisor
bugs\t\t: spectre_v1

processor\t: 1
vendor_id\t: Other
"""
ARM = """processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd sve2 atomics
CPU implementer\t: 0x41
CPU part\t: 0xd40

processor\t: 1
"""


def prepared(tmp_path: Path, cpuinfo: str) -> Path:
    (tmp_path / "sys/kernel").mkdir(parents=True)
    (tmp_path / "sys/kernel/osrelease").write_text("6.18.44-amd64\n")
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    return tmp_path


def test_an_x86_host(tmp_path: Path) -> None:
    release = tmp_path / "os-release"
    release.write_text('NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 14 (forky)"\n')
    facts = host("4.2.1", prepared(tmp_path, X86), release)
    assert facts["host.kernel"] == "6.18.44-amd64"
    assert facts["host.criu"] == "4.2.1"
    assert facts["host.os"] == "Debian GNU/Linux 14 (forky)"
    assert facts["host.cpu.vendor"] == "GenuineIntel"
    assert facts["host.cpu.model"] == "Intel(R) Xeon(R) Platinum 8480+"
    # what only the kernel uses is left out: it differs with microcode and boot options
    assert facts["host.cpu.flags"] == "amx_tile avx avx2 avx512f fpu pku sse sse2 sse4_1 tsc xsave xsavec"


def test_an_arm_host(tmp_path: Path) -> None:
    facts = host("4.2.1", prepared(tmp_path, ARM), tmp_path / "missing")
    assert facts["host.cpu.vendor"] == "0x41"
    assert facts["host.cpu.model"] == "0xd40"
    assert facts["host.cpu.flags"] == "asimd atomics fp sve2"
    assert "host.os" not in facts


def test_what_is_not_known_has_no_key(tmp_path: Path) -> None:
    assert "host.criu" not in host("", prepared(tmp_path, X86))


def test_a_host_without_proc(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cpuinfo"):
        host("4.2.1", tmp_path)


def test_this_machine() -> None:
    facts = host("4.2.1")
    assert facts["host.arch"] == os.uname().machine
    assert facts["host.kernel"] == os.uname().release
    assert int(facts["host.page-size"]) >= 4096
    assert facts["host.cpu.flags"].split() == sorted(set(facts["host.cpu.flags"].split()))
    assert facts == host("4.2.1")
