"""CRIU against this kernel, and the rights that it will have."""

from __future__ import annotations

import dataclasses

import pytest

from slurmckpt.capture.criu import Installation
from slurmckpt.config import Capture
from slurmckpt.doctor import criu
from slurmckpt.doctor.host import Host
from tests.unit.doctor.world import World

ALL = (1 << 41) - 1
CAP_SYS_ADMIN, CAP_SYS_RESOURCE = 1 << 21, 1 << 24


def with_criu(world: World, version: str, kernel: str) -> Host:
    program = world.write("sbin/criu", "#!/bin/sh\n", 0o755)
    return world.host(criu=Installation(str(program), version, False), kernel=kernel)


@pytest.mark.parametrize(
    ("version", "kernel", "verdict"),
    [
        ("4.2.1", "6.18.44-fc", "ok"),
        ("4.2", "6.16.0", "ok"),
        ("4.1.1", "6.15.9", "ok"),
        ("4.1.1", "6.16.0", "problem"),
        ("3.19", "5.14.0-503.el9.x86_64", "ok"),
        ("3.19", "10.0.1", "problem"),
        ("3.17.1", "5.10.0", "problem"),
        ("10.0", "6.18.0", "ok"),
        ("unknown", "6.18.0", "problem"),
    ],
)
def test_versions(world: World, version: str, kernel: str, verdict: str) -> None:
    assert criu.version(with_criu(world, version, kernel)).verdict == verdict


def test_an_old_version_is_told_with_what_is_needed(world: World) -> None:
    found = criu.version(with_criu(world, "4.1.1", "6.18.44"))
    assert found.text.startswith("CRIU 4.1.1 is too old for Linux 6.18.44: ")
    assert found.remedy == "install CRIU 4.2 or newer"


def test_no_criu(world: World) -> None:
    host = world.host(criu=None, why_no_criu="CRIU is not installed (...)")
    assert (criu.version(host).verdict, criu.version(host).text) == ("problem", "CRIU is not installed (...)")
    assert criu.check(host).verdict == "skipped"
    assert criu.version(world.login(criu=None)).verdict == "skipped"


@pytest.mark.parametrize(
    ("script", "verdict", "text"),
    [
        ("echo Warn; echo Looks good.", "ok", "criu check: Looks good."),
        (
            "echo Warn >&2; echo 'Error (x.c:1): no vdso' >&2; exit 1",
            "problem",
            "criu check fails: Error (x.c:1): no vdso",
        ),
        ("exit 1", "problem", "criu check fails: nothing"),
    ],
)
def test_what_criu_says(world: World, script: str, verdict: str, text: str) -> None:
    program = world.write("criu", f'#!/bin/sh\n[ "$*" = check ] || exit 9\n{script}\n', 0o755)
    found = criu.check(world.host(criu=Installation(str(program), "4.2.1", False)))
    assert (found.verdict, found.text) == (verdict, text)


def test_criu_check_needs_root(world: World) -> None:
    assert criu.check(world.host(root=False)).verdict == "skipped"


def status(world: World, process: str, capabilities: int) -> None:
    world.write(f"proc/{process}/status", f"Name:\tslurmd\nCapPrm:\t0\nCapEff:\t{capabilities:016x}\n")


def test_slurmds_capabilities_count(world: World) -> None:
    status(world, "77", ALL)
    status(world, "self", 0)
    assert criu.capabilities(world.host(slurmd=77)).verdict == "ok"
    assert criu.capabilities(world.host(slurmd=77, root=False)).verdict == "ok"
    status(world, "77", ALL & ~CAP_SYS_ADMIN)
    found = criu.capabilities(world.host(slurmd=77))
    assert (found.verdict, found.text) == ("problem", "slurmd lacks CAP_SYS_ADMIN")


def test_without_slurmd_it_is_ours_if_we_are_root(world: World) -> None:
    status(world, "self", ALL & ~CAP_SYS_ADMIN)
    assert criu.capabilities(world.host(slurmd=None)).text == "root lacks CAP_SYS_ADMIN"
    assert criu.capabilities(world.host(slurmd=None, root=False)).verdict == "skipped"


def test_sys_resource_is_only_needed_with_real_id_never(world: World) -> None:
    status(world, "1", ALL & ~CAP_SYS_RESOURCE)
    found = criu.capabilities(world.host())
    assert (found.verdict, "real uid" in found.text) == ("ok", True)
    world.settings = dataclasses.replace(world.settings, capture=Capture(real_id="never"))
    assert criu.capabilities(world.host()).verdict == "problem"
