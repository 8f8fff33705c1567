"""docs/what-is-restored.md: every row says what becomes of the thing, and names a test that is there."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
DOCUMENT = TESTS.parent / "docs/what-is-restored.md"
BEGIN, END = "<!-- things: begin -->", "<!-- things: end -->"
HEADER = ["thing", "becomes", "how", "test"]
TEST = re.compile(r"`((?:unit|cluster)/[\w/]+\.py)::(test_\w+)`")


def tables() -> list[list[list[str]]]:
    """The tables between the markers, each as rows of cells."""
    text = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    blocks = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    return [[[cell.strip() for cell in line[1:-1].split("|")] for line in block.splitlines()] for block in blocks]


ROWS = [row for table in tables() for row in table[2:]]


@functools.cache
def functions(file: str) -> set[str]:
    """The tests of a file."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


def test_the_tables_have_their_columns() -> None:
    assert len(ROWS) > 20
    for table in tables():
        assert table[0] == HEADER and set("".join(table[1])) == {"-"}


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_row(row: list[str]) -> None:
    thing, becomes, how, shown = row
    assert thing and how
    assert becomes in ("restored", "closed", "refused")
    found = TEST.findall(shown)
    assert found and TEST.sub("", shown).strip(", ") == "", (
        f"the last column names tests, as `unit/x.py::test_y`: {shown}"
    )
    for file, name in found:
        assert (TESTS / file).is_file(), f"tests/{file} is not there"
        assert name in functions(file), f"tests/{file} has no {name}"


def test_things_are_named_once() -> None:
    things = [row[0] for row in ROWS]
    assert sorted(things) == sorted(set(things))
