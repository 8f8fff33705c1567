"""Faults are injected only where root has ordered them, and only at places that the package names."""

from __future__ import annotations

import ast
import errno
import os
from collections import Counter
from pathlib import Path

import pytest

from slurmckpt import faults
from slurmckpt.errors import SlurmckptError

SOURCES = Path(faults.__file__).parent

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root's orders are heeded")


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for orders in the place of the real one."""
    directory = tmp_path / "faults"
    directory.mkdir(mode=0o755)
    monkeypatch.setattr(faults, "DIRECTORY", directory)
    monkeypatch.setattr(faults, "_fired", Counter())
    monkeypatch.setattr(faults, "_JOB", "7")
    return directory


def places_in(path: Path) -> list[str]:
    """The names in faults.at("...") of a module."""
    return [
        node.args[0].value
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "faults.at"
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
    ]


def test_every_place_is_named_and_every_name_is_a_place() -> None:
    found = [place for path in SOURCES.rglob("*.py") if path.name != "faults.py" for place in places_in(path)]
    assert sorted(found) == sorted(faults.PLACES)


def test_nothing_happens_without_an_order(orders: Path) -> None:
    faults.at("commit.rename")
    orders.rmdir()
    faults.at("commit.rename")


@needs_root
def test_errors(orders: Path) -> None:
    (orders / "commit.rename.7").write_text("raise\n")
    with pytest.raises(faults.Injected, match=r"commit\.rename"):
        faults.at("commit.rename")
    (orders / "commit.rename.7").write_text("error\n")
    with pytest.raises(SlurmckptError, match=r"commit\.rename"):
        faults.at("commit.rename")
    (orders / "commit.rename.7").write_text("ENOSPC\n")
    with pytest.raises(OSError) as caught:
        faults.at("commit.rename")
    assert caught.value.errno == errno.ENOSPC
    faults.at("commit.copy")
    (orders / "commit.copy.8").write_text("raise\n")
    faults.at("commit.copy")


@needs_root
def test_an_order_with_a_number_is_obeyed_that_often(orders: Path) -> None:
    (orders / "commit.copy.7").write_text("error 2\n")
    for _ in range(2):
        with pytest.raises(SlurmckptError):
            faults.at("commit.copy")
    faults.at("commit.copy")


@needs_root
def test_a_command(orders: Path, tmp_path: Path) -> None:
    (orders / "commit.copy.7").write_text(f"sh\necho done >{tmp_path}/mark\n")
    faults.at("commit.copy")
    assert (tmp_path / "mark").read_text() == "done\n"


@needs_root
@pytest.mark.parametrize("kind", ["file of a user", "file for all", "directory of a user", "directory for all", "link"])
def test_what_a_user_may_have_written_is_not_heeded(orders: Path, tmp_path: Path, kind: str) -> None:
    order = orders / "commit.copy.7"
    order.write_text("raise\n")
    if kind == "link":
        order.rename(tmp_path / "order")
        order.symlink_to(tmp_path / "order")
    elif kind.endswith("of a user"):
        os.chown(order if kind.startswith("file") else orders, 1000, 1000)
    else:
        (order if kind.startswith("file") else orders).chmod(0o777)
    faults.at("commit.copy")
