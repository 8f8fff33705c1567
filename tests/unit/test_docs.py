"""What the documents say of the tests is true."""

from __future__ import annotations

import re
from pathlib import Path

from tests.unit import modulemap
from tests.unit.capture.cuda import test_deaths

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


def test_the_tests_of_deaths_that_gpu_md_names_exist_and_none_is_missing() -> None:
    text = (ROOT / "docs/gpu.md").read_text(encoding="utf-8")
    table = text.partition("<!-- deaths: begin -->")[2].partition("<!-- deaths: end -->")[0]
    named = set(re.findall(r"`((?:unit|cluster)/[\w/]+\.py)::(test_\w+)`", table))
    sources = {file: (ROOT / "tests" / file).read_text(encoding="utf-8") for file, _ in named}
    there = {(file, test) for file, source in sources.items() for test in re.findall(r"^def (test_\w+)", source, re.M)}
    assert named - there == set()
    # Whoever adds one where somebody dies shows it there, too.
    deaths = {one for one in there if re.search("_(dies|die|died|stops|cancelled|aborted)_", f"{one[1]}_")}
    assert deaths - named == set()


def test_gpu_md_counts_the_cells_and_names_all_participants() -> None:
    cells = len(test_deaths.STATES) * len(test_deaths.PARTICIPANTS)
    text = (ROOT / "docs/gpu.md").read_text(encoding="utf-8")
    assert f"all of those who may die, {cells} cells" in text
    assert [name for name in test_deaths.PARTICIPANTS if f"\n| {name} | " not in text] == []
