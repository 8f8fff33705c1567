"""`slurmckpt prune`: what goes, what stays, and that nothing goes while Slurm is silent."""

from __future__ import annotations

import asyncio
import os
import pwd
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slurmckpt.cli import main, prune
from slurmckpt.config import Settings, Store
from slurmckpt.errors import SlurmError
from slurmckpt.identity import JobIdentity
from slurmckpt.slurm.port import JobLine
from slurmckpt.store import record
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.layout import JobStore
from slurmckpt.store.record import Attempt, Record

ROOT = os.geteuid() == 0
ME = pwd.getpwnam("nobody") if ROOT else pwd.getpwuid(os.getuid())
DAY = 86400.0


class Shop:
    """A store of one user's jobs, and a controller."""

    def __init__(self, top: Path) -> None:
        self.root = top / "store"
        self.root.mkdir()
        self.root.chmod(0o1777)
        self.files = UserFiles.for_user(ME.pw_uid, ME.pw_gid, [ME.pw_gid])
        self.states: dict[int, str] | None = {}
        self.cluster = "linux"

    async def config(self) -> dict[str, str]:
        return {"ClusterName": self.cluster}

    async def job_lines(self) -> list[JobLine]:
        if self.states is None:
            raise SlurmError("slurmctld does not answer")
        return [JobLine(job_id, "", state, "x") for job_id, state in self.states.items()]

    def job(self, job_id: int, state: str | None, days: float = 0.0, seqs: tuple[int, ...] = (1, 2)) -> JobStore:
        """A job with these checkpoints, on which nothing has happened for so many days."""
        store = JobStore(self.root, JobIdentity("linux", ME.pw_name, ME.pw_uid, ME.pw_gid, job_id))
        asyncio.run(store.prepare(self.files))
        kept = Record(job_id, ME.pw_name, "linux", [Attempt(1, "n1", 1.0, 2.0, "FAILED")])
        asyncio.run(record.save(store, self.files, kept))
        for seq in seqs:
            self.files.run_sync((store.checkpoint(seq) / "batch").mkdir, 0o700, True)
        self.aged(store, days)
        if state is not None and self.states is not None:
            self.states[job_id] = state
        return store

    def aged(self, store: JobStore, days: float) -> None:
        then = time.time() - days * DAY
        self.files.run_sync(os.utime, store.dir, (then, then))

    def prune(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, ["prune", *arguments])


