"""The CRIU of this node: which one, of which version, and what its root may do."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from slurmckpt.errors import SlurmckptError

PATH = "/usr/local/sbin:/usr/sbin:/usr/local/bin:/usr/bin:/sbin:/bin"
_CAP_SYS_RESOURCE = 24


class CriuError(SlurmckptError):
    """CRIU could not do what it was asked for. The message is one sentence for a user. log: the end of CRIU's own."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class CriuMoment(CriuError):
    """It met something that is over a moment later."""


class CriuDied(CriuError):
    """It was killed, or could not even be executed: what it said of the processes is not why."""


@dataclass(frozen=True)
class Installation:
    """The CRIU of this node. version: as text, e.g. `4.2.1`.

    failure_log: where CRIU's own log of the last failure is kept, for those who must know more than our one sentence.
    needs_real_id: root here lacks CAP_SYS_RESOURCE, and prlimit() on another user's process is then allowed only to a
    caller whose real uid and gid are the target's (prlimit(2), PERMISSIONS).
    """

    program: str
    version: str
    needs_real_id: bool
    failure_log: Path | None = None


def find(program: str, real_id: str, failure_log: Path | None = None) -> Installation:
    """The CRIU to use. program: a path or a name; real_id: `auto` or `never` (slurmckpt.toml).

    Raises CriuError when there is none or it does not tell its version.
    """
    path = shutil.which(program, path=PATH)
    if path is None:
        raise CriuError(f"CRIU is not installed ({program} was looked up in {PATH})")
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CriuError(f"{path} cannot be executed: {error}") from error
    version = re.search(r"Version:\s*v?(\S+)", answer.stdout)
    if version is None:
        raise CriuError(f"{path} --version does not tell a version: {(answer.stdout + answer.stderr).strip()[:200]!r}")
    return Installation(path, version[1], real_id == "auto" and not _has_sys_resource(), failure_log)


async def warm_up(installation: Installation) -> None:
    """Let CRIU examine the kernel once, as root: those with another real uid need the /run/criu.kdat that it leaves."""
    process = await asyncio.create_subprocess_exec(
        installation.program, "check", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    await process.wait()


def _has_sys_resource() -> bool:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_SYS_RESOURCE & 1)
    return True
