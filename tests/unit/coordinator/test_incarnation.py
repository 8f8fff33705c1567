"""Beginning an incarnation, with a real store."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slurmckpt.capture import criu
from slurmckpt.config import Paths, Restore, Settings, Staging, Store
from slurmckpt.coordinator import fence, node
from slurmckpt.coordinator.incarnation import Incarnation, begin
from slurmckpt.coordinator.rules import Pointless, Rules
from slurmckpt.coordinator.spec import JobSpec, Options
from slurmckpt.coordinator.waitingprolog import WaitingProlog
from slurmckpt.errors import SlurmckptError, StoreError
from slurmckpt.identity import JobIdentity
from slurmckpt.slurm.port import JobInfo
from slurmckpt.store.record import read
from tests.unit.store.world import World

ROOT = os.geteuid() == 0
JOB = JobInfo(7, "7", frozenset({"RUNNING"}), 1000, "", "", ("n1",), 1, "debug", 0, "", True)
# Of any system, and surely no owner of anything here.
USER = pwd.getpwnam("nobody") if ROOT else pwd.getpwuid(os.getuid())


class Site:
    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.top = top
        self.attempts = 3
        self.begun: list[Incarnation] = []
        # The prolog makes it before there is a coordinator.
        (top / "run" / "7").mkdir(parents=True)

        async def examine(settings: Settings) -> node.Node:
            return node.Node(criu.Installation("/criu", "4.2.1", False), b"k" * 16, {}, "slurmckpt-0123456789ab")

        monkeypatch.setattr(node, "examine", examine)

    def begin(
        self,
        node_count: int = 1,
        first_start: bool = False,
        job: JobInfo | None = None,
        restarts: int = 0,
        prolog: WaitingProlog | None = None,
        **options: object,
    ) -> Incarnation:
        settings = Settings(
            store=Store(path=self.top / "store"),
            staging=Staging(path=self.top / "staging"),
            paths=Paths(run=self.top / "run"),
            restore=Restore(attempts=self.attempts),
        )
        identity = JobIdentity("c", USER.pw_name, USER.pw_uid, USER.pw_gid, 7)
        chosen = Options(**options)  # type: ignore[arg-type]
        spec = JobSpec(identity, "n1", node_count, restarts, chosen, first_start=first_start)

        async def asking() -> Rules:
            return Rules(job)

        async def scene() -> Incarnation:
            return await begin(spec, settings, asyncio.ensure_future(asking()), prolog)

        begun = asyncio.run(scene())
        self.begun.append(begun)
        return begun

    def as_user(self, function: Callable[..., object], *arguments: object) -> None:
        self.begun[-1].files.run_sync(function, *arguments)


@pytest.fixture
def site(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    if ROOT:
        os.chown(home, 0, 0)
    home.chmod(0o755)
    found = Site(home, monkeypatch)
    yield found
    for begun in found.begun:
        begun.files.close()


def test_the_first_incarnation(site: Site) -> None:
    begun = site.begin()
    assert (begun.epoch, begun.plan, begun.cold_start) == (1, None, None)
    directory = site.top / "store" / "c" / USER.pw_name / "7"
    assert begun.store.dir == directory
    assert (directory.stat().st_uid, directory.stat().st_mode & 0o7777) == (USER.pw_uid, 0o700)
    assert begun.staging == site.top / "staging" / "7"
    assert begun.staging.stat().st_mode & 0o7777 == 0o700


def test_the_next_one_finds_no_checkpoint_and_says_so(site: Site) -> None:
    site.begin()
    begun = site.begin()
    assert (begun.epoch, begun.cold_start) == (2, "no checkpoint had been taken")


def test_what_was_removed_is_not_said_to_have_never_been(site: Site) -> None:
    begun = site.begin()
    asyncio.run(begun.journal.gone("when it had ended (COMPLETED)"))
    assert site.begin().cold_start == "its checkpoints were removed when it had ended (COMPLETED)"


def test_a_job_whose_earlier_runs_left_nothing_in_the_store_is_told(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory was removed, or --checkpoint-dir is another place on each node. Who ran before may still run."""
    waited: list[str] = []

    async def wait(job: JobIdentity, *_: float) -> None:
        waited.append(job.user)

    monkeypatch.setattr(fence, "wait_for_the_other", wait)
    begun = site.begin(restarts=3)
    assert (begun.epoch, waited) == (4, [USER.pw_name])
    assert begun.cold_start == (
        f"nothing of the job's earlier runs is in the store: {begun.store.dir} was removed, is not shared by all "
        "nodes, or they never began, or ran without checkpoints"
    )
    assert site.begin(restarts=4).cold_start == "no checkpoint had been taken"


