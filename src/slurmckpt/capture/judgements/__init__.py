"""Judgements: what of an inspection cannot be captured, and the way out. One concern a module.

Each has `judge(seen)`, which gives a Reason for everything that speaks against a capture. They look at nothing but the
inspection's records, so that what they say can be tested without a kernel that has the thing; the list of them is in
`slurmckpt.capture.preflight`.
"""

from slurmckpt.errors import one_line

# The way out where there is no better one.
CLOSE = "close it before a checkpoint"
_SHOWN = 120


def shown(text: str) -> str:
    """A path or name that a user has chosen, for a sentence."""
    return one_line(text, _SHOWN)
