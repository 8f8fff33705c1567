"""Every place of ours is made to fail, under load: the job's fate is right, no node is drained, nothing is left.

The table is in tests/cluster/faults.py. Its rows are played several at a time in the background, each by a job of its
own, while two other jobs on the same nodes are checkpointed all the time; each test awaits one row.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cluster.faultrows import CHECKPOINT, END, RESTORE, RUN, START, Fault
from tests.cluster.faults import FAULTS, SURVIVED, THOROUGH
from tests.cluster.harness import Cluster, Job, chain, ring, wait_for
from tests.cluster.test_cleanup import assert_clean

# Seven minutes of stopped, killed and hanging parts.
pytestmark = pytest.mark.long

NODES = ("n1", "n2")
ORDERS = "/run/slurmckpt-faults"
SETTINGS = "/etc/slurmckpt/slurmckpt.toml"
# So that what hangs is given up while a test waits for it.
QUICK = "\npatience = '8s'\n[capture]\ntimeout = '12s'\n"
AT_ONCE = 6
LINES = 150  # of 0.2 s
# What slurmstepd says of a task that was killed; and slurmd, when the whole prolog takes longer than MessageTimeout - 2 s.
SLURMS_OWN = re.compile(r"^slurmckpt: |^slurmstepd: |error: Prolog hung on node")
LOAD = ("srun python3 ring.py 5000 0.1 3", "python3 chain.py 5000 0.1")

# What a job, or one that has ended, must not have on a node any more. $1: its number.
LEFT = """
ls -d /run/slurmckpt/$1 /var/lib/slurmckpt/$1 2>/dev/null
grep "/run/slurmckpt/$1/" /proc/mounts
exit 0
"""
# Processes that stand still, each with what it is.
STOPPED = "grep -lE '^State:.[Tt]' /proc/[0-9]*/task/[0-9]*/status 2>/dev/null; exit 0"


class Stage:
    """Plays rows."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.directory = directory

    def everywhere(self, script: str, *arguments: object) -> None:
        """As root on all nodes."""
        for node in NODES:
            self.cluster.run("sh", "-ec", script, "sh", *map(str, arguments), user="root", node=node)

    def order(self, fault: Fault, job: Job) -> None:
        """Have the fault happen when the job comes to its place."""
        action = fault.action.replace("{job}", str(job.number))
        self.everywhere('printf "%s\\n" "$1" >"$2"', action, f"{ORDERS}/{fault.place}.{job.number}")

    def take_back(self, fault: Fault, job: Job) -> None:
        """Forget the order."""
        self.everywhere('rm -f "$1"', f"{ORDERS}/{fault.place}.{job.number}")

    def submit(self, name: str, script: str) -> Job:
        """A job that is held until its orders are given."""
        job = self.cluster.submit(
            script,
            "--hold",
            "--checkpoint-interval=infinite",
            "--checkpoint-recover=nodefail",
            "--mem=300",
            name=name,
            directory=self.directory,
        )
        return job

    def release(self, job: Job) -> None:
        """Let it start."""
        self.cluster.root("ctl", f"scontrol release {job.number}")

    def checkpoint(self, job: Job) -> str:
        """Ask for a checkpoint: empty when it is committed, otherwise what the answer is."""
        try:
            done = self.cluster.run("slurmckpt", "checkpoint", str(job.number), check=False, timeout=60)
        except subprocess.TimeoutExpired:
            return "no answer"
        return "" if "committed" in done.stdout else done.stdout + done.stderr or "nothing"

    def happened(self, fault: Fault, job: Job) -> bool:
        """Whether the fault was injected: a test whose fault never came would prove nothing."""
        text = f"job {job.number}: fault injected at {fault.place}:"
        return any(
            self.cluster.root(node, f"grep -qF '{text}' /var/log/slurmckpt.log", check=False).returncode == 0
            for node in NODES
        )

    def play(self, fault: Fault) -> None:
        """One row with a job of its own."""
        program = fault.program or ("ring" if fault.when == CHECKPOINT else "chain")
        pause = 0.2 if fault.when == CHECKPOINT else 0.1
        expected = ring(LINES, 3) if program == "ring" else chain(LINES)
        job = self.submit(fault.name, f"exec python3 {program}.py {LINES} {pause}{' 3' * (program == 'ring')}")
        try:
            if fault.when in (START, END):
                self.order(fault, job)
            self.release(job)
            if fault.when == CHECKPOINT:
                job.wait_output("^5 ", 120)
                self.order(fault, job)
                refused = self.checkpoint(job)
                self.take_back(fault, job)
                assert bool(refused) == bool(fault.refused) and re.search(fault.refused, refused), refused
            elif fault.when == RUN:
                job.wait_output("^5 ", 120)
                self.cluster.root(job.node(), fault.action.replace("{job}", str(job.number)))
            elif fault.when == RESTORE:
                job.wait_output("^5 ", 120)
                job.checkpoint()
                job.wait_output("^20 ", 120)
                job.checkpoint()
                self.order(fault, job)
                job.requeue()
            self.judge(fault, job, expected)
        finally:
            job.cancel()
            if fault.place:
                self.take_back(fault, job)

    def judge(self, fault: Fault, job: Job, expected: Sequence[str]) -> None:
        """Once the job has ended: what became of it, and what is left."""
        state = job.wait_end(240)
        code = job.info()["exit_code"]
        found = (state, code["return_code"]["number"], code["signal"]["id"]["number"])
        lines = job.output().splitlines()
        said = [line.removeprefix("slurmckpt: ") for line in lines if line.startswith("slurmckpt: ")]
        printed = [line for line in lines if not SLURMS_OWN.search(line)]
        assert found == (fault.state, fault.status, fault.signal), job.output()[-1000:]
        assert len(said) == len(fault.says), said
        assert all(re.fullmatch(pattern, line) for pattern, line in zip(fault.says, said, strict=True)), said
        if fault.output == "part":
            expected = expected[: len(printed)]
        elif fault.output == "again":
            printed = _without_beginning(printed, expected)
        assert printed == list(expected), _difference(printed, expected)
        assert not fault.place or self.happened(fault, job)
        if fault.when == RESTORE:
            sources = [attempt["restored_from"] for attempt in job.status()["attempts"]]
            assert sources[-1] == fault.restored_from, sources
        self.clean(job)

    def clean(self, job: Job) -> None:
        """No file and mount of the job is on any node, and nobody stands still."""
        for node in NODES:
            wait_for(f"{node} without job {job.number}", lambda node=node: not self.left(node, job), 100)  # type: ignore[misc]
        assert "drain" not in self.cluster.run("sinfo", "-h", "-N", "-o", "%N %T %E").stdout

    def left(self, node: str, job: Job) -> str:
        """What is left of it there."""
        return self.cluster.run("sh", "-c", LEFT, "sh", str(job.number), user="root", node=node).stdout

    def play_survived(self, faults: Sequence[Fault], results: dict[str, Future[None]]) -> None:
        """All rows that leave the coordinator as it was, in one job."""
        job = self.submit("survived", "exec python3 ring.py 5000 0.1 3")
        try:
            self.release(job)
            job.wait_output("^5 ", 120)
            for fault in faults:
                with _into(results[fault.name]):
                    before = len(job.output().splitlines())
                    self.order(fault, job)
                    refused = self.checkpoint(job)
                    self.take_back(fault, job)
                    assert refused != "" and "no answer" not in refused, refused
                    assert self.happened(fault, job)
                    assert self.checkpoint(job) == ""
                    wait_for("a further line", lambda before=before: len(job.output().splitlines()) > before)  # type: ignore[misc]
            lines = [line for line in job.output().splitlines() if not line.startswith("slurmckpt: checkpoint skipped")]
            expected = ring(len(lines), 3)
            assert lines == expected, _difference(lines, expected)
            assert len(job.status()["attempts"]) == 1
            job.cancel()
            assert job.wait_end().split()[0] == "CANCELLED"
            self.clean(job)
        finally:
            job.cancel()


