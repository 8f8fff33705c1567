"""What the soak does to the cluster and its jobs, at random."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.cluster.harness import Cluster
from tests.soak.jobs import Jobs, Submitted


@dataclass
class Chaos:
    """Disturbances, counted. One node is broken at a time, so that there is always one to go on."""

    cluster: Cluster
    jobs: Jobs
    nodes: list[str]
    spread: random.Random
    urgent: str
    counts: Counter[str] = field(default_factory=Counter)
    broken: str = ""
    mend_at: float = 0.0
    log: Callable[[str], None] = print
    wrong: list[str] = field(default_factory=list)
    _duplicates: set[tuple[str, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._duplicates = {(node, number) for node in self.nodes for number in self._taken_for_copies(node)}

    def resume(self) -> None:
        """What an administrator does about nodes that Slurm has drained with "Duplicate jobid".

        A script that ends while its node is cut off is remembered there, and when its job comes back to the node, Slurm
        takes it for a second copy. That is Slurm's own (docs/reliability.md); for a job that the fence has ended it is
        our fault.
        """
        drained = self.cluster.run("sinfo", "-hN", "-t", "drain", "-o", "%N %E", check=False).stdout.splitlines()
        for node in {line.split()[0] for line in drained if "Duplicate jobid" in line}:
            for number in self._taken_for_copies(node):
                if (node, number) not in self._duplicates:
                    self._duplicates.add((node, number))
                    self.log(f"{node} is drained: Duplicate jobid of {number}")
                    self.counts["nodes drained by Slurm's memory of a script that ended while they were cut off"] += 1
                    fenced = f"grep -q 'job {number}: .*what runs of it here is ended' /var/log/slurmckpt.log"
                    if self.cluster.root(node, fenced, check=False).returncode == 0:
                        self.wrong.append(f"{node}: drained for job {number}, which was fenced there")
                    self.cluster.root("ctl", f"scontrol release {number}", check=False)
            self.cluster.root("ctl", f"scontrol update nodename={node} state=resume", check=False)

    def _taken_for_copies(self, node: str) -> list[int]:
        pattern = "s/.*JobId=\\([0-9]*\\) .*do not launch second copy.*/\\1/p"
        text = self.cluster.root(node, f"sed -n '{pattern}' /var/log/slurmd.log", check=False).stdout
        return [int(word) for word in text.split()]

    def disturb(self) -> None:
        """One disturbance, if one is possible now."""
        if self.broken and time.monotonic() >= self.mend_at:
            self.mend()
        self.resume()
        acts: list[tuple[int, Callable[[], None]]] = [
            (3, self._fail),
            (2, self._cut),
            (5, self._requeue),
            (1, self._cancel),
            (2, self._kill_coordinator),
            (1, self._kill_criu),
            (2, self._checkpoint),
            (2, self._preempt),
        ]
        (act,) = self.spread.choices([act for _, act in acts], [weight for weight, _ in acts])
        act()

    def mend(self) -> None:
        """Bring the broken node back."""
        if self.broken:
            self.log(f"start {self.broken}")
            self.cluster.verb("start", self.broken)
            self.broken = ""

    def _fail(self) -> None:
        self._break("fail", "power cuts", self.spread.uniform(2, 20))

    def _cut(self) -> None:
        self._break("cut", "networks cut", self.spread.uniform(5, 30))

    def _break(self, verb: str, what: str, seconds: float) -> None:
        busy = sorted({one.node for one in self.jobs.running()} & set(self.nodes))
        if not self.broken and busy:
            node = self.spread.choice(busy)
            self.log(f"{verb} {node}")
            self.cluster.verb(verb, node)
            self.broken, self.mend_at = node, time.monotonic() + seconds
            self.counts[what] += 1

    def _one(self) -> Submitted | None:
        running = [one for one in self.jobs.running() if one.node != self.broken]
        return self.spread.choice(running) if running else None

    def _requeue(self) -> None:
        if one := self._one():
            self._slurm("requeues", "scontrol", "requeue", one.job.name)

    def _cancel(self) -> None:
        if one := self._one():
            one.cancelled = True
            self._slurm("cancels", "scancel", one.job.name)

    def _checkpoint(self) -> None:
        if one := self._one():
            self._slurm("checkpoints asked for", "slurmckpt", "checkpoint", one.job.name)

    def _preempt(self) -> None:
        """A job of a higher partition that takes a whole node."""
        node = self.spread.choice(self.nodes)
        if self.urgent and node != self.broken:
            self._slurm(
                "preemptions",
                *("sbatch", "--partition", self.urgent, "--nodelist", node, "--exclusive", "--output=/dev/null"),
                "--wrap=sleep 2",
            )

    def _slurm(self, what: str, *command: str) -> None:
        self.log(" ".join(command))
        # A job may have ended a moment ago: then Slurm refuses, and nothing has happened.
        if self.cluster.run(*command, check=False).returncode == 0:
            self.counts[what] += 1

    def _kill_coordinator(self) -> None:
        if one := self._one():
            self.log(f"kill the coordinator of {one.job.number} on {one.node}")
            script = f"kill -KILL $(cut -d' ' -f1 /run/slurmckpt/{one.job.number}/coordinator.pid)"
            if self.cluster.root(one.node, script, check=False).returncode == 0:
                self.counts["coordinators killed"] += 1

    def _kill_criu(self) -> None:
        if one := self._one():
            self.log(f"kill a criu on {one.node}")
            script = "for i in $(seq 200); do pkill -KILL -x criu && exit 0; sleep 0.02; done; exit 1"
            if self.cluster.root(one.node, script, check=False).returncode == 0:
                self.counts["CRIUs killed"] += 1
