"""Places and identities. As root the job's user is another uid, as everybody else it is the caller."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmckpt.store.identity import UserFiles
from tests.unit.coordinator.parts import GID, UID


@pytest.fixture
def user_files() -> Iterator[UserFiles]:
    """File access as the job's user."""
    uid, gid = (UID, GID) if os.geteuid() == 0 else (os.getuid(), os.getgid())
    with UserFiles.for_user(uid, gid, [gid]) as files:
        yield files


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory of the job's user. Not below tmp_path: pytest closes that to other uids."""
    top = Path(tempfile.mkdtemp(prefix="slurmckpt-test-"))
    if os.geteuid() == 0:
        os.chown(top, UID, GID)
    yield top
    shutil.rmtree(top, ignore_errors=True)
