"""Which job: the text and numbers that name a job everywhere, checked once."""

from __future__ import annotations

from dataclasses import dataclass

_MAX_NAME = 255  # NAME_MAX of Linux file systems: each name is one directory of the store
_MAX_ID = 2**32 - 2  # uid_t, gid_t and Slurm's job id are 32 bits; the last value means "none"


@dataclass(frozen=True)
class JobIdentity:
    """One job of one user on one cluster.

    cluster: Slurm's ClusterName. user: login name. uid, gid: numeric ids of the job. job_id: Slurm's raw job id
    (one per array task, kept across requeues).
    Raises ValueError with one line when a name could not be one directory name, or a number is out of range.
    """

    cluster: str
    user: str
    uid: int
    gid: int
    job_id: int

    def __post_init__(self) -> None:
        check_name("cluster", self.cluster)
        check_name("user", self.user)
        _check_number("uid", self.uid, 0)
        _check_number("gid", self.gid, 0)
        _check_number("job id", self.job_id, 1)


def check_name(what: str, text: str) -> str:
    """`text`, when it can be used as one directory name; otherwise ValueError that says what is accepted."""
    if not (
        0 < len(text.encode("utf-8", "surrogateescape")) <= _MAX_NAME
        and "/" not in text
        and not text.startswith(".")
        and text.isprintable()
        and text == text.strip()
    ):
        raise ValueError(
            f"{what} {text[:80]!r} is not accepted: "
            f"1 to {_MAX_NAME} bytes, printable, no '/', no leading '.', no space around"
        )
    return text


def _check_number(what: str, value: int, lowest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= _MAX_ID:
        raise ValueError(f"{what} {value!r} is not accepted: a whole number from {lowest} to {_MAX_ID}")
