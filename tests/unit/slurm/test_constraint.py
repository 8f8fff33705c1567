"""Constraints: exact combination with a node feature, exact removal, and Slurm's left-to-right meaning."""

from __future__ import annotations

import re
from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmckpt.slurm.constraint import NoExactConstraintError, allows, combine, own_part

F = "slurmckpt-0123456789ab"
OTHER = "slurmckpt-ffffffffffff"
NODES = [frozenset(names) for names in chain.from_iterable(combinations(["a", "b", "c", F], size) for size in range(5))]


@pytest.mark.parametrize(
    ("own", "combined"),
    [
        ("", f"({F})"),
        ("a", f"a&({F})"),
        ("a&b", f"a&b&({F})"),
        ("(a&b)", f"(a&b)&({F})"),
        ("a|b", f"({F})&(a|b)"),
        ("a&b|c", f"({F})&(a&b|c)"),
        ("(a|b)", f"(a|b)&({F})"),
        ("(a|b)&c", f"(a|b)&c&({F})"),
        ("a|(b&c)", f"a|(b&c)&({F})"),
        ("[a|b]", f"({F})&[a|b]"),
        ("c&[a|b]", f"c&({F})&[a|b]"),
        ("a|b&[b|c]", f"a|b&({F})&[b|c]"),
        ("[a|b]&c", f"({F})&[a|b]&c"),
        ("[(a&c)|b]", f"({F})&[(a&c)|b]"),
        # the user's own wish for such a node is his
        (F, f"{F}&({F})"),
        (f"a|{F}", f"({F})&(a|{F})"),
    ],
)
def test_combination_and_its_inverse(own: str, combined: str) -> None:
    assert combine(own, F) == combined
    assert own_part(combined) == own


@pytest.mark.parametrize("own", ["a*4", "[a*2&b*1]", "[(a|b)*1&c*2]", "a|[b|c]", "[a|b]|c", "[a|b]&c|b"])
def test_no_exact_combination(own: str) -> None:
    with pytest.raises(NoExactConstraintError, match="the constraint"):
        combine(own, F)


@pytest.mark.parametrize("own", ["a|(b&c)", "(a|b)|c", "a|b&[b|c]"])
def test_no_exact_combination_where_and_binds_stronger(own: str) -> None:
    combine(own, F)
    with pytest.raises(NoExactConstraintError):
        combine(own, F, changeable=True)


@pytest.mark.parametrize("own", ["a", "a|b", "(a|b)&c", "(a|b)", "[a|b]"])
def test_combination_with_changeable_features(own: str) -> None:
    assert combine(own, F, changeable=True) == combine(own, F)


def test_only_our_form_is_a_feature() -> None:
    for feature in ("", "a", f"{F}0", f"{F}&b", "slurmckpt-0123456789AB", f"{F}\n"):
        with pytest.raises(ValueError, match="node feature"):
            combine("a", feature)


@pytest.mark.parametrize(
    "own",
    ["", "a", F, f"{F}&a", f"a&{F}", f"{F}&(a|b)", "(slurmckpt-1)", f"a&({F}|b)", f"({F})|a", f"a|({F})", f"({F})&a"],
)
def test_what_we_did_not_add_stays(own: str) -> None:
    assert own_part(own) == own


def test_a_new_feature_takes_the_place_of_an_earlier_one() -> None:
    for own in ("", "a", "a|b", "(a|b)", "[a|b]"):
        assert combine(own_part(combine(own, OTHER)), F) == combine(own, F)


NAME = st.sampled_from(["a", "b", "c", F])
OPERATOR = st.sampled_from(["&", "|"])


@st.composite
def chains(draw: st.DrawFn, part: st.SearchStrategy[str]) -> str:
    """Parts joined by operators, as in `a&(b|c)|a`."""
    text = draw(part)
    for _ in range(draw(st.integers(0, 3))):
        text += draw(OPERATOR) + draw(part)
    return text


GROUP = chains(NAME).map(lambda text: f"({text})")
PLAIN = chains(st.one_of(NAME, GROUP))


@st.composite
def bracketed(draw: st.DrawFn) -> str:
    before = draw(st.one_of(st.just(""), PLAIN.map(lambda text: f"{text}&")))
    choices = "|".join(draw(st.lists(st.one_of(NAME, GROUP), min_size=1, max_size=3)))
    after = draw(st.one_of(st.just(""), NAME.map(lambda name: f"&{name}")))
    return f"{before}[{choices}]{after}"


def _not_ours(text: str) -> bool:
    """A single feature of ours in parentheses is how we write it: nobody else does."""
    return f"({F})" not in text


@given(own=st.one_of(st.just(""), PLAIN, bracketed()).filter(_not_ours))
def test_combined_means_own_and_feature(own: str) -> None:
    combined = combine(own, F)
    for features in NODES:
        assert allows(combined, features) == (allows(own, features) and F in features), (combined, features)


def allows_with_precedence(constraint: str, features: frozenset[str]) -> bool:
    """What a constraint means with changeable features: `&` before `|`, as in Python."""
    text = re.sub(r"[^&|()]+", lambda match: str(match[0] in features), constraint)
    return bool(eval(text.replace("&", " and ").replace("|", " or ")))


@given(own=PLAIN.filter(_not_ours))
def test_combined_means_own_and_feature_where_and_binds_stronger(own: str) -> None:
    try:
        combined = combine(own, F, changeable=True)
    except NoExactConstraintError:
        return
    for features in NODES:
        wanted = allows_with_precedence(own, features) and F in features
        assert allows_with_precedence(combined, features) == wanted, (combined, features)


@given(own=st.one_of(st.just(""), PLAIN, bracketed()).filter(_not_ours), changeable=st.booleans())
def test_removal_is_the_inverse(own: str, changeable: bool) -> None:
    try:
        combined = combine(own, F, changeable)
    except NoExactConstraintError:
        return
    assert own_part(combined) == own


@given(text=st.text(alphabet="ab&|()[]*,19" + F[:10], max_size=20))
def test_any_text_can_be_looked_at(text: str) -> None:
    own_part(text)
    allows(text, {"a"})


# Slurm 26.05.5, nodes n1 to n8 with every subset of {a, b, F}: a node's number is 1 + a + 2 b + 4 F.
# Parentheses: sbatch --test-only -w NODE. Brackets: srun --immediate -w NODE (a test-only does not look into them).
MEASURED = {
    "a": "2468",
    f"a&({F})": "68",
    "a|b": "234678",
    f"({F})&(a|b)": "678",
    f"a|b&({F})": "678",
    "a&b|a": "2468",
    f"({F})&(a&b|a)": "68",
    "(a|b)&b": "3478",
    f"(a|b)&b&({F})": "78",
    "b|(a&b)": "3478",
    f"b|(a&b)&({F})": "78",
    "a|(b)": "234678",
    "[a|b]": "234678",
    f"({F})&[a|b]": "678",
    f"b&({F})&[a|b]": "78",
    f"({F})&[(a&b)|b]": "78",
}


@pytest.mark.parametrize(("constraint", "nodes"), MEASURED.items())
def test_allows_agrees_with_slurm(constraint: str, nodes: str) -> None:
    names = ("a", "b", F)
    subsets = {number: {name for bit, name in enumerate(names) if number - 1 >> bit & 1} for number in range(1, 9)}
    assert "".join(str(number) for number in subsets if allows(constraint, subsets[number])) == nodes
