"""Reads of /proc while processes end."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from slurmckpt.capture import procfs


def answers(*codes: int) -> Callable[..., str]:
    """A call that fails with each of these in turn."""
    left = list(codes)

    def call(path: str, **_: object) -> str:
        code = left.pop(0)
        raise OSError(code, os.strerror(code), path)

    return call


@pytest.mark.parametrize(("call", "name"), [(procfs.link, "readlink"), (procfs.status, "stat")])
def test_a_link_of_a_process_that_ends_just_then_is_gone(
    call: Callable[[str], object], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel looks the name up, then the process, and forbids what it does not find any more."""
    monkeypatch.setattr(os, name, answers(errno.EACCES, errno.ENOENT))
    assert call("/proc/4242/ns/pid") is None


@pytest.mark.parametrize(("call", "name"), [(procfs.link, "readlink"), (procfs.status, "stat")])
def test_what_stays_forbidden_is_an_error(
    call: Callable[[str], object], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, name, answers(errno.EACCES, errno.EACCES))
    with pytest.raises(PermissionError):
        call("/proc/4242/ns/pid")


def test_names_relative_to_a_directory() -> None:
    with procfs.opened(f"{procfs.PROC}/self/fd") as directory:
        assert directory is not None
        assert str(directory) in procfs.names(directory)
        assert procfs.link(str(directory), directory) == f"/proc/{os.getpid()}/fd"
        link = procfs.status(str(directory), directory, follow=False)
        assert link is not None and os.path.islink(f"/proc/self/fd/{directory}")
    with procfs.opened(f"{procfs.PROC}/{2**22 + 1}/fd") as gone:
        assert gone is None
