"""CRIU: its version for this kernel, what it says itself, and the rights it has under slurmd."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from slurmckpt.doctor import trusted
from slurmckpt.doctor.finding import Finding, ok, problem, skipped
from slurmckpt.doctor.host import Host

# From this kernel on, at least this CRIU, because. First: `query-ext-files`, the request of CRIU's RPC by which several
# pods are cut at one moment, came with commit 439b522 (2022) and 3.19. Second: SO_PASSCRED of a TCP socket is refused
# since Linux 6.16 ("Can't get 1:16 opt"), seen with 4.1.1; 3.17.1 does not even start on 6.18.
_NEEDED = (
    ((0, 0), (3, 19), "it cannot cut several pods at one moment"),
    ((6, 16), (4, 2), "it fails on every TCP socket from Linux 6.16 on"),
)
_CHECK_SECONDS = 50.0

# capabilities(7), the numbers of uapi/linux/capability.h: what building a pod and dumping it takes
_CAPABILITIES = {"CHOWN": 0, "DAC_OVERRIDE": 1, "KILL": 5, "SETGID": 6, "SETUID": 7, "NET_ADMIN": 12}
_CAPABILITIES |= {"SYS_PTRACE": 19, "SYS_ADMIN": 21}
_SYS_RESOURCE = 24


def version(host: Host) -> Finding:
    """CRIU is there and new enough for this kernel."""
    if not host.is_node:
        return skipped("only compute nodes need CRIU")
    if host.criu is None:
        return problem(host.why_no_criu, "install CRIU 4.2 or newer, or set capture.criu to where it is")
    if fault := trusted.fault(Path(host.criu.program), executable=True):
        return problem(f"{host.criu.program} {fault}; root runs it", f"chown root:root {host.criu.program}; chmod 0755")
    release = _numbers(host.criu.version)
    if release is None:
        return problem(
            f"the version of {host.criu.program} is not understood: {host.criu.version}", "install a release"
        )
    kernel = _numbers(host.kernel) or (0, 0)
    for since, least, why in _NEEDED:
        if kernel >= since and release < least:
            return problem(
                f"CRIU {host.criu.version} is too old for Linux {host.kernel}: {why}",
                f"install CRIU {least[0]}.{least[1]} or newer",
            )
    return ok(f"CRIU {host.criu.version} ({host.criu.program}) on Linux {host.kernel}")


def check(host: Host) -> Finding:
    """`criu check`: this kernel has what CRIU needs."""
    if not host.is_node or host.criu is None:
        return skipped("there is no CRIU to ask" if host.is_node else "only compute nodes need CRIU")
    if not host.root:
        return skipped("only root can run `criu check`")
    libraries = str(host.settings.paths.libexec / "criu-plugins")
    try:
        answer = subprocess.run(
            [host.criu.program, "check"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_CHECK_SECONDS,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "CRIU_LIBS_DIR": libraries},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return problem(f"criu check cannot be run: {error}", f"run {host.criu.program} check by hand")
    said = answer.stdout.decode("utf-8", "replace").strip().splitlines() or ["nothing"]
    if answer.returncode:
        errors = [line for line in said if line.startswith("Error")] or said
        return problem(f"criu check fails: {errors[0]}", f"see {host.criu.program} check; the kernel lacks a feature")
    return ok(f"criu check: {said[-1]}")


def capabilities(host: Host) -> Finding:
    """Root on this host has the capabilities that the coordinator needs; it inherits them from slurmd."""
    if not host.is_node:
        return skipped("only compute nodes need them")
    if host.slurmd is None and not host.root:
        return skipped("slurmd does not run, and we are not root: nobody's capabilities to look at")
    whose, process = ("slurmd", str(host.slurmd)) if host.slurmd is not None else ("root", "self")
    text = (host.proc / process / "status").read_text(encoding="utf-8", errors="replace")
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", text, re.MULTILINE)
    if found is None:
        return skipped(f"the kernel does not show the capabilities of {whose}")
    held = int(found[1], 16)
    missing = [f"CAP_{name}" for name, bit in _CAPABILITIES.items() if not held >> bit & 1]
    if missing:
        return problem(f"{whose} lacks {', '.join(missing)}", "give it all capabilities (a container? slurmd.service?)")
    if held >> _SYS_RESOURCE & 1:
        return ok(f"{whose} has all that is needed")
    if host.settings.capture.real_id == "never":
        return problem(
            f'{whose} lacks CAP_SYS_RESOURCE, and capture.real_id is "never"', 'set capture.real_id = "auto"'
        )
    return ok(f"{whose} lacks CAP_SYS_RESOURCE: CRIU runs with the job's real uid instead, which works")


def _numbers(text: str) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None
