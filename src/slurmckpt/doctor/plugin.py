"""The SPANK plugin and plugstack.conf, which makes Slurm load it."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slurmckpt.doctor import elf, trusted
from slurmckpt.doctor.finding import Finding, ok, problem, skipped, warning
from slurmckpt.doctor.host import Host

_NAME = "slurmckpt.so"
_DEFAULT = Path("/usr/lib/slurmckpt") / _NAME
# Where Slurm's commands look for slurm.conf, in their order (slurm.conf(5), "configless").
_CONFIGURATIONS = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")
_MAX_INCLUDES = 100
# Slurm 23.11 brought spank_prepend_task_argv (spank(8)), by which a task gets into a pod.
_FIRST_RELEASE = (23, 11)


@dataclass(frozen=True)
class Line:
    """A line of plugstack.conf. kind: `required` or `optional`; plugin: its path, as it stands there."""

    file: Path
    kind: str
    plugin: str
    arguments: tuple[str, ...]

    @property
    def ours(self) -> bool:
        """Whether it loads slurmckpt."""
        return Path(self.plugin).name == _NAME


def stack(host: Host) -> Finding:
    """plugstack.conf loads the plugin: as optional, last, and with the paths of slurmckpt.toml."""
    path = _plugstack(host)
    if path is None:
        return skipped("no slurm.conf is found, beside which plugstack.conf lies; set SLURM_CONF")
    try:
        lines = list(_lines(path))
    except OSError as error:
        return problem(f"{error.filename}: {error.strerror}: Slurm ignores it", "make it readable for all users")
    mine = next((line for line in lines if line.ours), None)
    if mine is None:
        if host.roles == ["controller"]:
            return skipped(f"{path} does not load {_NAME}; needed here only where jobs are submitted")
        return problem(f"{path} does not load {_NAME}", f"add at its end: optional {_DEFAULT}")
    if mine.kind != "optional":
        return problem(
            f"{mine.file}: {_NAME} is {mine.kind}: after an upgrade of Slurm no job would start",
            f"write optional instead of {mine.kind}",
        )
    wanted = {"run": str(host.settings.paths.run), "libexec": str(host.settings.paths.libexec)}
    given = dict(argument.partition("=")[::2] for argument in mine.arguments)
    for key, value in wanted.items():
        if (here := given.get(key, f"{_DEFAULTS[key]}")) != value:
            return problem(
                f"{mine.file}: the plugin uses {key}={here}, but paths.{key} in {host.settings_file} is {value}",
                f"give {_NAME} the argument {key}={value}, and keep the scripts in step",
            )
    if lines[-1] is not mine:
        return warning(
            f"{mine.file}: {_NAME} is not the last plugin, {Path(lines[-1].plugin).name} follows",
            "move it to the end: a container that another plugin enters is recognised only then",
        )
    return ok(f"{mine.file}: optional, last")


def plugin(host: Host) -> Finding:
    """The plugin is there, root's, and built for the Slurm release of this host: another one does not load."""
    try:
        path = _plugstack(host)
        mine = next((line.plugin for line in _lines(path) if line.ours), None) if path else None
    except OSError:
        mine = None
    place = Path(mine) if mine and mine.startswith("/") else _DEFAULT
    if not place.exists() and mine is None and host.roles == ["controller"]:
        return skipped("needed here only where jobs are submitted")
    if fault := trusted.fault(place) or trusted.unreadable(place):
        return problem(f"{place} {fault}", "run make install again, on login hosts too")
    try:
        number = elf.constant(place, "plugin_version")
    except (OSError, elf.NotElf) as error:
        return problem(f"{place} is no plugin for this machine: {error}", "build it here: make -C spank install")
    if number is None:
        return problem(f"{place} is no Slurm plugin: it exports no plugin_version", "run make install again")
    # SLURM_VERSION_NUMBER of slurm_version.h; for SPANK plugins Slurm compares all but the last byte (plugin.c).
    major, minor = number >> 16, number >> 8 & 0xFF
    built = f"{major}.{minor:02d}"
    if (major, minor) < _FIRST_RELEASE:
        return problem(f"{place} is for Slurm {built}, which has no spank_prepend_task_argv", "Slurm 23.11 or newer")
    if host.release == "unknown":
        return skipped(f"{place} is for Slurm {built}; scontrol --version does not say what is installed here")
    if built != host.release:
        return problem(
            f"{place} is for Slurm {built}, here is {host.release}: Slurm does not load it",
            f"build it with the headers of Slurm {host.release}: make -C spank clean install",
        )
    return ok(f"{place} is for Slurm {built}, as installed here")


_DEFAULTS = {"run": "/run/slurmckpt", "libexec": "/usr/libexec/slurmckpt"}  # of spank/args.c


def _plugstack(host: Host) -> Path | None:
    """plugstack.conf as Slurm finds it; None when no slurm.conf is found."""
    settings = host.cluster.config if host.cluster else {}
    if settings.get("PlugStackConfig"):
        return Path(settings["PlugStackConfig"])
    own = os.environ.get("SLURM_CONF", "")
    for candidate in (own, settings.get("SLURM_CONF", ""), *_CONFIGURATIONS):
        if candidate and Path(candidate).exists():
            return Path(candidate).parent / "plugstack.conf"
    return None


def _lines(path: Path, seen: frozenset[Path] = frozenset()) -> Iterator[Line]:
    """The lines that load plugins, includes followed, as Slurm's spank.c reads them. Raises OSError."""
    if path in seen or len(seen) > _MAX_INCLUDES:
        return
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    for line in text.splitlines():
        kind, plugin, *arguments = (*line.partition("#")[0].split(), "", "")
        if not plugin:
            continue
        if kind == "include":
            for included in sorted(glob.glob(str(path.parent / plugin))):
                yield from _lines(Path(included), seen | {path})
        elif kind in ("required", "optional"):
            yield Line(path, kind, plugin, tuple(word for word in arguments if word))
