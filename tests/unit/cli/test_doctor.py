"""`slurmckpt doctor`: what is printed, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slurmckpt import __version__
from slurmckpt.cli import doctor, main
from slurmckpt.doctor import checks
from slurmckpt.doctor.finding import Finding, ok, problem, skipped, warning
from slurmckpt.doctor.host import Host
from slurmckpt.slurm.port import SlurmPort
from tests.unit.doctor.world import World

asked: list[str | None] = []


@pytest.fixture(autouse=True)
def this_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World.below(tmp_path)

    async def examine(port: SlurmPort, node: str | None) -> Host:
        asked.append(node)
        return world.host()

    asked.clear()
    monkeypatch.setattr(doctor, "examine", examine)
    monkeypatch.setattr(doctor, "_WIDTH", 6)


def examined(monkeypatch: pytest.MonkeyPatch, *arguments: str, **findings: Finding) -> Result:
    found = {name: lambda host, finding=finding: finding for name, finding in findings.items()}
    monkeypatch.setattr(checks, "CHECKS", found)
    return CliRunner().invoke(main, ["doctor", *arguments])


def test_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    result = examined(
        monkeypatch,
        key=problem("is [red]open[/]; accepted: H:M:S", "chmod 0400 it"),
        store=warning("is local", "share it"),
        pasta=ok("/usr/bin/pasta"),
        log=skipped("only root can see it"),
    )
    assert result.output.splitlines() == [
        f"slurmckpt {__version__} on n1 (compute node), as root",
        "problem  key     is [red]open[/]; accepted: H:M:S",
        "                 -> chmod 0400 it",
        "warning  store   is local",
        "                 -> share it",
        "ok       pasta   /usr/bin/pasta",
        "skipped  log     only root can see it",
        "1 problem, 1 warning, 1 of 4 checks skipped",
    ]
    assert result.exit_code == 1


def test_long_lines_are_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"  {'x' * 300}\n" in examined(monkeypatch, a=ok("x" * 300)).output


@pytest.mark.parametrize("finding", [ok("fine"), warning("strange", "look"), skipped("not here")])
def test_only_a_problem_is_a_failure(monkeypatch: pytest.MonkeyPatch, finding: Finding) -> None:
    for arguments in ((), ("--json",)):
        assert examined(monkeypatch, *arguments, a=finding).exit_code == 0
        assert examined(monkeypatch, *arguments, a=finding, b=problem("bad", "mend")).exit_code == 1


def test_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    result = examined(monkeypatch, "--json", a=ok("fine"), b=problem("bad", "mend it"))
    assert json.loads(result.output) == {
        "version": __version__,
        "host": "n1",
        "roles": ["compute node"],
        "root": True,
        "problems": 1,
        "warnings": 0,
        "findings": [
            {"check": "a", "verdict": "ok", "text": "fine", "remedy": ""},
            {"check": "b", "verdict": "problem", "text": "bad", "remedy": "mend it"},
        ],
    }


def test_the_node_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    examined(monkeypatch, "--node", "gpu7")
    examined(monkeypatch)
    assert asked == ["gpu7", None]


def test_a_node_that_slurm_does_not_know(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Named, it is a slip; not named, this is a host of another kind."""
    (tmp_path / "login").mkdir()
    login = World.below(tmp_path / "login").login()

    async def examine(port: SlurmPort, node: str | None) -> Host:
        return login

    monkeypatch.setattr(doctor, "examine", examine)
    assert examined(monkeypatch).exit_code == 0
    result = examined(monkeypatch, "--node", "gpu7")
    assert (result.exit_code, result.output) == (1, "Error: no node\n")


def test_it_is_listed() -> None:
    assert "doctor" in CliRunner().invoke(main, ["--help"]).output
