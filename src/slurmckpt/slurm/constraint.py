"""Adding a node feature to a user's constraint, and taking it out again to the byte.

Slurm parses a constraint strictly from left to right: `a|b&c` is (a or b) and c; parentheses do not nest; one pair of
brackets is allowed and means a choice that must be the same on all nodes (sbatch(1), --constraint; the parser is
_feature_string2list() in src/slurmctld/job_scheduler.c, the evaluation valid_feature_counts() in node_scheduler.c).
Our feature is always written in parentheses of its own, `(slurmckpt-0123456789ab)`. Nobody writes that by hand, so it
can be told from the same feature asked for by the user.

| the user's constraint              | with the feature F                         |
|------------------------------------|--------------------------------------------|
| none                               | (F)                                        |
| `a`, `a&b`, `(a|b)&c`              | the same, then `&(F)`                      |
| `a|b`, `a&b|c`                     | `(F)&(a|b)`                                |
| `a|(b&c)`                          | `a|(b&c)&(F)`; none with changeable features |
| `[a|b]`, `c&[a|b]`, `[a|b]&c`      | `(F)&` before the bracket                  |
| `a*2`, `[a*2&b*1]`                 | none: with counts Slurm asks nothing of the nodes beyond those counted |

Changeable features (NodeFeaturesPlugins) make Slurm give `&` precedence over `|` instead (sbatch(1), "OR").
"""

from __future__ import annotations

import re
from collections.abc import Collection

from slurmckpt.slurm.features import OWN_FEATURE, check_feature

_MARK = rf"\({OWN_FEATURE.pattern}\)"
_WRAPPED = re.compile(rf"{_MARK}&\(([^()\[\]]*\|[^()\[\]]*)\)", re.ASCII)
_PARENTHESES = re.compile(r"\([^()]*\)")
_TOKEN = re.compile(r"\*\d+|[&|,()\[\]]|[^&|,()\[\]*]+")


class NoExactConstraintError(ValueError):
    """Slurm's language has no constraint that means what the user asked for and the feature. str() says why."""


def combine(own: str, feature: str, changeable: bool = False) -> str:
    """The constraint that holds exactly on the nodes that satisfy `own` and have `feature`.

    own: the user's constraint, "" for none. changeable: whether the cluster has node features plugins.
    Raises NoExactConstraintError when there is no such constraint.
    """
    mark = f"({check_feature(feature)})"
    if not own:
        return mark
    if "*" in own:
        raise NoExactConstraintError(f"the constraint '{own}' counts nodes")
    if "[" in own:
        return _before_bracket(own, mark, changeable)
    if "|" not in own:
        return f"{own}&{mark}"
    if "(" not in own:
        return f"{mark}&({own})"
    if changeable and "|" in _PARENTHESES.sub("", own):
        raise NoExactConstraintError(
            f"the constraint '{own}' has '|' beside parentheses, which means something else with changeable features"
        )
    return f"{own}&{mark}"


def own_part(constraint: str) -> str:
    """The user's own constraint: `constraint` without what combine() added, as it is when nothing was added."""
    if re.fullmatch(_MARK, constraint, re.ASCII):
        return ""
    if wrapped := _WRAPPED.fullmatch(constraint):
        return wrapped[1]
    without = re.sub(rf"&{_MARK}\Z", "", constraint, flags=re.ASCII)
    if without != constraint:
        return without
    return re.sub(rf"{_MARK}&(?=\[)", "", constraint, count=1, flags=re.ASCII)


def allows(constraint: str, features: Collection[str]) -> bool:
    """Whether a node with these features can be one of the job's nodes, from left to right as Slurm does it.

    In brackets every part is a choice, so one that fits is enough; counts are not looked at.
    """
    outer: list[tuple[bool, str, bool]] = []
    result, operator, choice = True, "&", False
    for token in _TOKEN.findall(constraint):
        if token in ("&", "|", ","):
            operator = token
        elif token in ("(", "["):
            outer.append((result, operator, choice))
            choice = token == "["
            result, operator = not choice, "&"
        elif token in (")", "]"):
            inner = result
            if outer:
                result, operator, choice = outer.pop()
            result = _apply(result, operator, choice, inner)
        elif not token.startswith("*"):
            result = _apply(result, operator, choice, token in features)
    return result


def _apply(left: bool, operator: str, choice: bool, right: bool) -> bool:
    return left or right if choice or operator == "|" else left and right


def _before_bracket(own: str, mark: str, changeable: bool) -> str:
    before, _, rest = own.partition("[")
    after = rest.partition("]")[2]
    # From left to right `a|b&(F)&[...]` is right, but `a|(F)&[...]` and `(F)&[...]|a` are not.
    if (before and not before.endswith("&")) or "|" in after or (changeable and "|" in before):
        raise NoExactConstraintError(f"the constraint '{own}' has '|' beside brackets")
    return f"{before}{mark}&[{rest}"
