"""Our token in a job's AdminComment: the node feature of the job's newest checkpoint.

The coordinator writes it, the requeue hook reads it. Everything else in the comment belongs to the site and is kept to
the byte. Only root and SlurmUser can write the field, so unlike the job's environment it can be trusted.
"""

from __future__ import annotations

import re

from slurmckpt.slurm.features import OWN_FEATURE, check_feature

_TOKEN = re.compile(rf"(?<!\S)slurmckpt:feature=({OWN_FEATURE.pattern})(?!\S)", re.ASCII)


def parse(comment: str) -> str | None:
    """The node feature recorded in the comment, None when there is none. The last one counts if there are several."""
    found = _TOKEN.findall(comment)
    return str(found[-1]) if found else None


def merge(comment: str, feature: str) -> str:
    """The comment with `feature` recorded: in the place of an earlier token, else after what stands there."""
    token = f"slurmckpt:feature={check_feature(feature)}"
    if _TOKEN.search(comment):
        return _TOKEN.sub(token, comment)
    return f"{comment} {token}" if comment else token