@pytest.fixture
def shop(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    found = Shop(home)
    monkeypatch.setattr("slurmckpt.config.load", lambda: Settings(store=Store(path=found.root)))
    monkeypatch.setattr(prune, "select", lambda: found)
    yield found
    found.files.close()


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED"])
def test_a_job_that_is_over_needs_none(shop: Shop, state: str) -> None:
    """It was cancelled while it waited after a requeue: nobody else was there to remove them."""
    store = shop.job(7, state)
    done = shop.prune()
    assert (done.exit_code, done.output) == (
        0,
        f"job 7 of {ME.pw_name}: 2 checkpoints removed: it has ended ({state})\n",
    )
    assert store.sequence_numbers() == []
    kept = record.read(store)
    assert kept.removed == f"by slurmckpt prune: it has ended ({state})"
    assert [attempt.outcome for attempt in kept.attempts] == ["FAILED"]
    assert shop.prune().output == f"nothing to remove: no job has checkpoints in {shop.root}\n"


@pytest.mark.parametrize(
    "state",
    ["RUNNING", "PENDING", "COMPLETING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "SUSPENDED", "SOMETHING_NEW"],
)
def test_a_job_that_may_need_them_keeps_them(shop: Shop, state: str) -> None:
    store = shop.job(7, state, days=400)
    done = shop.prune()
    assert (done.exit_code, done.output) == (
        0,
        f"nothing to remove: 1 job has checkpoints in {shop.root}, all still of use\n",
    )
    assert store.sequence_numbers() == [1, 2]


@pytest.mark.parametrize("state", ["FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "DEADLINE", None])
def test_what_could_be_requeued_keeps_them_for_some_days(shop: Shop, state: str | None) -> None:
    store = shop.job(7, state, days=6.9)
    assert shop.prune().output.startswith("nothing to remove: ")
    shop.aged(store, 7.1)
    why = f"it has ended ({state}), 7 days ago" if state else "Slurm does not know it, and nothing changed for 7 days"
    assert shop.prune().output == f"job 7 of {ME.pw_name}: 2 checkpoints removed: {why}\n"
    assert store.sequence_numbers() == []


def test_what_a_crash_left_goes_too(shop: Shop) -> None:
    store = shop.job(7, None, seqs=())
    shop.files.run_sync((store.partial(3) / "batch").mkdir, 0o700, True)
    shop.files.run_sync((store.deleted(4) / "batch").mkdir, 0o700, True)
    shop.aged(store, 8)
    done = shop.prune()
    assert "what was left of checkpoints removed" in done.output
    assert not store.partial(3).exists() and not store.deleted(4).exists()


def test_dry_run_and_quiet(shop: Shop) -> None:
    store = shop.job(7, "COMPLETED", seqs=(1,))
    done = shop.prune("--dry-run")
    assert done.output == f"job 7 of {ME.pw_name}: 1 checkpoint would be removed: it has ended (COMPLETED)\n"
    assert store.sequence_numbers() == [1] and record.read(store).removed is None
    assert shop.prune("--quiet").output == shop.prune("--quiet").output == ""
    assert store.sequence_numbers() == []


def test_nothing_goes_while_slurm_is_silent(shop: Shop) -> None:
    store = shop.job(7, None, days=400)
    shop.states = None
    done = shop.prune()
    assert (done.exit_code, done.output) == (1, "Error: slurmctld does not answer\n")
    shop.states, shop.cluster = {}, ""
    done = shop.prune()
    assert (done.exit_code, done.output) == (1, "Error: Slurm does not say the cluster's name\n")
    assert store.sequence_numbers() == [1, 2]


def test_another_cluster_in_the_same_store_is_not_ours(shop: Shop) -> None:
    store = shop.job(7, None, days=400)
    shop.cluster = "other"
    assert shop.prune().output.startswith("nothing to remove: ")
    assert store.sequence_numbers() == [1, 2]


def test_a_checkpoint_that_comes_after_the_look_stays(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job was requeued by hand at this very moment."""
    store = shop.job(7, "FAILED", days=8)

    async def job_lines() -> list[JobLine]:
        shop.files.run_sync(store.checkpoint(3).mkdir)
        shop.files.run_sync(store.partial(4).mkdir)
        return [JobLine(7, "", "FAILED", "x")]

    monkeypatch.setattr(shop, "job_lines", job_lines)
    assert shop.prune().exit_code == 0
    assert store.sequence_numbers() == [3]
    assert store.partial(4).exists()


def test_a_users_own_store(shop: Shop, home: Path) -> None:
    shop.job(7, "COMPLETED")
    os.rename(shop.root, home / "own")
    assert shop.prune().output.startswith("nothing to remove: ")
    assert "2 checkpoints removed" in shop.prune("--checkpoint-dir", str(home / "own")).output
    assert "does not exist" in shop.prune("--checkpoint-dir", str(home / "misspelt")).output


def test_what_the_user_planted_is_not_followed(shop: Shop, home: Path) -> None:
    victim = home / "victim"
    victim.mkdir()
    (victim / "1").mkdir()
    if ROOT:
        os.chown(victim, 0, 0)
    store = shop.job(7, "COMPLETED", seqs=(2,))
    user = store.dir.parent
    shop.files.run_sync((user / "8").symlink_to, victim)
    shop.files.run_sync(store.checkpoint(1).symlink_to, victim)
    shop.files.run_sync((store.checkpoint(2) / "link").symlink_to, victim)
    shop.files.run_sync((user / "notes").mkdir)
    shop.files.run_sync((user / "08").mkdir)
    assert shop.states is not None
    shop.states[8] = "COMPLETED"
    done = shop.prune()
    assert (done.exit_code, done.output.count("\n")) == (0, 1)
    assert (victim / "1").is_dir() and (user / "notes").is_dir() and (user / "08").is_dir()


@pytest.mark.skipif(not ROOT, reason="needs root: directories of others")
def test_a_directory_of_root_by_the_name_of_a_user(shop: Shop) -> None:
    """Only those of the user by its owner's rights: a name says nothing."""
    store = shop.job(7, "COMPLETED")
    squatted = store.dir.parent.parent / "jane"
    squatted.mkdir(mode=0o755)
    (squatted / "9" / "1").mkdir(parents=True)
    os.chown(squatted / "9", ME.pw_uid, ME.pw_gid)
    assert shop.states is not None
    shop.states[9] = "COMPLETED"
    assert shop.prune().exit_code == 0
    assert (squatted / "9" / "1").is_dir()
    assert store.sequence_numbers() == []


@pytest.mark.skipif(not ROOT, reason="needs root: directories of others")
def test_a_user_who_cannot_be_helped_costs_the_others_nothing(shop: Shop) -> None:
    store = shop.job(7, "COMPLETED")
    closed = store.dir.parent.parent / "aaa"
    closed.mkdir(mode=0o000)
    os.chown(closed, 47110, 47111)
    done = shop.prune()
    assert done.exit_code == 1
    assert "aaa cannot be read: Permission denied" in done.output
    assert store.sequence_numbers() == []
