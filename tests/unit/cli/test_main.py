"""The command itself: help without loading the verbs, and errors of ours as one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from slurmckpt import __version__
from slurmckpt.cli import VERBS, main
from slurmckpt.errors import SlurmckptError

SOURCE = Path(__file__).resolve().parents[3] / "src"


def test_every_verb_loads_and_is_named_as_it_is_called() -> None:
    context = click.Context(main)
    for verb in VERBS:
        command = main.get_command(context, verb)
        assert command is not None
        done = CliRunner().invoke(main, [verb, "--help"])
        assert done.exit_code == 0 and verb in done.output.splitlines()[0]


def test_help_lists_the_verbs() -> None:
    done = CliRunner().invoke(main, ["--help"])
    assert done.exit_code == 0
    for verb, (_, text) in VERBS.items():
        assert f"  {verb}" in done.output
        assert text.split()[0] in done.output


def test_version() -> None:
    assert CliRunner().invoke(main, ["--version"]).output == f"slurmckpt, version {__version__}\n"


def test_an_unknown_verb() -> None:
    done = CliRunner().invoke(main, ["statsu"])
    assert done.exit_code == 2 and "statsu" in done.output


def test_help_does_not_pay_for_the_verbs() -> None:
    program = (
        "import sys\nfrom slurmckpt.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print([name for name in sys.modules if name.startswith('slurmckpt.cli.') or name in ('blake3', 'rich')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_an_error_of_ours_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def command() -> None:
        raise SlurmckptError("what went wrong\nand more")

    monkeypatch.setattr(main, "get_command", lambda context, name: command)
    done = CliRunner().invoke(main, ["status"])
    assert (done.exit_code, done.output) == (1, "Error: what went wrong\\nand more\n")
