"""Beginning an incarnation, with a real store."""

from __future__ import annotations

import asyncio
import os
import pwd
from pathlib import Path

import pytest

from slurmckpt.capture import criu
from slurmckpt.config import Paths, Restore, Settings, Staging, Store
from slurmckpt.coordinator import node
from slurmckpt.coordinator.incarnation import Incarnation, begin
from slurmckpt.coordinator.spec import JobSpec, Options
from slurmckpt.errors import SlurmckptError, StoreError
from slurmckpt.identity import JobIdentity

ROOT = os.geteuid() == 0
# Of any system, and surely no owner of anything here.
USER = pwd.getpwnam("nobody") if ROOT else pwd.getpwuid(os.getuid())


class Site:
    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.top = top
        self.attempts = 3
        # The prolog makes it before there is a coordinator.
        (top / "run" / "7").mkdir(parents=True)

        async def examine(settings: Settings) -> node.Node:
            return node.Node(criu.Installation("/criu", "4.2.1", False), b"k" * 16, {}, "slurmckpt-0123456789ab")

        monkeypatch.setattr(node, "examine", examine)

    def begin(self, node_count: int = 1, **options: object) -> Incarnation:
        settings = Settings(
            store=Store(path=self.top / "store"),
            staging=Staging(path=self.top / "staging"),
            paths=Paths(run=self.top / "run"),
            restore=Restore(attempts=self.attempts),
        )
        job = JobIdentity("c", USER.pw_name, USER.pw_uid, USER.pw_gid, 7)
        spec = JobSpec(job, "n1", node_count, 0, Options(**options))  # type: ignore[arg-type]
        begun = asyncio.run(begin(spec, settings))
        begun.files.close()
        return begun


@pytest.fixture
def site(home: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    if ROOT:
        os.chown(home, 0, 0)
    home.chmod(0o755)
    return Site(home, monkeypatch)


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


def test_fresh(site: Site) -> None:
    assert site.begin(fresh=True).cold_start is None
    assert site.begin(fresh=True).cold_start == "--checkpoint-fresh asks for it"


def test_a_site_that_does_not_restore(site: Site) -> None:
    site.attempts = 0
    site.begin()
    assert site.begin().cold_start == "restore.attempts is 0 on this node"


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
