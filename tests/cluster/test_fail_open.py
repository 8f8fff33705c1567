"""Whatever of ours is broken: the job runs as if we were not there, one line says so, and no node is drained."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster, chain, finish, wait_for

NODES = ("n1", "n2")
PACKAGE = "$(echo /opt/slurmckpt/lib/python3*/site-packages/slurmckpt)"


@contextmanager
def hidden(cluster: Cluster, target: str, cover: str) -> Iterator[None]:
    """Cover a path on every node by something else, with a bind mount."""
    try:
        for node in NODES:
            cluster.root(node, f"mkdir -p /run/empty && touch /run/blank && {cover} && mount --bind $cover {target}")
        yield
    finally:
        for node in NODES:
            cluster.root(node, f"umount {target}", check=False)


BREAKAGES = {
    "no-python": ("/opt/slurmckpt/bin", "cover=/run/empty", r"no checkpoints for this step: .*"),
    "no-package": (PACKAGE, "cover=/run/empty", r"no checkpoints for this step: .*"),
    "no-criu": ("/usr/sbin/criu", "cover=/run/blank", r"no checkpoints for this job: CRIU is not installed .*"),
    "no-pod-init": (
        "/usr/libexec/slurmckpt/pod-init",
        "cover=/run/blank",
        r"no checkpoints for this job: .*pod-init .*",
    ),
    "no-shim": ("/usr/libexec/slurmckpt/shim", "cover=/run/blank", r"no checkpoints for this step: .*shim.*"),
    "no-leader": ("/usr/libexec/slurmckpt/leader", "cover=/run/blank", r"no checkpoints for this job: .*leader .*"),
    "empty-key": ("/etc/slurmckpt/site.key", "cover=/run/blank", r"no checkpoints for this job: site key .*"),
    "unknown-setting": (
        "/etc/slurmckpt/slurmckpt.toml",
        "echo '[store]\npth = 1' >/run/wrong.toml && cover=/run/wrong.toml",
        r"no checkpoints for this job: .*pth.*",
    ),
    "no-store": (
        "/store",
        "chmod 555 /run/empty && cover=/run/empty && mount -o bind,ro /run/empty /run/empty",
        r"no checkpoints for this job: .*",
    ),
    "staging-full": (
        "/var/lib/slurmckpt",
        "mkdir -p /var/lib/slurmckpt /run/small && mount -t tmpfs -o size=1M small /run/small && cover=/run/small",
        r"checkpoint skipped: the staging disk has .* free .*",
    ),
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_job_runs_as_if_we_were_not_there(cluster: Cluster, directory: Path, breakage: str) -> None:
    """Its output has one line more, its status is its own."""
    target, cover, line = BREAKAGES[breakage]
    with hidden(cluster, target, cover):
        script = "srun true; srun true; python3 chain.py 40 0.1 /dev/null 3"
        job = cluster.submit(script, "--checkpoint-interval=1s", directory=directory, held=True)
        job.wait_output("^slurmckpt: ")
        assert finish(job) == "FAILED"
        assert job.info()["exit_code"]["return_code"]["number"] == 3
        cluster.all_idle()
    said = [text for text in job.output().splitlines() if text.startswith("slurmckpt: ")]
    assert len(said) == 1 and re.fullmatch(f"slurmckpt: {line}", said[0]), job.output()[:1000]
    assert [text for text in job.output().splitlines() if text != said[0]] == chain(40)


@pytest.mark.parametrize("victim", ["KILL", "TERM", "criu"])
def test_a_daemon_that_is_killed_takes_nothing_with_it(cluster: Cluster, directory: Path, victim: str) -> None:
    """The tasks run on to their own end, and the epilog cleans up."""
    job = cluster.submit("python3 chain.py 60 0.1", "--checkpoint-interval=infinite", directory=directory, held=True)
    job.wait_output("^10 ")
    node = job.node()
    if victim in ("KILL", "TERM"):
        cluster.root(node, f"kill -{victim} $(cut -d' ' -f1 /run/slurmckpt/{job.number}/coordinator.pid)")
    else:
        script = f"slurmckpt checkpoint {job.number} & while ! pkill -KILL -x criu; do :; done; wait"
        cluster.root(node, f"timeout 20 sh -c '{script}'", check=False)
    assert finish(job) == "COMPLETED", job.output()
    assert [text for text in job.output().splitlines() if not text.startswith("slurmckpt: ")] == chain(60)
    wait_for("the epilog", lambda: cluster.root(node, "ls /run/slurmckpt").stdout == "")


def test_an_option_of_a_step_wins(cluster: Cluster, directory: Path) -> None:
    """off for one step: that step has the node's own pids, the others live in pods."""
    script = "srun --checkpoint-interval=off readlink /proc/self/ns/pid\nsrun readlink /proc/self/ns/pid"
    job = cluster.submit(script, "--checkpoint-interval=10m", directory=directory)
    assert job.wait_end() == "COMPLETED"
    outside, inside = job.output().split()
    nodes = cluster.run("readlink", "/proc/self/ns/pid", node=job.node()).stdout.strip()
    assert outside == nodes and inside.startswith("pid:[") and inside != nodes


@pytest.mark.parametrize(
    ("option", "accepted"),
    [
        ("--checkpoint-interval=often", "90s, 10m, 1h30m"),
        ("--checkpoint-interval=0", "1 second"),
        ("--checkpoint-keep=0", "1 to 1000"),
        ("--checkpoint-dir=relative", "absolute"),
        ("--checkpoint-recover=magic", "nodefail"),
    ],
)
def test_a_wrong_option_stops_the_submission(cluster: Cluster, option: str, accepted: str) -> None:
    """With a line that names the option, the value, and what is accepted."""
    done = cluster.run("sbatch", option, "--wrap=true", check=False)
    assert done.returncode != 0 and "Submitted" not in done.stdout
    ours = done.stderr.splitlines()[0]
    name, value = option.split("=")
    assert name in ours and value in ours and accepted in ours, done.stderr


def test_a_job_without_checkpoints_has_no_coordinator(cluster: Cluster, directory: Path) -> None:
    """Nothing of ours runs or lies around."""
    job = cluster.submit("ls /run/slurmckpt 2>/dev/null; echo $$; sleep 1", directory=directory)
    assert job.wait_end() == "COMPLETED"
    assert len(job.output().split()) == 1 and not job.status()["attempts"]
