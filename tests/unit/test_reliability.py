"""docs/reliability.md shows the faults that are tested, and every place at which one can be injected is among them."""

from __future__ import annotations

from pathlib import Path

from slurmckpt.faults import PLACES
from tests.cluster.faults import FAULTS, THOROUGH, with_table

DOCUMENT = Path(__file__).parents[2] / "docs/reliability.md"


def test_the_document_shows_the_table() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == with_table(text), "bring it up to date with: python -m tests.cluster.faults"


def test_names_are_unique() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names)
    assert set(names) >= THOROUGH


def test_every_place_has_a_row() -> None:
    assert {fault.place for fault in FAULTS} - {""} == PLACES.keys()
