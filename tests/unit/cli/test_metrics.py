"""`slurmckpt metrics`: what Prometheus gets, from records that users may have written."""

from __future__ import annotations

import asyncio
import os
import pwd
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slurmckpt.cli import find, main, overview
from slurmckpt.cli.metrics import Job, families
from slurmckpt.config import Settings, Store
from slurmckpt.errors import SlurmError
from slurmckpt.identity import JobIdentity
from slurmckpt.slurm.port import JobLine
from slurmckpt.store import record
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.layout import JobStore
from slurmckpt.store.record import Attempt, CheckpointNote, Record, SkippedNote

ME = pwd.getpwuid(os.getuid())


def note(seq: int, stored: int, time: float = 0.0) -> CheckpointNote:
    return CheckpointNote(seq, 1, time, 10 * stored, stored, 0.1, 1.0, 1.0, ["batch"], "n1")


def running(job_id: int, user: str = "jane") -> Record:
    found = Record(job_id, user, "c")
    found.attempts = [
        Attempt(1, "n1", 0.0),
        Attempt(2, "n2", 0.0, restored_from=1),
        Attempt(3, "n2", 0.0, cold_start="x"),
    ]
    found.checkpoints = [note(1, 100, 10.0), note(2, 200, 20.5), note(3, 400, 30.0)]
    return found


def test_what_jobs_amount_to() -> None:
    skipped = Record(9, "jane", "c", skipped=SkippedNote("io_uring", 0.0, 1.0, 2))
    jobs = [
        Job(running(7), "RUNNING", frozenset({1, 2})),
        Job(skipped, "RUNNING", frozenset()),
        # It waits, and skips nothing.
        Job(Record(10, "jane", "c", skipped=SkippedNote("io_uring", 0.0, 1.0, 2)), "PENDING", frozenset()),
        Job(Record(11, "joe", "c", checkpoints=[note(4, 5)]), "forgotten", frozenset({4})),
    ]
    jane, joe = ("user", "jane"), ("user", "joe")
    assert {family.name.removeprefix("slurmckpt_"): dict(family.values) for family in families(jobs)} == {
        "jobs": {
            (jane, ("state", "RUNNING")): 2,
            (jane, ("state", "PENDING")): 1,
            (joe, ("state", "forgotten")): 1,
        },
        "checkpoints": {(jane,): 2, (joe,): 1},
        "stored_bytes": {(jane,): 300, (joe,): 5},
        "jobs_skipping": {(jane,): 1},
        "attempts": {(jane, ("began", began)): 1 for began in ("afresh", "restored", "cold")},
        "last_checkpoint_timestamp_seconds": {(jane, ("job", "7")): 20.5},
    }


class Shop:
    def __init__(self, top: Path) -> None:
        self.root = top / "store"
        self.root.mkdir()
        self.known = True
        self.cluster = "linux"

    async def config(self) -> dict[str, str]:
        return {"ClusterName": self.cluster}

    async def job_lines(self) -> list[JobLine]:
        if not self.known:
            raise SlurmError("slurmctld does not answer")
        return [JobLine(7, "", "RUNNING", "x")]

    def job(self, content: Record) -> None:
        store = JobStore(self.root, JobIdentity("linux", ME.pw_name, ME.pw_uid, ME.pw_gid, content.job_id))
        with UserFiles.for_user(ME.pw_uid, ME.pw_gid, [ME.pw_gid]) as files:
            asyncio.run(store.prepare(files))
            asyncio.run(record.save(store, files, content))
        for seq in (1, 2):
            (store.dir / str(seq)).mkdir()

    def metrics(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, ["metrics", *arguments])


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    found = Shop(tmp_path)
    monkeypatch.setattr("slurmckpt.config.load", lambda: Settings(store=Store(path=found.root)))
    for module in (find, overview):
        monkeypatch.setattr(module, "select", lambda: found)
    return found


def values(text: str) -> dict[str, str]:
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


def test_for_prometheus(shop: Shop) -> None:
    shop.job(running(7))
    done = shop.metrics()
    assert done.exit_code == 0
    found = values(done.output)
    assert found[f'slurmckpt_jobs{{user="{ME.pw_name}",state="RUNNING"}}'] == "1"
    assert found[f'slurmckpt_stored_bytes{{user="{ME.pw_name}"}}'] == "300"
    assert found[f'slurmckpt_last_checkpoint_timestamp_seconds{{user="{ME.pw_name}",job="7"}}'] == "20.5"
    assert int(found["slurmckpt_store_size_bytes"]) >= int(found["slurmckpt_store_free_bytes"]) > 0
    # Each metric is introduced, once, before its numbers.
    names = [line.split()[2] for line in done.output.splitlines() if line.startswith("# TYPE ")]
    assert len(names) == len(set(names)) == 9
    assert [line.split("{")[0].split()[0] for line in done.output.splitlines() if not line.startswith("#")] == sorted(
        (re.split("[{ ]", line)[0] for line in done.output.splitlines() if not line.startswith("#")), key=names.index
    )


def test_what_slurm_does_not_know(shop: Shop) -> None:
    shop.job(running(7))
    shop.known = False
    found = values(shop.metrics().output)
    assert found[f'slurmckpt_jobs{{user="{ME.pw_name}",state="forgotten"}}'] == "1"
    assert not [name for name in found if name.startswith("slurmckpt_last_checkpoint")]


def test_jobs_of_another_cluster_are_not_counted(shop: Shop) -> None:
    shop.job(running(7))
    shop.cluster = "other"
    assert not [name for name in values(shop.metrics().output) if name.startswith("slurmckpt_jobs")]


def test_text_of_users_stays_in_its_label(shop: Shop) -> None:
    hostile = running(7)
    hostile.array = 'x"} 1\nslurmckpt_store_free_bytes 0 \\'
    shop.job(hostile)
    text = shop.metrics().output
    # What the record holds is one line already, so its own backslash is doubled.
    assert r'job="x\"} 1\\nslurmckpt_store_free_bytes 0 \\"} 20.5' in text
    assert not [line for line in text.splitlines() if line.startswith("slurmckpt_store_free_bytes 0")]


def test_into_a_file(shop: Shop, tmp_path: Path) -> None:
    shop.job(running(7))
    file = tmp_path / "slurmckpt.prom"
    for _ in range(2):
        done = shop.metrics("--output", str(file))
        assert (done.exit_code, done.output) == (0, "")
    assert "slurmckpt_jobs{" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o644
    assert sorted(path.name for path in tmp_path.iterdir()) == ["slurmckpt.prom", "store"]


def test_a_file_that_cannot_be_written(shop: Shop, tmp_path: Path) -> None:
    done = shop.metrics("--output", str(tmp_path / "nowhere" / "x.prom"))
    assert (done.exit_code, done.output) == (
        1,
        f"Error: {tmp_path}/nowhere/x.prom cannot be written: No such file or directory\n",
    )


def test_a_store_that_is_not_there(shop: Shop) -> None:
    shop.root.rmdir()
    done = shop.metrics()
    assert (done.exit_code, done.output) == (
        1,
        f"Error: store {shop.root} cannot be looked at: No such file or directory\n",
    )
