"""Make each mutant of tests/mutants/catalogue.py in a copy of the tree, and see whether a test notices.

    python tests/mutants/run.py [--seconds 600] [NAME...]

Prints a line for each. Exit status 1: one lives. An hour for all, on two cores; it needs what `make test-unit` needs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE))

from tests.mutants.catalogue import MUTANTS, Mutant  # noqa: E402

_COPIED = ("src", "gate", "gpu", "tests", "pyproject.toml", "Makefile", "etc", "docs")


def main() -> int:
    parser = argparse.ArgumentParser(description="Make each mutant, and see whether a test notices.")
    parser.add_argument("--seconds", type=float, default=600.0, help="for the tests of one mutant (default 600)")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    given = parser.parse_args()
    unknown = set(given.names) - {one.name for one in MUTANTS}
    if unknown:
        parser.error(f"there is no mutant {', '.join(sorted(unknown))}")
    living = 0
    for mutant in MUTANTS:
        if not given.names or mutant.name in given.names:
            living += not noticed(mutant, given.seconds) and not mutant.unnoticed
    print(f"{living} live" if living else "all were noticed that can be so far")
    return 1 if living else 0


def noticed(mutant: Mutant, seconds: float) -> bool:
    """Whether one of its tests fails, or hangs."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="slurmckpt-mutant-") as folder:
        tree = Path(folder)
        for name in _COPIED:
            source = TREE / name
            if source.is_dir():
                shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__", "build", "*.so"))
            else:
                shutil.copy(source, tree / name)
        file = tree / mutant.file
        text = file.read_text(encoding="utf-8")
        assert text.count(mutant.before) == 1, f"{mutant.name}: what it replaces is not in {mutant.file} once"
        file.write_text(text.replace(mutant.before, mutant.after), encoding="utf-8")
        answer = tested(tree, mutant, seconds)
    known = f", as is known: {mutant.unnoticed}" if mutant.unnoticed and answer == "LIVES" else ""
    print(f"{mutant.name:28}  {answer}{known}  ({time.monotonic() - began:.0f} s)", flush=True)
    return not answer.startswith("LIVES")


def tested(tree: Path, mutant: Mutant, seconds: float) -> str:
    # What a failure of a random program can be reduced to is of no interest, and takes minutes.
    plugins = ["-p", "no:cacheprovider", "-p", "tests.mutants.unreduced"]
    command = [sys.executable, "-m", "pytest", "-x", "-q", *plugins, *mutant.tests]
    # A group of its own: tests of a mutant may hang, and so may what they have started.
    process = subprocess.Popen(
        command, cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return "noticed: the tests hang"
    failed = [line for line in output.splitlines() if line.startswith("FAILED ")]
    if process.returncode == 1 and failed:
        return f"noticed: {failed[0].split(' - ')[0].rpartition('::')[2]}"
    if process.returncode < 0:
        return f"noticed: the tests end with signal {-process.returncode}"
    return "LIVES" if process.returncode == 0 else f"LIVES: the tests did not run: {output[-400:]}"


if __name__ == "__main__":
    sys.exit(main())
