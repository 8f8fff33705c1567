"""The token in a job's AdminComment, beside whatever the site keeps there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmckpt.slurm.admincomment import merge, parse

F = "slurmckpt-0123456789ab"
G = "slurmckpt-ffffffffffff"


def test_an_empty_comment() -> None:
    assert parse("") is None
    assert merge("", F) == f"slurmckpt:feature={F}"


def test_the_sites_text_is_kept() -> None:
    assert merge('project "x"; ok', F) == f'project "x"; ok slurmckpt:feature={F}'


def test_an_earlier_token_is_replaced_in_its_place() -> None:
    assert merge(f"before slurmckpt:feature={F} after", G) == f"before slurmckpt:feature={G} after"


@pytest.mark.parametrize(
    "text", [f"xslurmckpt:feature={F}", f"slurmckpt:feature={F}0", "slurmckpt:feature=", f"slurmckpt:feature={F},"]
)
def test_what_only_looks_like_a_token_is_the_sites(text: str) -> None:
    assert parse(text) is None
    assert merge(text, F) == f"{text} slurmckpt:feature={F}"


def test_only_our_features_are_recorded() -> None:
    with pytest.raises(ValueError, match="node feature"):
        merge("", "a b")


@given(text=st.text())
def test_what_is_merged_is_parsed(text: str) -> None:
    merged = merge(text, F)
    assert parse(merged) == F
    assert parse(merge(merged, G)) == G
    assert merge(merge(merged, G), F) == merged
    if parse(text) is None:
        assert merged == (f"{text} " if text else "") + f"slurmckpt:feature={F}"
