"""The soak: many short jobs of mixed kinds, while nodes die and jobs are requeued, preempted and cancelled at random.

make soak [SECONDS=1200] [JOBS=200] [SEED=...]. Needs root. At the end every job's result is right, or it says why not;
no node is drained; no process, mount or file of ours is left. Exit status 0 only then.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE))

from tests.cluster.harness import Cluster, settings, wait_for  # noqa: E402
from tests.cluster.test_cleanup import assert_clean  # noqa: E402
from tests.soak.chaos import Chaos  # noqa: E402
from tests.soak.jobs import Jobs  # noqa: E402
from tests.soak.kinds import KINDS  # noqa: E402

CLUSTER = str(TREE / "sandbox/cluster")
NODES = ["n1", "n2", "n3", "n4"]
INTERVAL = "6s"
MOST_AT_ONCE = 12
LAST_JOBS_SECONDS = 900.0
SLURM_CONF = "/etc/slurm/slurm.conf"
URGENT = "urgent"
# A batch script that ends while its node is cut off leaves a slurmstepd that goes on trying to say so. Slurm that
# starts the job anew on that node takes it for a second copy and drains the node, "Duplicate jobid", also without
# slurmckpt (docs/reliability.md). With the sandbox's quick requeue a job comes back to the very node time and again.
QUICK_REQUEUE, REQUEUE = "requeue_delay=2", "requeue_delay=20"
# What makes jobs of the default partition preemptible. %s: the nodes.
PREEMPTION = f"""
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName={URGENT} Nodes=ALL PriorityTier=100 PreemptMode=OFF MaxTime=INFINITE State=UP
"""


def main() -> int:
    """Run the soak; the exit status."""
    arguments = _arguments()
    print(f"seed {arguments.seed}, {arguments.jobs} jobs, {arguments.seconds} s", flush=True)
    subprocess.run([CLUSTER, "up", "--nodes", str(len(NODES))], check=True)
    home = subprocess.run([CLUSTER, "path"], check=True, capture_output=True, text=True).stdout.strip()
    cluster = Cluster(Path(home) / "alice")
    cluster.all_idle()
    before = cluster.root("ctl", f"cat {SLURM_CONF}").stdout
    _configure(cluster, before.replace(QUICK_REQUEUE, REQUEUE) + PREEMPTION)
    try:
        return _soak(cluster, arguments)
    finally:
        _configure(cluster, before)


def _soak(cluster: Cluster, arguments: argparse.Namespace) -> int:
    spread = random.Random(arguments.seed)
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f}  {text}", flush=True)

    jobs = Jobs(cluster, cluster.home / "soak", INTERVAL)
    jobs.prepare()
    chaos = Chaos(cluster, jobs, NODES, spread, URGENT, log=say)
    kinds = [kind for _ in range(arguments.jobs // len(KINDS) + 1) for kind in spread.sample(KINDS, len(KINDS))]
    next_disturbance = time.monotonic() + 10
    while time.monotonic() - began < arguments.seconds:
        jobs.look()
        due = arguments.jobs * min(1.0, (time.monotonic() - began) / (0.9 * arguments.seconds))
        if len(jobs.all) < due and len(jobs.left()) < MOST_AT_ONCE:
            kind = kinds[len(jobs.all)]
            jobs.submit(kind, spread.randrange(40, 120) // 2 * 2)
        if time.monotonic() >= next_disturbance:
            chaos.disturb()
            next_disturbance = time.monotonic() + spread.uniform(1, arguments.calm)
        time.sleep(0.3)
    say(f"no more disturbances; {len(jobs.left())} of {len(jobs.all)} jobs have not ended yet")
    chaos.mend()
    wrong = _finish(cluster, jobs, chaos)
    judged, counts = jobs.judge()
    wrong += judged
    chaos.resume()
    wrong += chaos.wrong
    wrong += _leftovers(cluster)
    wrong += _pruned(cluster, jobs, counts)
    for title, count in sorted({**counts, **chaos.counts, "jobs": len(jobs.all)}.items()):
        print(f"{count:6}  {title}")
    for line in wrong:
        print(f"WRONG: {line}")
    print(f"{len(wrong)} complaints; seed {arguments.seed}; {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


def _finish(cluster: Cluster, jobs: Jobs, chaos: Chaos) -> list[str]:
    """Let all jobs end. One that Slurm holds, as it was requeued too often, is released: that is not what is tried."""

    def ended() -> bool:
        jobs.look()
        chaos.resume()
        for one in jobs.left():
            if one.state in ("PENDING", "REQUEUE_HOLD"):
                cluster.root("ctl", f"scontrol release {one.job.number}", check=False)
        return not jobs.left()

    try:
        wait_for("the end of all jobs", ended, LAST_JOBS_SECONDS)
    except AssertionError:
        return [f"job {one.job.number} ({one.kind.name}) is still {one.state} on {one.node}" for one in jobs.left()]
    return []


def _leftovers(cluster: Cluster) -> list[str]:
    """Drained nodes, and what lies around on nodes and in the store."""
    wrong = []
    try:
        cluster.all_idle()
    except AssertionError as error:
        wrong.append(f"nodes: {error}")
    for node in NODES:
        # A power cut leaves the staging of its jobs, which the next job's coordinator sweeps.
        options = [f"--nodelist={node}", "--checkpoint-interval=infinite", "--output=/dev/null", "--wrap=true"]
        try:
            cluster.run("sbatch", "--wait", *options)
            assert_clean(cluster, node)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            wrong.append(f"{node}: {error}")
    return wrong


def _pruned(cluster: Cluster, jobs: Jobs, counts: Counter[str]) -> list[str]:
    """What the store holds of jobs after an administrator's prune, and should not; or holds no more, and should."""
    wrong = []
    unattended = jobs.with_images("COMPLETED", "CANCELLED")
    kept = jobs.with_images("FAILED")
    counts["jobs whose images were left to prune, as nobody was at their end"] = len(unattended)
    counts["failed jobs whose images were kept for a requeue"] = len(kept)
    cluster.root("login", "slurmckpt prune")
    wrong += [f"job {one.job.number}: images after prune" for one in jobs.with_images("COMPLETED", "CANCELLED")]
    lost = {one.name for one in kept} - {one.name for one in jobs.with_images("FAILED")}
    wrong += [f"job {name}: prune took images that could be needed still" for name in sorted(lost)]
    with settings(cluster, "image_days = 0"):
        cluster.root("login", "slurmckpt prune")
    return wrong + [f"job {one.job.number}: images after their last day" for one in jobs.with_images("FAILED")]


def _configure(cluster: Cluster, text: str) -> None:
    cluster.run("sh", "-c", f"cat >{SLURM_CONF}", user="root", node="ctl", stdin=text)
    cluster.root("ctl", "scontrol reconfigure")
    wait_for("slurmctld", lambda: cluster.run("sinfo", check=False).returncode == 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1200, help="how long jobs are submitted and disturbed")
    parser.add_argument("--jobs", type=int, default=200, help="how many jobs are submitted in that time")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--calm", type=float, default=12, help="most seconds between two disturbances")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
