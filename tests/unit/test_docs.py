"""What the documents say of the tests is true."""

from __future__ import annotations

import re
from pathlib import Path

from tests.unit import modulemap

ROOT = Path(__file__).resolve().parents[2]


def test_the_tests_that_the_table_of_requeues_names_exist() -> None:
    named = set(re.findall(r"`((?:test_|Test|tests/)[\w/.]*\w)`", (ROOT / "docs/requeue.md").read_text()))
    assert len(named) > 15
    sources = "".join(path.read_text() for path in (ROOT / "tests/cluster").glob("*.py"))
    missing = [
        name
        for name in named
        if not (
            (ROOT / "tests/cluster" / name).is_file()
            or (ROOT / name).is_file()
            or re.search(rf"(?:def|class) {name}\b", sources)
        )
    ]
    assert missing == []


def test_the_map_of_the_sources_is_theirs() -> None:
    text = modulemap.document()
    assert modulemap.DOCUMENT.read_text(encoding="utf-8") == text, "bring it up to date with: make docs"
    assert re.findall(r"^\* `\w+` *$|^## .*\n\n", text, flags=re.MULTILINE) == [], "these say nothing of themselves"
