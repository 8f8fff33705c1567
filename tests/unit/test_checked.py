"""`make check` looks at every script of the tree."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = {".git", ".venv", "build", "dist", "__pycache__", "node_modules"}


def files(directory: Path) -> Iterator[Path]:
    """Those of the tree, without what is built."""
    for path in sorted(directory.iterdir()):
        if path.is_dir() and not path.is_symlink() and path.name not in ELSEWHERE:
            yield from files(path)
        elif path.is_file() and not path.is_symlink():
            yield path


def is_shell(path: Path) -> bool:
    with path.open("rb") as file:
        return re.match(rb"#!.*\b(?:ba|da)?sh\b|# shellcheck shell=", file.readline(200)) is not None


def test_every_shell_script_is_checked() -> None:
    asked = "include Makefile\nscripts:\n\t@echo $(SCRIPTS)\n"
    done = subprocess.run(
        ["make", "-s", "-f", "-", "scripts"], input=asked, cwd=ROOT, check=True, capture_output=True, text=True
    )
    parts = [
        ROOT / name for name in ("prolog", "epilog", "examples", "tools", "sandbox", "tests", ".ci", "etc", "docs")
    ]
    found = {str(path.relative_to(ROOT)) for part in parts if part.is_dir() for path in files(part) if is_shell(path)}
    assert set(done.stdout.split()) - {".ci/run"} == found - {".ci/run"}
