"""`slurmckpt status`: text and JSON from a prepared store, which belongs to users and may hold anything."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from slurmckpt.cli import find, main, overview
from slurmckpt.config import Paths, Settings, Store
from slurmckpt.errors import SlurmError
from slurmckpt.identity import JobIdentity
from slurmckpt.slurm.port import JobLine
from slurmckpt.store import record
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.layout import JobStore
from slurmckpt.store.record import Attempt, CheckpointNote, Record, SkippedNote, StepNote

ME = pwd.getpwuid(os.getuid())
# 2026-11-29 12:00:00 UTC
NOON = 1_795_953_600.0


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


class Shop:
    """A store with jobs, and the command on it."""

    def __init__(self, top: Path) -> None:
        self.root = top / "store"
        self.run = top / "run"
        self.files = UserFiles.for_user(ME.pw_uid, ME.pw_gid, [ME.pw_gid])
        # What Slurm knows: tasks of arrays, and lines of squeue. None: it does not answer.
        self.tasks: list[tuple[int, int, int]] = []
        self.lines: list[JobLine] | None = []
        self.cluster = "linux"

    async def array(self, number: int) -> list[SimpleNamespace]:
        found = [
            SimpleNamespace(job_id=job_id, array_id=array_id, array_task=task)
            for job_id, array_id, task in self.tasks
            if number in (job_id, array_id)
        ]
        if not found:
            raise SlurmError(f"Slurm knows no job {number}")
        return found

    async def config(self) -> dict[str, str]:
        return {"ClusterName": self.cluster}

    async def job_lines(self) -> list[JobLine]:
        if self.lines is None:
            raise SlurmError("slurmctld does not answer")
        return self.lines

    def job(self, job_id: int, content: Record | None, user: str = ME.pw_name) -> JobStore:
        store = JobStore(self.root, JobIdentity("linux", user, ME.pw_uid, ME.pw_gid, job_id))
        asyncio.run(store.prepare(self.files))
        if content is not None:
            asyncio.run(record.save(store, self.files, content))
        return store

    def status(self, *arguments: str) -> Result:
        # What is shown does not depend on the terminal.
        return CliRunner().invoke(main, ["status", *arguments], env={"COLUMNS": "20"})


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    found = Shop(tmp_path)
    settings = Settings(store=Store(path=found.root), paths=Paths(run=found.run))
    monkeypatch.setattr("slurmckpt.config.load", lambda: settings)
    monkeypatch.setattr(find, "select", lambda: found)
    monkeypatch.setattr(overview, "select", lambda: found)
    yield found
    found.files.close()


def two_attempts(job_id: int = 7) -> Record:
    found = Record(job_id, ME.pw_name, "linux", name="train", interval="600s")
    found.attempts = [
        Attempt(1, "n1", NOON, NOON + 60, "NODE_FAIL", steps=[StepNote("batch", 1, "ended", 9)]),
        Attempt(
            2,
            "n2",
            NOON + 100,
            restored_from=2,
            restored_seconds=0.14,
            lost_seconds=12.0,
            refused=["#3: changed"],
            steps=[StepNote("batch", 1, "running"), StepNote("0", 4, "ended", 256)],
        ),
    ]
    found.checkpoints = [
        CheckpointNote(1, 1, NOON + 20, 436_000_000, 40_000_000, 0.28, 1.0, 2.0, ["batch"], "n1"),
        CheckpointNote(2, 1, NOON + 48, 437_000_000, 41_000_000, 0.3, 1.0, 2.0, ["batch"], "n1"),
    ]
    found.add_event(NOON + 50, "checkpoint skipped: output did not settle")
    return found


def test_a_job(shop: Shop) -> None:
    store = shop.job(7, two_attempts())
    (store.dir / "2").mkdir()
    done = shop.status("7")
    assert done.exit_code == 0
    lines = [line.rstrip() for line in done.output.splitlines() if line.strip(" ─")]
    assert lines == [
        f"job 7 of {ME.pw_name} on cluster linux (train), a checkpoint every 10m",
        "attempt 1 on n1, 11-29 12:00:00 to 11-29 12:01:00: NODE_FAIL",
        "  from the beginning",
        "  batch: ended (signal 9)",
        "attempt 2 on n2, since 11-29 12:01:40",
        "  restored from #2 in 0.14 s, 12 s of work repeated",
        "  refused #3: changed",
        "  batch: running, 0: ended (1)",
        "checkpoint  taken           node  steps  size    stored  frozen  kept",
        "#1          11-29 12:00:20  n1    batch  436 MB  40 MB   0.28 s  no",
        "#2          11-29 12:00:48  n1    batch  437 MB  41 MB   0.30 s  yes",
        "11-29 12:00:50  checkpoint skipped: output did not settle",
    ]


@pytest.mark.parametrize(
    ("interval", "shown"),
    [
        ("5400s", ", a checkpoint every 1h 30m"),
        ("5402s", ", a checkpoint every 1h 30m 02s"),
        ("8s", ", a checkpoint every 8 s"),
        ("20s", ", a checkpoint every 20 s"),
        ("500d", ", a checkpoint every 500d"),
        ("auto", ", a checkpoint as often as pays (auto)"),
        ("infinite", ", checkpoints only on request"),
        ("off", ", no checkpoints"),
        ("5 parsecs", ", 5 parsecs"),
        ("", ""),
    ],
)
def test_how_often_it_is_checkpointed(shop: Shop, interval: str, shown: str) -> None:
    shop.job(7, Record(7, ME.pw_name, "linux", interval=interval))
    assert shop.status("7").output.splitlines()[0] == f"job 7 of {ME.pw_name} on cluster linux{shown}"


def test_many_checkpoints_are_shown_as_far_as_they_matter(shop: Shop) -> None:
    """The last ten, and those which are kept, were they never so old."""
    found = two_attempts()
    found.checkpoints = [CheckpointNote(number, 1, NOON, 1, 1, 0, 0, 0, [], "n1") for number in range(1, 41)]
    store = shop.job(7, found)
    for kept in (7, 40):
        (store.dir / str(kept)).mkdir()
    lines = shop.status("7").output.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("#")] == [f"#{each}" for each in (7, *range(31, 41))]
    assert "and 29 before them, which are not kept (--json has them)" in lines


def test_numbers_that_began_anew(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A completed job whose checkpoints were removed was requeued: its second #1 is kept, not the first."""
    monkeypatch.setattr(os, "getuid", lambda: 0)
    found = two_attempts()
    found.checkpoints.append(CheckpointNote(1, 2, NOON + 99, 437_000_000, 7_000_000, 0.3, 1.0, 2.0, ["batch"], "n2"))
    store = shop.job(7, found)
    (store.dir / "1").mkdir()
    lines = [line.split() for line in shop.status("7").output.splitlines() if line.startswith("#")]
    assert [(line[0], line[-1]) for line in lines] == [("#1", "no"), ("#2", "no"), ("#1", "yes")]
    document = json.loads(shop.status("7", "--json").output)
    assert [note["kept"] for note in document["checkpoints"]] == [False, False, True]
    assert " 7.0 MB " in shop.status().output


