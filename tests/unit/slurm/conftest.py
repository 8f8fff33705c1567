"""A scontrol that answers from files and writes down how it was called."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parent / "samples"

_SCRIPT = """#!{python}
import json, os, pathlib, sys, time
home = pathlib.Path(__file__).parent
with open(home / "calls", "a") as calls:
    calls.write(json.dumps([sys.argv[1:], dict(os.environ)]) + "\\n")
answers = json.loads((home / "answers").read_text())
for words, output, errors, status, seconds in answers:
    if sys.argv[1:][:len(words)] == words:
        time.sleep(seconds)
        sys.stdout.write(output)
        sys.stderr.write(errors)
        sys.exit(status)
sys.stderr.write("no answer prepared for " + " ".join(sys.argv[1:]))
sys.exit(99)
"""


@dataclass
class FakeScontrol:
    """home: where its files are. Answers are tried in the order in which they were given."""

    home: Path

    @property
    def program(self) -> str:
        return str(self.home / "scontrol")

    def answer(self, words: str, output: str = "", errors: str = "", status: int = 0, seconds: float = 0) -> None:
        """What to say when called with these first words."""
        file = self.home / "answers"
        answers = json.loads(file.read_text()) if file.exists() else []
        file.write_text(json.dumps([*answers, [words.split(), output, errors, status, seconds]]))

    def calls(self) -> list[list[str]]:
        return [call for call, _ in self._log()]

    def environments(self) -> list[dict[str, str]]:
        return [environment for _, environment in self._log()]

    def _log(self) -> list[tuple[list[str], dict[str, str]]]:
        return [json.loads(line) for line in (self.home / "calls").read_text().splitlines()]


@pytest.fixture
def scontrol(tmp_path: Path) -> FakeScontrol:
    home = tmp_path / "bin"
    home.mkdir()
    script = home / "scontrol"
    script.write_text(_SCRIPT.format(python=sys.executable))
    os.chmod(script, 0o755)
    return FakeScontrol(home)


@pytest.fixture
def samples() -> Path:
    """Answers of a real Slurm 26.05.5, reduced to the fields that matter."""
    return SAMPLES
