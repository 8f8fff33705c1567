"""When checkpoints come: by themselves as often as pays, and not for all jobs in the same second."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from statistics import median

from tests.cluster.harness import Cluster, settings, wait_for


def test_auto_follows_what_checkpoints_cost(cluster: Cluster, directory: Path) -> None:
    """Before the first, a cost of 30 s is assumed: with a failure a minute, every 42 s. Then it is measured."""
    with settings(cluster, '[schedule]\nmtbf = "60s"\nmax_overhead = 1\nmin_interval = "1s"'):
        job = cluster.submit("python3 chain.py 1200 0.1", "--checkpoint-interval=auto", directory=directory)
        job.wait_running()
        notes = job.wait_checkpoints(5, 240)
        job.cancel()
    started = job.status()["attempts"][0]["started"]
    times = [note["time"] for note in notes]
    # Half of it at least, as the first comes in the second half; sqrt(3600) (1 + 1/6 + 1/36) - 30 = 41.7 s.
    assert 20 < times[0] - started < 41.7 + 60
    # A freeze of 0.02 s to 1 s: 1.5 s to 10 s, and what the commit adds. On a busy machine all of them may take longer, but
    # not as long as if none had been measured.
    gaps = [after - before for before, after in pairwise(times)]
    assert min(gaps) > 0.9 and median(gaps) < 35, times


def test_jobs_that_start_together_do_not_checkpoint_together(cluster: Cluster, directory: Path) -> None:
    """Eight tasks of an array; without a spread all would come within the second in which they started."""
    options = ("--array=1-8", "--checkpoint-interval=20s", "--mem=500", "--output=/dev/null")
    job = cluster.submit("python3 chain.py 1200 0.1", *options, directory=directory)
    times: dict[int, float] = {}

    def all_taken() -> bool:
        for index in range(1, 9):
            done = cluster.run("slurmckpt", "status", f"{job.number}_{index}", "--json", check=False)
            if done.returncode == 0:
                found = json.loads(done.stdout)
                taken = [note["time"] for note in found["checkpoints"]]
                if taken:
                    times[index] = min(taken) - found["attempts"][0]["started"]
        return len(times) == 8

    wait_for(lambda: f"a checkpoint of each: {times}", all_taken, 180)
    cluster.run("scancel", str(job.number))
    # The second half of the interval; a busy machine makes it later, and never earlier.
    assert all(10 <= seconds < 120 for seconds in times.values()), times
    # That eight of them fall within 2 s by chance happens once in 12,000 times.
    assert max(times.values()) - min(times.values()) > 2, times
