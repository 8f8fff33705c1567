"""The device check (tests/device/run) tells what it has found also when a step hangs. Its steps need a device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TREE = Path(__file__).parents[2]
# When a program is given up that hangs, in seconds after its beginning: time enough to come to its steps.
_GIVEN_UP = 12.0
# The program with other steps. Their time is not over when it is given up: a step that begins then would be left out.
_PROGRAM = """
import asyncio, importlib.machinery, importlib.util, subprocess, sys, time
sys.argv[1:] = sys.argv[2:]
loader = importlib.machinery.SourceFileLoader("device_check", {run!r})
module = importlib.util.module_from_spec(importlib.util.spec_from_loader("device_check", loader))
loader.exec_module(module)
module.LIMIT_SECONDS = 100.0
import tests.device.report
tests.device.report.GRACE_SECONDS = {given_up} - module.LIMIT_SECONDS

class Check(module.Check):
    def __init__(self, options, work, report):
        self.report = report

    async def fine(self):
        return "fine", {{"GB/s": 3.5}}

    async def waits(self):
        await asyncio.sleep(1000)

    async def fails(self):
        raise ValueError("no such thing")

    async def blocks(self):
        child = subprocess.Popen(["sleep", "1000"])
        print("child", child.pid, flush=True)
        time.sleep(1000)

    async def all(self):
        for name, seconds in {steps!r}:
            await self.step(name, "fine", seconds, getattr(self, name))

module.Check = Check
sys.exit(module.main())
"""


def play(tmp_path: Path, steps: list[tuple[str, float]], given_up: float = 100.0) -> tuple[int, dict[str, Any], str]:
    """Exit status, the JSON, and what it printed."""
    program = _PROGRAM.format(run=str(TREE / "tests/device/run"), steps=steps, given_up=given_up)
    out = tmp_path / "device.json"
    done = subprocess.run(
        [sys.executable, "-c", program, "run", str(tmp_path), "--out", str(out), "--simulated"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=TREE,
    )
    assert out.exists(), done.stderr
    return done.returncode, json.loads(out.read_text()), done.stdout


def test_a_step_that_hangs_leaves_the_others_their_time(tmp_path: Path) -> None:
    status, told, printed = play(tmp_path, [("waits", 0.5), ("fails", 60), ("fine", 60)])
    assert status == 1 and "NOT all as expected" in printed
    assert [(row["name"], row["got"], row["ok"]) for row in told["steps"]] == [
        ("waits", "it did not end within 0.5 s", False),
        ("fails", "ValueError: no such thing", False),
        ("fine", "fine", True),
    ]
    assert told["steps"][2]["GB/s"] == 3.5 and told["under_way"] is None
    assert told["on"]["device"] == "simulated device"


def test_a_step_that_nothing_can_stop_is_told_with_all_before_it(tmp_path: Path) -> None:
    """And what it has started is gone."""
    status, told, printed = play(tmp_path, [("fine", 60), ("blocks", 1), ("fine", 60)], _GIVEN_UP)
    assert status == 1
    assert [(row["name"], row["got"]) for row in told["steps"]] == [
        ("fine", "fine"),
        ("blocks", "it hangs, and could not be stopped"),
    ]
    (child,) = [line.split()[1] for line in printed.splitlines() if line.startswith("child ")]
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_all_as_expected(tmp_path: Path) -> None:
    status, told, printed = play(tmp_path, [("fine", 60)])
    assert status == 0 and "all as expected" in printed
    assert [row["ok"] for row in told["steps"]] == [True]


@pytest.mark.parametrize("words", [[], ["a", "b"], ["a", "--wrong"]])
def test_bad_arguments_are_one_line(words: list[str]) -> None:
    command = [sys.executable, str(TREE / "tests/device/run"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "error:" in done.stderr and "Traceback" not in done.stderr