def _without_beginning(lines: list[str], expected: Sequence[str]) -> list[str]:
    """What follows after the beginning of what is expected, when all of it follows."""
    begin = len(lines) - len(expected)
    return lines[begin:] if begin > 0 and lines[:begin] == list(expected[:begin]) else lines


def _difference(found: Sequence[str], expected: Sequence[str]) -> str:
    wrong = next((i for i, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), -1)
    return f"{len(found)} lines, expected {len(expected)}; first difference at {wrong}: {found[wrong][:60] if found else ''}"


@contextlib.contextmanager
def _into(result: Future[None]) -> Iterator[None]:
    """The outcome of the block is that of the future; the next block is entered whatever it was."""
    try:
        yield
    except BaseException as error:
        result.set_exception(error)
    else:
        result.set_result(None)


@pytest.fixture(scope="module")
def played(running_cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[dict[str, Future[None]]]:
    """By name, the outcome of each row that is wanted."""
    cluster = running_cluster
    wanted = {
        item.callspec.params["fault"].name
        for item in request.session.items
        if hasattr(item, "callspec") and "fault" in item.callspec.params
    }
    cluster.all_idle()
    stage = Stage(cluster, cluster.directory("faults"))
    settings = cluster.root("ctl", f"cat {SETTINGS}").stdout
    cluster.run("sh", "-c", f"cat >{SETTINGS}", user="root", node="ctl", stdin=settings + QUICK)
    stage.everywhere(f"rm -rf {ORDERS}; mkdir -m 755 {ORDERS}")
    load = [
        cluster.submit(
            script,
            f"--nodelist={node}",
            "--checkpoint-interval=3s",
            "--mem=300",
            name=f"load{number}",
            directory=stage.directory,
        )
        for number, (script, node) in enumerate(zip(LOAD, NODES, strict=True))
    ]
    try:
        for job in load:
            job.wait_checkpoints(1)
        shared = {fault.name: Future[None]() for fault in SURVIVED if fault.name in wanted}
        with ThreadPoolExecutor(AT_ONCE) as executor:
            results = dict(shared)
            if shared:
                results["survived"] = executor.submit(
                    stage.play_survived, [f for f in SURVIVED if f.name in wanted], shared
                )
            for fault in FAULTS:
                if fault.name in wanted and fault.name not in shared:
                    results[fault.name] = executor.submit(stage.play, fault)
            yield results
        for job, expected in zip(load, (ring(5000, 3), chain(5000)), strict=True):
            lines = job.output().splitlines()
            assert lines == expected[: len(lines)] and len(job.status()["attempts"]) == 1
    finally:
        for job in load:
            job.cancel()
        cluster.run("sh", "-c", f"cat >{SETTINGS}", user="root", node="ctl", stdin=settings)
        stage.everywhere(f"rm -rf {ORDERS}")
        cluster.all_idle()
        assert_clean(cluster, *NODES)
        assert [cluster.root(node, STOPPED).stdout for node in NODES] == ["", ""]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, marks=pytest.mark.soak if fault.name in THOROUGH else (), id=fault.name) for fault in FAULTS],
)
def test_fault(played: dict[str, Future[None]], fault: Fault) -> None:
    """One row of the table."""
    if fault in SURVIVED and played["survived"].done():
        played["survived"].result()
    played[fault.name].result()