def test_a_new_job_with_the_number_of_an_old_one_gets_nothing_of_it(site: Site) -> None:
    """Slurm numbers its jobs anew when it has lost its state, or come to the last number."""
    first = site.begin()
    site.as_user(first.store.checkpoint(3).mkdir)
    again = site.begin(first_start=True)
    assert (again.epoch, again.plan) == (2, None)
    assert again.cold_start == "an earlier job had this job's number; its checkpoints are removed"
    assert again.store.sequence_numbers() == []


def test_a_job_of_which_no_checkpoint_is_of_use_leaves_no_trace(site: Site) -> None:
    with pytest.raises(Pointless):
        site.begin(job=replace(JOB, batch=False))
    assert not (site.top / "store").exists()


def test_the_record_knows_the_jobs_names(site: Site) -> None:
    begun = site.begin(job=replace(JOB, name="a\x1b[2J" + "b" * 100, array_id=5, array_task=2))
    kept = read(begun.store)
    assert kept.array == "5_2"
    assert kept.name == r"a\x1b[2J" + "b" * 56


def test_fresh(site: Site) -> None:
    assert site.begin(fresh=True).cold_start is None
    assert site.begin(fresh=True).cold_start == "--checkpoint-fresh asks for it"


def test_a_site_that_does_not_restore(site: Site) -> None:
    site.attempts = 0
    site.begin()
    assert site.begin().cold_start == "restore.attempts is 0 on this node"


def test_a_lost_node_that_is_not_to_be_recovered_from(site: Site) -> None:
    """Nobody wrote the end of the first one. After an end that was written, the job is restored as ever."""
    site.begin()
    begun = site.begin(recover=frozenset({"crash"}))
    assert begun.cold_start == (
        "the node of the last incarnation was lost, and nodefail is not among the events that this job recovers from"
        " (crash)"
    )
    kept = json.loads(begun.store.record.read_text())
    kept["attempts"][-1].update(ended=1.0, outcome="requeued")
    begun.store.record.write_text(json.dumps(kept))
    assert site.begin(recover=frozenset({"crash"})).cold_start == "no checkpoint had been taken"


def test_a_job_on_several_nodes(site: Site) -> None:
    with pytest.raises(SlurmckptError, match="jobs on several nodes are not supported yet, and this one has 2"):
        site.begin(node_count=2)
    assert not (site.top / "store").exists()


@pytest.mark.skipif(not ROOT, reason="needs root: what root must not do for a user")
def test_root_makes_nothing_at_a_place_that_the_user_chose(site: Site) -> None:
    closed = site.top / "etc"
    closed.mkdir(mode=0o755)
    with pytest.raises(StoreError, match=r"store directory .* cannot be made: Permission denied"):
        site.begin(directory=closed / "cron.d")
    assert list(closed.iterdir()) == []


@pytest.mark.skipif(not ROOT, reason="needs root: what root must not do for a user")
def test_a_users_own_store_is_the_users(site: Site) -> None:
    own = site.top / "own"
    own.mkdir()
    os.chown(own, USER.pw_uid, USER.pw_gid)
    begun = site.begin(directory=own / "checkpoints")
    for path in [begun.store.dir, *begun.store.dir.parents]:
        if path == own.parent:
            break
        assert path.stat().st_uid == USER.pw_uid
    assert begun.epoch == 1


@pytest.mark.parametrize("waits", [True, False])
def test_what_was_captured_when_the_output_may_have_been_empty_is_refused(site: Site, waits: bool) -> None:
    """By a node that was given up for dead, when the prolog here did not wait until the lease was taken."""
    prolog = WaitingProlog()
    if not waits:
        os.close(prolog.reader)
    begun = site.begin(restarts=1, prolog=prolog)
    if waits:
        prolog_heard = os.read(prolog.reader, 10)
        os.close(prolog.reader)
        assert prolog_heard == b"\n"
    blank = World(site.top, begun.spec.job, begun.store, begun.files, site.top).manifest(1)
    before, after = (replace(blank, created=prolog.since + seconds) for seconds in (-0.01, 0.01))
    assert "emptied" not in begun.planner._check(before)
    assert ("emptied" in begun.planner._check(after)) is not waits
