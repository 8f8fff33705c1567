"""The mutants of tests/mutants can still be made. Whether a test notices them takes an hour: make mutants."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.catalogue import MUTANTS, Mutant

TREE = Path(__file__).parents[2]


def test_names_are_unique() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_what_it_replaces_is_there_once(mutant: Mutant) -> None:
    assert (TREE / mutant.file).read_text(encoding="utf-8").count(mutant.before) == 1
    assert mutant.before != mutant.after
    assert all((TREE / file).exists() for file in mutant.tests)
