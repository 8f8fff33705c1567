"""Changes of slurm.conf for the time of a test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.harness import Cluster, wait_for

CONF = "/etc/slurm/slurm.conf"
# Partition and preemption by partition: who waits in `high` takes the nodes from who runs in `low`.
PREEMPTION = """\
PreemptType=preempt/partition_prio
PreemptMode={mode}
PartitionName=low Nodes=ALL PriorityTier=1 GraceTime={grace} PreemptMode={mode} MaxTime=INFINITE State=UP
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP
"""
# Slurm's own line, in the output of a step, about the SIGTERM of a preemption; before 25.05 without the reason.
STEP_TERMINATED = re.compile(r"\*\*\* STEP \S+ ON n\d CANCELLED AT \S+ (?:DUE to SIGNAL Terminated )?\*\*\*")


@contextmanager
def slurm_conf(cluster: Cluster, lines: str) -> Iterator[None]:
    """With these lines added to slurm.conf; a parameter or partition that is there already is replaced."""
    before = cluster.root("ctl", f"cat {CONF}").stdout
    for line in lines.splitlines():
        start = line.split()[0] if line.startswith("PartitionName=") else f"{line.partition('=')[0]}="
        cluster.root("ctl", f"sed -i '/^{start}/d' {CONF}")
    cluster.run("sh", "-c", f"cat >>{CONF}", user="root", node="ctl", stdin=lines)
    try:
        _reconfigure(cluster)
        yield
    finally:
        cluster.run("scancel", "--user", "alice", check=False)
        cluster.all_idle()
        cluster.run("sh", "-c", f"cat >{CONF}", user="root", node="ctl", stdin=before)
        _reconfigure(cluster)


def _reconfigure(cluster: Cluster) -> None:
    cluster.root("ctl", "scontrol reconfigure")
    wait_for("slurmctld to answer", lambda: cluster.run("scontrol", "ping", check=False).stdout.count(" is UP"))
    cluster.all_idle()
