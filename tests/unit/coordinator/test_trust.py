"""Which tasks may be wrapped, from /proc trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurmckpt.coordinator import trust
from slurmckpt.coordinator.trust import Unwrappable
from tests.unit.coordinator.parts import proc_tree

STATUS = "Name:\tslurmckpt-shim\nUid:\t1000\t1000\t1000\t1000\nGid:\t100\t100\t100\t100\nGroups:\t100 4 27 \n"


def tree(
    tmp_path: Path, status: str = STATUS, root: str | None = None, user: str = "user:[1]", own_user: str = "user:[1]"
) -> Path:
    (tmp_path / "root").mkdir()
    here = str(tmp_path / "root")
    return proc_tree(
        tmp_path / "proc",
        {"42/status": status},
        {"42/root": root or here, "self/root": here, "42/ns/user": user, "self/ns/user": own_user},
    )


def test_the_shims_groups(tmp_path: Path) -> None:
    assert trust.check(42, 1000, tree(tmp_path)) == [100, 4, 27]


def test_no_groups(tmp_path: Path) -> None:
    assert trust.check(42, 1000, tree(tmp_path, STATUS.replace("100 4 27 ", ""))) == []


def test_another_root_is_a_container(tmp_path: Path) -> None:
    with pytest.raises(Unwrappable, match="the task runs in a container, which this version does not support"):
        trust.check(42, 1000, tree(tmp_path, root="/"))


def test_another_user_namespace(tmp_path: Path) -> None:
    with pytest.raises(Unwrappable, match="the task runs in a user namespace of its own"):
        trust.check(42, 1000, tree(tmp_path, user="user:[2]"))


@pytest.mark.parametrize("ids", ["0\t0\t0\t0", "1000\t0\t1000\t1000", "1000\t1000\t0\t0", "1001\t1001\t1001\t1001"])
def test_another_user(tmp_path: Path, ids: str) -> None:
    status = STATUS.replace("1000\t1000\t1000\t1000", ids)
    with pytest.raises(Unwrappable) as raised:
        trust.check(42, 1000, tree(tmp_path, status))
    assert str(raised.value) == f"the task shim runs with user ids {ids.replace(chr(9), ' ')}, not as 1000"


def test_a_shim_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(Unwrappable, match="the task shim cannot be examined: No such file or directory"):
        trust.check(43, 1000, tree(tmp_path))


def test_a_shim_that_is_ending(tmp_path: Path) -> None:
    with pytest.raises(Unwrappable, match="the task shim is ending"):
        trust.check(42, 1000, tree(tmp_path, "Name:\tslurmckpt-shim\n"))


def test_this_very_process() -> None:
    if len({*os.getresuid()}) == 1:
        assert trust.check(os.getpid(), os.getuid()) == os.getgroups()
