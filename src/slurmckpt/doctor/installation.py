"""What `make install` puts on a host: the pod's programs, the hooks, and the Python that they run."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from slurmckpt import __version__
from slurmckpt.doctor import elf, trusted
from slurmckpt.doctor.finding import Finding, ok, problem, skipped, warning
from slurmckpt.doctor.host import Host

# Of CRIU's: interrupted system calls start again.
_PLUGIN = "restart.so"
_PROGRAMS = ("shim", "anchor", "pod-init", "leader", "enter", "srun", "launcher")
_AGAIN = "run make install again"
_PYTHON_SECONDS = 20.0
_SAY = "import slurmckpt; print(slurmckpt.__version__); print(slurmckpt.__file__)"


def programs(host: Host) -> Finding:
    """The pod's programs can be run by root, and in any root file system."""
    if not host.is_node:
        return skipped("only compute nodes run them")
    libexec = host.settings.paths.libexec
    faults = [
        f"{name} {fault}"
        for name in _PROGRAMS
        if (fault := trusted.fault(libexec / name, True) or _dynamic(libexec / name))
    ]
    if faults:
        return problem(f"in {libexec}: {'; '.join(faults)}", _AGAIN)
    if house := _house_fault(libexec):
        return problem(*house)
    plugins = libexec / "criu-plugins"
    if fault := trusted.fault(plugins / _PLUGIN, False):
        return problem(f"in {plugins}: {_PLUGIN} {fault}", _AGAIN)
    if others := sorted(entry.name for entry in plugins.iterdir() if entry.name != _PLUGIN):
        return warning(f"{plugins} holds {others[0]}: CRIU loads what lies there", f"remove it from {plugins}")
    return ok(f"{', '.join(_PROGRAMS)} in {libexec}")


def _house_fault(libexec: Path) -> tuple[str, str] | None:
    """What is missing of the directories, or wrong with the path that is built into the stand-in for srun."""
    if f"{libexec}/pod/srun\0".encode() not in (libexec / "srun").read_bytes():
        return f"{libexec / 'srun'} was built for another directory", "set paths.libexec, or PREFIX of make install"
    for name, use in (("criu-plugins", "CRIU does not start without it"), ("pod", "the pods of scripts need it")):
        place = libexec / name
        if not place.is_dir():
            return f"{place} is missing: {use}", f"mkdir -m 0755 {place}"
    return None


def hooks(host: Host) -> Finding:
    """The scripts that slurmd and slurmctld call can be run."""
    names = [*(("prolog", "epilog") if host.is_node else ()), *(("epilog-slurmctld",) if host.is_controller else ())]
    if not names:
        return skipped("only compute nodes and the controller run them")
    libexec = host.settings.paths.libexec
    faults = [f"{name} {fault}" for name in (*names, "hand-over") if (fault := _script_fault(libexec / name))]
    if faults:
        return problem(f"in {libexec}: {'; '.join(faults)}; Slurm drains a node whose prolog it cannot run", _AGAIN)
    return ok(f"{', '.join(names)} in {libexec}")


def package(host: Host) -> Finding:
    """The Python that the hooks run has this package, and only root can change either."""
    if not (host.is_node or host.is_controller):
        return skipped("only compute nodes and the controller run hooks")
    script = host.settings.paths.libexec / "hand-over"
    try:
        found = re.search(r"^VENV=(/\S+)$", script.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    except OSError as error:
        return skipped(f"{script} cannot be read: {error.strerror}")
    if found is None:
        return problem(f"{script} does not say which Python it runs", _AGAIN)
    python = Path(found[1]) / "bin/python"
    if fault := trusted.fault(python, executable=True):
        return problem(f"{python} {fault}; root runs it", _AGAIN)
    try:
        answer = subprocess.run(
            [str(python), "-I", "-c", _SAY], stdin=subprocess.DEVNULL, capture_output=True, timeout=_PYTHON_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return problem(f"{python} cannot be run: {error}", _AGAIN)
    if answer.returncode:
        last = answer.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        return problem(f"{python} cannot import slurmckpt: {''.join(last)}", _AGAIN)
    version, place = answer.stdout.decode("utf-8", "surrogateescape").splitlines()[:2]
    if fault := trusted.fault(Path(place)):
        return problem(
            f"{place} {fault}; root runs it", "install as root, with make install, not in a user's directory"
        )
    if host.is_controller and (fault := trusted.unreadable(Path(place)) or trusted.unreadable(python)):
        return problem(f"{place} {fault}, and SlurmUser runs it on the controller", f"{_AGAIN}, with umask 022")
    if version != __version__:
        return warning(f"the hooks run slurmckpt {version}, this command is {__version__}", _AGAIN)
    return ok(f"slurmckpt {version} in {found[1]}")


def _dynamic(program: Path) -> str:
    try:
        return "" if elf.is_static(program) else "is not static: a task in a container could not run it"
    except (OSError, elf.NotElf) as error:
        return f"is no program for this machine: {error}"


def _script_fault(script: Path) -> str:
    return trusted.fault(script, executable=True) or trusted.unreadable(script)
