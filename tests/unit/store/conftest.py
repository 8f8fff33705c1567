"""A store on this machine. As root its user is another uid, as everybody else it is the caller."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmckpt.identity import JobIdentity
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.layout import JobStore
from tests.unit.store.world import USER_GID, USER_UID, World


@pytest.fixture
def world() -> Iterator[World]:
    # Not tmp_path: pytest closes it to other uids.
    top = Path(tempfile.mkdtemp(prefix="slurmckpt-test-"))
    try:
        top.chmod(0o755)
        root = top / "store"
        root.mkdir(mode=0o755)
        staging = top / "staging"
        staging.mkdir(mode=0o700)
        as_root = os.geteuid() == 0
        uid, gid = (USER_UID, USER_GID) if as_root else (os.getuid(), os.getgid())
        job = JobIdentity("cluster", "jane", uid, gid, 4711)
        store = JobStore(root, job)
        with UserFiles.for_user(uid, gid, [gid]) as files:
            asyncio.run(store.prepare(files))
            yield World(top, job, store, files, staging)
    finally:
        shutil.rmtree(top, ignore_errors=True)