def test_an_attempt_whose_end_nobody_saw(shop: Shop) -> None:
    shop.job(7, Record(7, ME.pw_name, "linux", [Attempt(1, "n1", NOON, outcome="lost")]))
    assert "attempt 1 on n1, 11-29 12:00:00 to an unknown time: lost" in shop.status("7").output.splitlines()


def test_json(shop: Shop) -> None:
    store = shop.job(7, two_attempts())
    (store.dir / "2").mkdir()
    document = json.loads(shop.status("7", "--json").output)
    assert (document["job_id"], document["cluster"], document["coordinator"]) == (7, "linux", None)
    assert [attempt["restored_from"] for attempt in document["attempts"]] == [None, 2]
    assert document["attempts"][1]["lost_seconds"] == 12.0
    assert document["attempts"][0]["steps"] == [{"step": "batch", "ntasks": 1, "state": "ended", "status": 9}]
    assert [(note["seq"], note["kept"]) for note in document["checkpoints"]] == [(1, False), (2, True)]
    assert document["events"] == [{"time": NOON + 50, "text": "checkpoint skipped: output did not settle"}]


def test_all_jobs(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    shop.job(12, None)
    named = two_attempts()
    named.name = "training-with-a-very-long-name"
    store = shop.job(7, named)
    (store.dir / "2").mkdir()
    cold = Record(100, ME.pw_name, "linux", name="sweep", array="98_3")
    cold.attempts = [Attempt(1, "n1", NOON), Attempt(2, "n3", NOON, NOON, "FAILED", cold_start="none had been taken")]
    shop.job(100, cold)
    shop.lines = [JobLine(7, "", "RUNNING", "x"), JobLine(8, "", "PENDING", "y")]
    done = shop.status()
    lines = [" ".join(line.split()) for line in done.output.splitlines() if line.strip(" ─")]
    assert lines == [
        "job user name state node attempt kept stored last",
        f"7 {ME.pw_name} training-with-a… RUNNING n2 2 from #2 1 41 MB 11-29 12:00",
        f"12 {ME.pw_name} - - - - 0 - -",
        f"98_3 {ME.pw_name} sweep FAILED n3 2 cold 0 - -",
    ]
    documents = json.loads(shop.status("--json").output)
    assert [(each["job_id"], each["state"]) for each in documents] == [(7, "RUNNING"), (12, "-"), (100, "FAILED")]


def test_a_job_of_another_cluster_has_no_state_here(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number is that of another job here."""
    monkeypatch.setattr(os, "getuid", lambda: 0)
    shop.job(7, two_attempts())
    shop.lines = [JobLine(7, "", "PENDING", "x")]
    assert " PENDING " in shop.status().output
    shop.cluster = "other"
    assert "PENDING" not in shop.status().output


def test_all_jobs_of_a_user_fit_a_terminal(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: ME)
    found = two_attempts(4294967294)
    found.name = "training-with-a-very-long-name"
    (shop.job(4294967294, found).dir / "2").mkdir()
    shop.lines = None
    lines = shop.status().output.rstrip().splitlines()
    assert lines[0].split() == ["job", "name", "state", "node", "attempt", "kept", "stored", "last"]
    assert max(map(len, lines)) <= 80


def test_the_tasks_of_an_array_stand_one_after_the_other(shop: Shop) -> None:
    """The last of them has the array's own number."""
    for job_id, array in ((7, "7_10"), (8, "7_1"), (9, "7_2"), (6, ""), (10, "7_x"), (11, "")):
        shop.job(job_id, Record(job_id, ME.pw_name, "linux", array=array))
    lines = shop.status().output.splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["6", "7_1", "7_2", "7_10", "7_x", "11"]


@pytest.mark.parametrize(("uid", "whose"), [(0, "no job"), (12345, "no job of yours")])
def test_no_jobs_yet(shop: Shop, monkeypatch: pytest.MonkeyPatch, uid: int, whose: str) -> None:
    monkeypatch.setattr(os, "getuid", lambda: uid)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: ME)
    assert shop.status().output == f"{whose} has had checkpoints in {shop.root} yet\n"
    assert json.loads(shop.status("--json").output) == []


def test_tasks_of_an_array(shop: Shop) -> None:
    """By what Slurm says, and once it has forgotten them, by what the records say."""
    for job_id, task in ((7, 3), (9, 1), (10, 2)):
        shop.job(job_id, Record(job_id, ME.pw_name, "linux", array=f"7_{task}"))
    shop.job(71, Record(71, ME.pw_name, "linux", array="71_1"))
    for tasks in ([(7, 7, 3), (9, 7, 1), (10, 7, 2)], []):
        shop.tasks = tasks
        for name, shown in {"7": ["7_3 (7)", "7_1 (9)", "7_2 (10)"], "7_1": ["7_1 (9)"], "9": ["7_1 (9)"]}.items():
            lines = [line for line in shop.status(name).output.splitlines() if line.startswith("job")]
            assert lines == [f"job {each} of {ME.pw_name} on cluster linux" for each in shown]
        assert "no record of job 7_4 in" in shop.status("7_4").output
        assert [each["array"] for each in json.loads(shop.status("7", "--json").output)] == ["7_3", "7_1", "7_2"]
        assert json.loads(shop.status("7_1", "--json").output)["array"] == "7_1"


def test_a_task_that_slurm_has_forgotten_while_it_knows_others(shop: Shop) -> None:
    shop.job(9, Record(9, ME.pw_name, "linux", array="7_1"))
    shop.tasks = [(7, 7, 3)]
    assert "job 7_1 (9) of" in shop.status("7_1").output


def test_a_job_without_checkpoint_yet(shop: Shop) -> None:
    shop.job(7, Record(7, ME.pw_name, "linux", [Attempt(1, "n1", NOON)]))
    assert "no checkpoint yet" in shop.status("7").output


def test_a_job_that_ended_without_one(shop: Shop) -> None:
    shop.job(7, Record(7, ME.pw_name, "linux", [Attempt(1, "n1", NOON, NOON + 1, "COMPLETED")]))
    assert "no checkpoint was taken" in shop.status("7").output


def test_checkpoints_that_are_gone(shop: Shop) -> None:
    found = two_attempts()
    found.removed = "by slurmckpt prune: it has ended (CANCELLED)"
    shop.job(7, found)
    assert "the checkpoints were removed by slurmckpt prune: it has ended (CANCELLED)" in shop.status("7").output
    # Of one that never had any, the record says so, too.
    shop.job(8, Record(8, ME.pw_name, "linux", removed="when it had ended (COMPLETED)"))
    assert "removed" not in shop.status("8").output


def test_another_store(shop: Shop, tmp_path: Path) -> None:
    shop.job(7, two_attempts())
    os.rename(shop.root, tmp_path / "own")
    assert shop.status("7").exit_code == 1
    assert shop.status("7", "--checkpoint-dir", str(tmp_path / "own")).exit_code == 0
    # A store that is not there is not one without jobs.
    assert "'nowhere' does not exist" in shop.status("--checkpoint-dir", "nowhere").output


def test_an_unknown_job(shop: Shop) -> None:
    done = shop.status("8")
    assert done.exit_code == 1
    assert done.output == (
        f"Error: no record of job 8 in {shop.root} that you may read: it has not started yet, or runs without"
        " checkpoints (where it asked for them, its output says why), or has another --checkpoint-dir\n"
    )


@pytest.mark.parametrize("job", ["0", "-1", "x", "4294967295", "7_", "7_x"])
def test_what_is_no_job(shop: Shop, job: str) -> None:
    assert shop.status("--", job).exit_code == 2


@pytest.mark.parametrize("content", ["", "[]", "{", '{"attempts": 7}', "\x00" * 100])
def test_a_record_that_makes_no_sense_is_an_empty_one(shop: Shop, content: str) -> None:
    store = shop.job(7, None)
    store.record.write_text(content)
    done = shop.status("7")
    assert done.exit_code == 0 and "no checkpoint yet" in done.output


def test_what_users_write_there_is_shown_and_not_obeyed(shop: Shop) -> None:
    hostile = "[link=http://evil]x[/link] :smile: [bold]\x1b[2J\nforged"
    found = Record(7, ME.pw_name, "linux", name=hostile, interval=hostile, removed=hostile)
    found.attempts = [
        Attempt(
            1,
            hostile,
            NOON,
            NOON,
            outcome=hostile,
            cold_start=hostile,
            steps=[StepNote(hostile, 1, hostile, -1)],
        )
    ]
    found.checkpoints = [CheckpointNote(1, 1, NOON, -1, 0, -1.0, 0, 0, [hostile], hostile)]
    found.add_event(NOON, hostile)
    shop.job(7, found)
    done = shop.status("7")
    assert done.exit_code == 0
    # Markup is text, as are names of pictures, escape sequences and newlines.
    assert done.output.count(r"[link=http://evil]x[/link] :smile: [bold]\x1b[2J\nforged") == 11
    assert "\x1b" not in done.output
    assert not any(line.startswith("forged") for line in done.output.splitlines())


def test_times_beyond_all_calendars(shop: Shop) -> None:
    store = shop.job(7, None)
    huge = {"epoch": 1, "started": 9e18, "ended": -9e18, "node": "n1"}
    store.record.write_text(json.dumps({"attempts": [huge], "events": [{"time": 9e17, "text": "late"}]}))
    done = shop.status("7")
    assert done.exit_code == 0
    assert "?  late" in done.output


def test_only_directories_that_are_jobs_count(shop: Shop) -> None:
    store = shop.job(7, two_attempts())
    (store.dir.parent / "8").write_text("a file")
    (store.dir.parent / "7.deleted").mkdir()
    (store.dir.parent / "0").mkdir()
    (store.dir.parent.parent / ".hidden" / "9").mkdir(parents=True)
    assert [document["job_id"] for document in json.loads(shop.status("--json").output)] == [7]


def coordinator(shop: Shop, answer: dict[str, Any]) -> threading.Thread:
    (shop.run / "7").mkdir(parents=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(shop.run / "7" / "control.sock"))
    listener.listen()

    def serve() -> None:
        with listener:
            connection, _ = listener.accept()
            with connection:
                assert json.loads(connection.makefile().readline()) == {"verb": "status"}
                connection.sendall(json.dumps(answer).encode() + b"\n")

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_the_ranks_of_its_gate(shop: Shop) -> None:
    rank = {"step": "0", "communicator": "00ab", "ranks": 2, "rank": 1, "pid": 104, "state": "held", "operations": 7}
    rank |= {"missing": 0, "last": "AllReduce", "elements": 1024}
    # Whoever is waited for is among those that are shown, and a communicator is as the last line calls it.
    late = rank | {"communicator": "47ea24a0d35627df", "missing": 2}
    ranks, told = [rank] * 69 + [late], "rank 1 (pid 104) is at 7 of 9 in communicator 47ea24a0d35627df"
    answer = {"node": "n2", "interval": "600s", "ranks": ranks, "waits_for": [told]}
    shop.job(7, two_attempts())
    thread = coordinator(shop, answer)
    done = shop.status("7")
    thread.join()
    assert "1 of 2" in done.output and "7 (2 behind)" in done.output and "AllReduce of 1024" in done.output
    assert "and 6 more" in done.output
    assert f"waited for at this moment: {told}" in done.output
    assert done.output.count("47ea24a0d35627df") == 2


def test_a_user_id_without_account(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def getpwuid(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(os, "getuid", lambda: 4711)
    monkeypatch.setattr(pwd, "getpwuid", getpwuid)
    done = shop.status()
    assert (done.exit_code, done.output) == (1, "Error: user id 4711 has no account on this host; name the job\n")


@pytest.mark.parametrize(
    ("times", "line"),
    [
        (1, "the last checkpoint was skipped at 11-29 12:10:00: process 101 uses io_uring"),
        (
            7,
            "checkpoints are skipped since 11-29 12:00:00, 7 by now, the last at 11-29 12:10:00:"
            " process 101 uses io_uring",
        ),
    ],
)
def test_why_there_are_no_checkpoints_now(shop: Shop, times: int, line: str) -> None:
    note = SkippedNote("process 101 uses io_uring", NOON, NOON + 600, times)
    shop.job(4711, Record(4711, ME.pw_name, "linux", [Attempt(1, "n1", NOON)], skipped=note))
    assert line in shop.status("4711").output.splitlines()
    assert json.loads(shop.status("4711", "--json").output)["skipped"]["times"] == times
