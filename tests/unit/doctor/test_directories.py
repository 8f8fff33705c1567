"""Staging, store and log."""

from __future__ import annotations

import dataclasses
import os
import pwd
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from slurmckpt import faults
from slurmckpt.config import Staging, Store
from slurmckpt.doctor import directories, filesystem, trusted
from slurmckpt.doctor.finding import Finding
from slurmckpt.doctor.host import Cluster
from tests.unit.doctor.world import NODE, World


@pytest.fixture(autouse=True)
def mounts(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Mount points and their types, instead of this machine's. Staging is local and the store is not."""
    table: dict[str, str] = {"/": "ext4"}

    def partitions(all: bool) -> list[SimpleNamespace]:
        assert all
        return [SimpleNamespace(mountpoint=point, fstype=kind) for point, kind in table.items()]

    monkeypatch.setattr(psutil, "disk_partitions", partitions)
    return table


@pytest.fixture
def shared(world: World, mounts: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> World:
    """With half of its store free, however full this machine is."""
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(total=100e12, free=50e12))
    mounts[str(world.top / "store")] = "nfs4"
    return world


def test_file_systems(mounts: dict[str, str], tmp_path: Path) -> None:
    mounts |= {"/data": "xfs", "/data/shared": "lustre", "/data/sharedness": "tmpfs"}
    assert filesystem.kind(Path("/data")) == "xfs"
    assert filesystem.kind(Path("/data/shared/x")) == "lustre"
    assert filesystem.kind(Path("/data/sharednes")) == "xfs"
    assert filesystem.kind(Path("/database")) == "ext4"
    (tmp_path / "link").symlink_to("/data/shared/x")
    assert filesystem.kind(tmp_path / "link") == "lustre"
    assert [filesystem.is_local(kind) for kind in ("xfs", "overlay", "nfs", "nfs4", "lustre", "fuse.x")] == [
        *[True] * 2,
        *[False] * 4,
    ]


def test_staging(world: World) -> None:
    found = directories.staging(world.host())
    assert found.verdict == "ok"
    assert f"made by the first job in {world.top}" in found.text
    (world.top / "staging").mkdir(0o700)
    assert "made by" not in directories.staging(world.host()).text
    assert directories.staging(world.login()).verdict == "skipped"


def test_staging_without_room(world: World) -> None:
    world.settings = dataclasses.replace(world.settings, staging=Staging(world.top / "staging", reserve=2**62))
    assert directories.staging(world.host()).verdict == "problem"


def test_staging_on_shared_storage(world: World, mounts: dict[str, str]) -> None:
    mounts[str(world.top)] = "lustre"
    assert directories.staging(world.host()).verdict == "warning"


def test_staging_that_is_no_directory(world: World) -> None:
    world.write("staging", "")
    assert directories.staging(world.host()).verdict == "problem"


def test_staging_that_others_can_change(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (world.top / "staging").mkdir()
    monkeypatch.setattr(trusted, "directory_fault", lambda path: "is owned by uid 7, not by root")
    found = directories.staging(world.host())
    assert found.verdict == "problem"
    assert found.remedy == f"chown root:root {world.top}/staging; chmod 0755 {world.top}/staging"


def test_store(shared: World) -> None:
    found = directories.store(shared.host())
    assert (found.verdict, "the first job makes the cluster's directory" in found.text) == ("ok", True)
    assert directories.store(shared.login()).verdict == "skipped"


def test_a_store_that_is_nearly_full(shared: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(total=100e12, free=4.9e12))
    found = directories.store(shared.host())
    assert found.verdict == "warning"
    assert found.text.endswith("(nfs4): 4.9 TB free of 100 TB: when it is full, jobs run on without new checkpoints")


@pytest.mark.parametrize(
    ("mode", "verdict", "text"),
    [
        (0o1777, "ok", "users can make their directories"),
        (0o755, "ok", "root makes the users' directories"),
        (0o777, "problem", "every user can remove the checkpoints of others (mode 0777)"),
    ],
)
def test_the_clusters_directory(shared: World, mode: int, verdict: str, text: str) -> None:
    cluster = shared.top / "store/cluster"
    cluster.mkdir()
    cluster.chmod(mode)
    found = directories.store(shared.host())
    assert (found.verdict, text in found.text) == (verdict, True)


def test_root_squash(shared: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where root is nobody, the first user would make the cluster's directory, and shut all others out."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    store = shared.top / "store"
    remedy = f"where root may: mkdir -p {store}/cluster; chmod 1777 {store}/cluster"
    assert directories.store(shared.host()).remedy == remedy
    store.chmod(0o1777)
    assert directories.store(shared.host()).remedy == remedy
    (store / "cluster").mkdir(0o755)
    assert directories.store(shared.host()).verdict == "problem"
    (store / "cluster").chmod(0o1777)
    assert directories.store(shared.host()).verdict == "ok"


def test_the_store_seen_by_a_user(shared: World) -> None:
    assert directories.store(shared.host(root=False)).verdict == "skipped"
    (shared.top / "store/cluster").mkdir()
    assert directories.store(shared.host(root=False)).verdict == "skipped"
    (shared.top / "store/cluster").chmod(0o1777)
    assert directories.store(shared.host(root=False)).verdict == "ok"


def test_a_store_of_one_node(world: World) -> None:
    assert directories.store(world.host()).verdict == "warning"
    assert directories.store(world.configured(MaxNodeCount="1")).verdict == "ok"


def test_a_store_that_is_not_mounted(world: World) -> None:
    world.settings = dataclasses.replace(world.settings, store=Store(path=world.top / "elsewhere"))
    assert directories.store(world.host()).verdict == "problem"
    assert directories.store(world.host(cluster=None)).verdict == "problem"
    alone = Cluster(world.config | {"MaxNodeCount": "1"}, NODE)
    assert directories.store(world.host(cluster=alone)).verdict == "ok"
    world.write("elsewhere", "")
    assert directories.store(world.host()).verdict == "problem"


def log_of(world: World, monkeypatch: pytest.MonkeyPatch, uid: int) -> Finding:
    def account(name: str) -> SimpleNamespace:
        assert name == "slurm"
        return SimpleNamespace(pw_uid=uid)

    monkeypatch.setattr(pwd, "getpwnam", account)
    return directories.log(world.controller())


def test_the_log_of_the_controller(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    path = world.settings.log.path
    found = log_of(world, monkeypatch, os.getuid())
    assert (found.verdict, found.remedy) == ("warning", f"install -o slurm -g root -m 0640 /dev/null {path}")
    path.touch(0o640)
    assert log_of(world, monkeypatch, os.getuid()).verdict == "ok"
    assert log_of(world, monkeypatch, os.getuid() + 1).remedy == f"chown slurm {path}"


def test_the_log_of_a_node(world: World) -> None:
    assert directories.log(world.host()).verdict == "ok"
    assert directories.log(world.login()).verdict == "skipped"
    world.settings.log.path.parent.chmod(0o1777)
    assert directories.log(world.host()).verdict == "problem"
    world.settings.log.path.parent.rmdir()
    assert directories.log(world.host()).verdict == "problem"


def test_injected_faults(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "DIRECTORY", tmp_path / "faults")
    assert directories.injected_faults(world.host()).verdict == "ok"
    (tmp_path / "faults").mkdir()
    found = directories.injected_faults(world.host())
    assert found.verdict == "problem" and str(tmp_path / "faults") in found.remedy
