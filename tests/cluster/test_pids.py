"""Each job has pids of its own, although each pod counts for itself: programs name files by them that others see, too."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cluster.harness import Cluster, Job, drained, restored_from, wait_for

# A shell keeps its own `$$`; what its child sees is the kernel's word.
BEATS = """
until [ -e go ]; do sh -c 'echo "rank$SLURM_PROCID $PPID $$"'; sleep 0.2; done
"""
SCRIPT = """
sh -c 'echo "before $PPID $$"'
srun -n2 bash beats.sh
sh -c 'echo "after $PPID $$"'
srun -n1 sh -c 'echo "second $$ $$"'
"""
TWO_BEATS = r"(?s)(?=(?:.*^rank0 ){2})(?=(?:.*^rank1 ){2})"


def seen(job: Job, who: str) -> tuple[int, list[int]]:
    """The pid of a process of the job, always the same, and those of its children in order."""
    found = [(int(own), int(child)) for own, child in re.findall(rf"(?m)^{who} (\d+) (\d+)$", job.output())]
    assert len({own for own, _ in found}) == 1, found
    return found[0][0], [child for _, child in found]


def newest(job: Job) -> int:
    """The last child of a rank."""
    return max(seen(job, "rank0")[1][-1], seen(job, "rank1")[1][-1])


def test_jobs_of_one_node_have_pids_of_their_own(cluster: Cluster, directory: Path) -> None:
    """And each has them after its restore, when new processes get new ones."""
    (directory / "beats.sh").write_text(BEATS)
    with drained(cluster, ["n2"]):
        jobs = [
            cluster.submit(SCRIPT, "--ntasks=2", "--checkpoint-interval=infinite", name=name, directory=directory)
            for name in ("one", "other")
        ]
        for job in jobs:
            assert job.wait_running() == "n1"
    for job in jobs:
        job.wait_output(TWO_BEATS)
    taken = [job.checkpoint() for job in jobs]
    before = [newest(job) for job in jobs]
    with drained(cluster, ["n1"]):
        for job in jobs:
            job.requeue()
        wait_for("both jobs on n2", lambda: all(job.state() == "RUNNING" and job.node() == "n2" for job in jobs))
    assert [restored_from(job) for job in jobs] == taken
    wait_for("new processes", lambda: all(newest(job) > pid for job, pid in zip(jobs, before, strict=True)))
    (directory / "go").touch()
    pids: list[int] = []
    for job in jobs:
        assert job.wait_end() == "COMPLETED", job.output()
        script, ranks = seen(job, "before")[0], [seen(job, f"rank{rank}") for rank in range(2)]
        assert seen(job, "after")[0] == script
        for _, children in ranks:
            assert children == sorted(set(children)), "none was given twice"
        pids += [script, *seen(job, "before")[1], *seen(job, "after")[1], seen(job, "second")[0]]
        pids += [pid for own, children in ranks for pid in (own, *children)]
    assert len(set(pids)) == len(pids)
    assert min(pids) > 300
