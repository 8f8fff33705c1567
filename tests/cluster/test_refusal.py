"""A checkpoint is valid or it does not exist: what was changed, forged or does not fit is refused with the reason."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster, Job, chain, drained, finish, move, restored_from, wait_for


@pytest.fixture
def store(cluster: Cluster) -> Path:
    """The store, as this machine sees it."""
    return cluster.home.parent.parent / "store"


def counting(cluster: Cluster, directory: Path, *options: str) -> Job:
    """A job with two checkpoints, which goes on until finish()."""
    job = cluster.submit(
        "python3 chain.py 150 0.1", "--checkpoint-interval=infinite", *options, directory=directory, held=True
    )
    job.wait_output("^10 ")
    job.checkpoint()
    job.wait_output("^20 ")
    job.checkpoint()
    return job


def flip_a_bit(checkpoint: Path) -> None:
    """In the middle of the largest image."""
    image = max(checkpoint.rglob("*.img"), key=lambda path: path.stat().st_size)
    data = bytearray(image.read_bytes())
    data[len(data) // 2] ^= 1
    image.write_bytes(data)


def remove_an_image(checkpoint: Path) -> None:
    """One file is missing."""
    next(checkpoint.rglob("pstree.img")).unlink()


def forge_the_manifest(checkpoint: Path) -> None:
    """The user would like another user id."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["steps"][0]["uid"] = 0
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


def remove_the_signature(checkpoint: Path) -> None:
    """Unsigned."""
    (checkpoint / "manifest.sig").unlink()


def replace_by_an_older_one(checkpoint: Path) -> None:
    """Signed, but not what it claims to be."""
    shutil.rmtree(checkpoint)
    shutil.copytree(checkpoint.parent / "1", checkpoint)
    for path in [checkpoint, *checkpoint.rglob("*")]:
        os.chown(path, 1000, 1000)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (flip_a_bit, "#2: "),
        (remove_an_image, "pstree.img is missing"),
        (forge_the_manifest, "manifest is not signed with this site's key"),
        (remove_the_signature, "manifest has no signature"),
        (replace_by_an_older_one, "manifest belongs to"),
    ],
)
def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_used(
    cluster: Cluster, directory: Path, store: Path, damage: Callable[[Path], None], reason: str
) -> None:
    """And the result is right."""
    job = counting(cluster, directory)
    damage(next(store.glob(f"*/alice/{job.number}/2")))
    move(job, job.node())
    assert restored_from(job) == 1
    refused = job.status()["attempts"][-1]["refused"]
    assert len(refused) == 1 and refused[0].startswith("#2: ") and reason in refused[0], refused
    assert finish(job) == "COMPLETED"
    assert job.output().splitlines() == chain(150)


def test_a_checkpoint_of_another_site_is_refused(cluster: Cluster, directory: Path) -> None:
    """Nothing fits, so the job starts cold and its output says why."""
    job = counting(cluster, directory)
    other = "n2" if job.node() == "n1" else "n1"
    cluster.root(
        other, "cp /etc/slurmckpt/site.key /run/other.key && echo 0123456789abcdef0123456789abcdef >/run/other.key"
    )
    cluster.root(other, "mount --bind /run/other.key /etc/slurmckpt/site.key")
    try:
        move(job, job.node())
        line = job.wait_output("^slurmckpt: cold start: .*")[0]
        assert line == (
            "slurmckpt: cold start: no checkpoint fits: #2: manifest is not signed with this site's key; "
            "#1: manifest is not signed with this site's key"
        )
        assert finish(job) == "COMPLETED"
        assert job.output().splitlines() == [line, *chain(150)]
    finally:
        cluster.root(other, "umount /etc/slurmckpt/site.key")


def change_fingerprint(cluster: Cluster, node: str) -> None:
    """Give a node another operating system image, for the fingerprint: as a site would, in its slurmckpt.toml."""
    cluster.root(
        node,
        "cp /etc/slurmckpt/slurmckpt.toml /run/other.toml && printf '[fingerprint.site]\\nimage = \"2\"\\n' >>/run/other.toml",
    )
    cluster.root(node, "mount --bind /run/other.toml /etc/slurmckpt/slurmckpt.toml && slurmckpt node register")


def restore_fingerprint(cluster: Cluster, node: str) -> None:
    """Undo change_fingerprint()."""
    cluster.root(node, "umount /etc/slurmckpt/slurmckpt.toml; slurmckpt node register")


def test_a_node_with_another_fingerprint_is_not_chosen(cluster: Cluster, directory: Path) -> None:
    """The other node is free, but not the same: the job goes back to its own, and its own constraint is intact."""
    for node in ("n1", "n2"):
        cluster.root(node, "slurmckpt node register")
    job = counting(cluster, directory)
    node = job.node()
    other = "n2" if node == "n1" else "n1"
    change_fingerprint(cluster, other)
    try:
        # The other node comes first for Slurm: without the hook the job would go there.
        cluster.root("ctl", f"scontrol update nodename={node} weight=100; scontrol update nodename={other} weight=1")
        job.requeue()
        assert wait_for("the job on its node", lambda: restored_from(job)) == 2
        assert job.node() == node
        assert finish(job) == "COMPLETED"
        assert job.output().splitlines() == chain(150)
    finally:
        cluster.root("ctl", "scontrol update nodename=n1,n2 weight=1")
        restore_fingerprint(cluster, other)


def test_without_a_matching_node_the_job_starts_cold_and_says_why(cluster: Cluster, directory: Path) -> None:
    """Its own node is away, the other one differs."""
    for node in ("n1", "n2"):
        cluster.root(node, "slurmckpt node register")
    job = counting(cluster, directory)
    node = job.node()
    other = "n2" if node == "n1" else "n1"
    change_fingerprint(cluster, other)
    try:
        with drained(cluster, [node]):
            job.requeue()
            line = job.wait_output("^slurmckpt: cold start: .*")[0]
            assert (
                "image" in line and "2" in line and line.startswith("slurmckpt: cold start: no checkpoint fits: #2: ")
            ), line
            assert job.node() == other
        assert finish(job) == "COMPLETED"
        assert job.output().splitlines() == [line, *chain(150)]
        assert job.info()["features"] == ""
    finally:
        restore_fingerprint(cluster, other)
