"""Which job: names become directories, so they are checked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmckpt.identity import JobIdentity, check_name


def test_accepted() -> None:
    job = JobIdentity("cluster-1", "jane.doe@site", 1000, 100, 4711)
    assert (job.cluster, job.user, job.uid, job.gid, job.job_id) == ("cluster-1", "jane.doe@site", 1000, 100, 4711)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".hidden", "a/b", "/", "a\nb", "a\0b", "a\x1b[31m", " a", "a ", "x" * 256, "ü" * 128, "\udc80"],
)
def test_name_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"user .* is not accepted: 1 to 255 bytes, printable, no '/'") as caught:
        JobIdentity("cluster", name, 1000, 100, 1)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=r"cluster .* is not accepted"):
        JobIdentity(name, "user", 1000, 100, 1)


@pytest.mark.parametrize(
    ("uid", "gid", "job_id", "what"),
    [(-1, 0, 1, "uid"), (2**32 - 1, 0, 1, "uid"), (0, -1, 1, "gid"), (0, 0, 0, "job id"), (0, 0, 2**32 - 1, "job id")],
)
def test_number_refused(uid: int, gid: int, job_id: int, what: str) -> None:
    with pytest.raises(ValueError, match=f"^{what} .* is not accepted: a whole number from"):
        JobIdentity("cluster", "user", uid, gid, job_id)


@given(st.text())
def test_an_accepted_name_is_one_directory(name: str) -> None:
    try:
        check_name("user", name)
    except ValueError:
        return
    assert "/" not in name
    assert "\0" not in name
    assert name not in ("", ".", "..")
