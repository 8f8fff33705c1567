"""What make install leaves on a host."""

from __future__ import annotations

from pathlib import Path

import pytest

import slurmckpt
from slurmckpt.doctor import elf, installation
from tests.unit.doctor.world import Compile, World

PROGRAMS = ("shim", "anchor", "pod-init", "leader", "enter", "srun", "launcher")


@pytest.fixture
def installed(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    for name in (*PROGRAMS, "prolog", "epilog", "epilog-slurmctld"):
        world.write(f"libexec/{name}", "#!/bin/sh\n", 0o755)
    world.write("libexec/hand-over", f"#!/bin/sh\nVENV={world.top}/venv\n", 0o755)
    world.write("libexec/srun", f"\x7fELF {world.top}/libexec/pod/srun\0", 0o755)
    for name in ("criu-plugins", "pod"):
        (world.top / "libexec" / name).mkdir()
    world.write("libexec/criu-plugins/restart.so", "\x7fELF", 0o644)
    monkeypatch.setattr(elf, "is_static", lambda path: True)
    return world


def test_programs(installed: World) -> None:
    assert installation.programs(installed.host()).verdict == "ok"
    assert installation.programs(installed.login()).verdict == "skipped"


def test_missing_programs(installed: World) -> None:
    libexec = installed.top / "libexec"
    (libexec / "shim").unlink()
    (libexec / "enter").chmod(0o644)
    found = installation.programs(installed.host())
    assert (found.verdict, found.text) == (
        "problem",
        f"in {libexec}: shim is missing; enter is not executable (mode 0644)",
    )


def test_programs_must_be_static(world: World, compiled: Compile) -> None:
    for name in PROGRAMS:
        compiled(f"libexec/{name}", "int main(void) { return 0; }", "" if name == "leader" else "-static")
    found = installation.programs(world.host())
    assert found.verdict == "problem"
    assert found.text == f"in {world.top}/libexec: leader is not static: a task in a container could not run it"


def test_criu_plugins(installed: World) -> None:
    plugins = installed.top / "libexec/criu-plugins"
    (plugins / "cuda_plugin.so").touch()
    found = installation.programs(installed.host())
    assert (found.verdict, found.text) == ("warning", f"{plugins} holds cuda_plugin.so: CRIU loads what lies there")
    (plugins / "cuda_plugin.so").unlink()
    (plugins / "restart.so").unlink()
    found = installation.programs(installed.host())
    assert (found.verdict, found.text) == ("problem", f"in {plugins}: restart.so is missing")
    plugins.rmdir()
    assert installation.programs(installed.host()).verdict == "problem"


def test_the_house_of_the_stand_in(installed: World) -> None:
    (installed.top / "libexec/pod").rmdir()
    assert installation.programs(installed.host()).text.startswith(f"{installed.top}/libexec/pod is missing: ")
    installed.write("libexec/srun", "\x7fELF /elsewhere/libexec/slurmckpt/pod/srun\0", 0o755)
    found = installation.programs(installed.host())
    assert (found.verdict, found.text) == ("problem", f"{installed.top}/libexec/srun was built for another directory")


def test_hooks(installed: World) -> None:
    assert installation.hooks(installed.host()).text == f"prolog, epilog in {installed.top}/libexec"
    assert installation.hooks(installed.controller()).text == f"epilog-slurmctld in {installed.top}/libexec"
    assert installation.hooks(installed.login()).verdict == "skipped"
    (installed.top / "libexec/prolog").unlink()
    assert installation.hooks(installed.host()).verdict == "problem"
    assert installation.hooks(installed.controller()).verdict == "ok"
    (installed.top / "libexec/hand-over").chmod(0o644)
    assert installation.hooks(installed.controller()).verdict == "problem"


def python(world: World, script: str) -> None:
    world.write("venv/bin/python", f"#!/bin/sh\n{script}\n", 0o755)


def test_the_package_that_the_hooks_run(installed: World) -> None:
    python(installed, f"[ $1 = -I ] && [ $2 = -c ] && echo {slurmckpt.__version__} && echo {__file__}")
    found = installation.package(installed.host())
    assert (found.verdict, found.text) == ("ok", f"slurmckpt {slurmckpt.__version__} in {installed.top}/venv")
    python(installed, f"echo 0.0.1; echo {__file__}")
    found = installation.package(installed.host())
    assert (found.verdict, "the hooks run slurmckpt 0.0.1" in found.text) == ("warning", True)


def test_a_package_that_cannot_be_run(installed: World) -> None:
    found = installation.package(installed.host())
    assert (found.verdict, found.text) == ("problem", f"{installed.top}/venv/bin/python is missing; root runs it")
    python(installed, "echo Traceback >&2; echo 'ImportError: no zstandard' >&2; exit 1")
    found = installation.package(installed.host())
    assert (found.verdict, found.text) == (
        "problem",
        f"{installed.top}/venv/bin/python cannot import slurmckpt: ImportError: no zstandard",
    )
    installed.write("libexec/hand-over", "#!/bin/sh\n", 0o755)
    assert installation.package(installed.host()).verdict == "problem"
    Path(installed.top / "libexec/hand-over").unlink()
    assert installation.package(installed.host()).verdict == "skipped"
    assert installation.package(installed.login()).verdict == "skipped"
