"""Files that belong to others: the journals and logs of a database, at the boundary and afterwards."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from slurmckpt.errors import SlurmckptError
from slurmckpt.store.identity import UserFiles
from tests.unit.coordinator.files.filejob import ME, Job, policies


@pytest.fixture
def job(home: Path, tmp_path: Path, user_files: UserFiles) -> Job:
    return Job(home, tmp_path / "staging", user_files)


def database(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"pragma journal_mode={mode}")
    connection.execute("create table rows (number integer)")
    connection.execute("insert into rows values (1)")
    return connection


def rows(path: Path) -> list[int]:
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
        return [number for (number,) in connection.execute("select number from rows order by number")]
    finally:
        connection.close()


def owned(paths: Sequence[Path]) -> None:
    for path in paths:
        os.chown(path, *ME)


def test_the_journal_of_a_later_transaction_goes(job: Job) -> None:
    """It would be rolled back, into a database that never had that transaction."""
    path = job.home / "run.db"
    connection = database(path, "delete")
    owned([path])
    job.opens(path)
    saved = job.save()
    assert saved.absent == [f"{path}{suffix}" for suffix in ("-journal", "-wal", "-shm")]
    # A crash in the middle of the next transaction: its journal stays.
    connection.execute("pragma cache_size=1")
    connection.execute("begin")
    for number in range(2, 3000):
        connection.execute("insert into rows values (?)", (number,))
    later = {each.name: each.read_bytes() for each in job.home.iterdir()}
    connection.close()
    for name, data in later.items():
        job.write(name, data)
    assert Path(f"{path}-journal").stat().st_size > 0
    job.bring_back()
    assert os.listdir(job.home) == ["run.db"]
    assert rows(path) == [1]


def test_a_log_that_was_written_back_and_removed_is_there_again(job: Job) -> None:
    path = job.home / "run.db"
    connection = database(path, "wal")
    names = [Path(f"{path}{suffix}") for suffix in ("", "-wal", "-shm")]
    owned(names)
    for name in names:
        job.opens(name)
    assert policies(job.save()) == {"run.db": "save", "run.db-wal": "save", "run.db-shm": "save"}
    assert job.saved.absent == [f"{path}-journal"]
    connection.execute("insert into rows values (2)")
    connection.close()
    assert os.listdir(job.home) == ["run.db"]
    job.bring_back()
    assert all(stat.S_ISREG(name.stat().st_mode) and name.stat().st_uid == ME[0] for name in names)
    assert rows(path) == [1]


def test_a_journal_that_nobody_has_open_and_that_is_too_large(job: Job) -> None:
    path = job.home / "run.db"
    connection = database(path, "persist")
    connection.close()
    owned([path])
    job.opens(path)
    journal = job.write("run.db-journal")
    os.truncate(journal, 1 << 40)
    with pytest.raises(SlurmckptError, match=r"/run.db-journal and what else is written in place is more than may be"):
        job.save()


def test_a_journal_that_nobody_has_open_is_saved_too(job: Job) -> None:
    path = job.home / "run.db"
    connection = database(path, "persist")
    journal = Path(f"{path}-journal")
    owned([path, journal])
    job.opens(path)
    before = journal.read_bytes()
    assert policies(job.save()) == {"run.db": "save", "run.db-journal": "save"}
    connection.execute("insert into rows values (2)")
    connection.close()
    journal.write_bytes(b"later")
    job.bring_back()
    assert journal.read_bytes() == before
    assert rows(path) == [1]
