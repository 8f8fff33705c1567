"""SLURM_* of another incarnation: a restored shell keeps the values of the node on which it was captured.

Its sruns must have those of the allocation that they run in now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

LAUNCH = b"SLURM_CKPT_LAUNCH"
_PREFIX = b"SLURM"


def slurm_variables(environment: Iterable[bytes]) -> dict[bytes, bytes]:
    """The variables that Slurm sets for a batch script, by name."""
    pairs = (entry.partition(b"=") for entry in environment if entry.startswith(_PREFIX))
    return {name: value for name, equals, value in pairs if equals and name != LAUNCH}


def translate(
    environment: Iterable[bytes], then: Mapping[bytes, bytes], now: Mapping[bytes, bytes], mark: int
) -> list[bytes]:
    """The environment of an srun in this incarnation. mark: of its steps (script/marks.py).

    then: what Slurm had set when the script began. now: what it has set for this incarnation. A variable that the
    script changed itself stays as it is.
    """
    kept, seen = [], set[bytes]()
    for entry in environment:
        name, _, value = entry.partition(b"=")
        seen.add(name)
        if name == LAUNCH:
            continue
        if name in then and then[name] == value and now.get(name) != value:
            if name in now:
                kept.append(name + b"=" + now[name])
        else:
            kept.append(entry)
    # What the first incarnation did not have, such as SLURM_RESTART_COUNT; what the script took away stays away.
    kept += [name + b"=" + value for name, value in now.items() if name not in then and name not in seen]
    return [*kept, LAUNCH + b"=%d" % mark]
