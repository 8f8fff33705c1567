"""Each process of a job gets each signal exactly as often as it would without us, by whichever way Slurm sends it.

The reference is the same job with --checkpoint-interval=off, on the same cluster: what reaches the children of a task
differs between proctrack/cgroup (nothing) and proctrack/linuxproc (everything). SLURMCKPT_PROCTRACK chooses.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.cluster.harness import TREE, Cluster, Job, move, restored_from, wait_for

Tallies = dict[str, list[str]]
Send = Callable[[Cluster, int, str], object]

# A batch script whose own process counts, and so does what its srun starts.
WITH_STEP = "exec ./tally batch 'exec srun -n2 ./tally rank.'"
ALONE = "exec ./tally batch"
RANKS = ("rank.0", "rank.1")

WAYS: dict[str, Send] = {
    "step": lambda cluster, job, signal: cluster.run("scancel", "-s", signal, f"{job}.0"),
    "steps": lambda cluster, job, signal: cluster.run("scancel", "-s", signal, str(job)),
    "batch": lambda cluster, job, signal: cluster.run("scancel", "--batch", "-s", signal, str(job)),
    "full": lambda cluster, job, signal: cluster.run("scancel", "--full", "-s", signal, str(job)),
    "ctld": lambda cluster, job, signal: cluster.run("scancel", "--ctld", "-s", signal, str(job)),
}


@pytest.fixture
def directory(directory: Path, cluster: Cluster) -> Path:
    """With the program that counts."""
    cluster.run("sh", "-c", f"cd {directory.name} && gcc -O2 -o tally tally.c")
    return directory


def place(cluster: Cluster, directory: Path, name: str) -> Path:
    """A directory for one of the jobs that are compared."""
    cluster.run("sh", "-c", f"mkdir {directory.name}/{name} && cp {directory.name}/tally {directory.name}/{name}")
    return directory / name


def read(where: Path) -> Tallies:
    """What each process has got."""
    return {path.name.removesuffix(".tally"): path.read_text().split() for path in sorted(where.glob("*.tally"))}


def await_ready(where: Path, *names: str) -> None:
    """Wait until these processes, and a child of each, count."""
    wait_for(f"{names} ready", lambda: all((where / f"{name}.ready").exists() for name in names))


def await_last(where: Path, name: str, signal: str) -> None:
    """Wait until a process has got the signal; what was sent before by the same way has come then."""
    wait_for(lambda: f"{signal} at {name}: {read(where)}", lambda: signal in read(where)[name])


def counted(
    cluster: Cluster, directory: Path, option: str, script: str, way: Send, restore: bool, wanted: Tallies | None = None
) -> Tallies:
    """What comes of USR1, sent twice, and USR2. wanted: what is waited for, however long it takes."""
    where = place(cluster, directory, option)
    watched = ("batch", *RANKS) if script == WITH_STEP else ("batch",)
    job = cluster.submit(script, f"--checkpoint-interval={option}", "--ntasks=2", directory=where)
    await_ready(where, *watched)
    if restore:
        job.checkpoint()
        move(job, job.node())
        restored_from(job)
    for signal in ("USR1", "USR1", "USR2"):
        before, began = read(where), time.monotonic()
        way(cluster, job.number, signal)
        # Whoever gets it first: two of one kind that are pending at once are one (signal(7)).
        wait_for(f"{signal}: {before}", lambda before=before: read(where) != before)  # type: ignore[misc]
        settle(where, time.monotonic() - began)
    if wanted is not None and read(where) != wanted:
        with suppress(AssertionError):
            wait_for("the rest", lambda: read(where) == wanted, 60)
        settle(where)
    found = read(where)
    (where / "stop").touch()
    assert job.wait_end() == "COMPLETED", job.output()
    return found


def settle(where: Path, took: float = 0.0) -> None:
    """Wait until nothing comes any more. That can only be waited for in time: five times what one signal takes.

    took: seconds from the command until the first has come. Where the machine is busy the others take long, too.
    """
    last, since = read(where), time.monotonic()
    while time.monotonic() - since < max(1.5, 2 * took):
        time.sleep(0.1)
        if (now := read(where)) != last:
            last, since = now, time.monotonic()


@pytest.mark.parametrize("way", WAYS)
def test_scancel(cluster: Cluster, directory: Path, way: str) -> None:
    """The batch script and the two ranks of its step, and a child of each."""
    wanted = counted(cluster, directory, "off", WITH_STEP, WAYS[way], False)
    assert any("USR1" in got for got in wanted.values())
    assert counted(cluster, directory, "infinite", WITH_STEP, WAYS[way], False, wanted) == wanted


@pytest.mark.parametrize("way", ["batch", "full"])
def test_scancel_of_a_restored_job(cluster: Cluster, directory: Path, way: str) -> None:
    """The restored script gets what the one that was started gets."""
    wanted = counted(cluster, directory, "off", ALONE, WAYS[way], False)
    assert wanted["batch"] == ["USR1", "USR1", "USR2"]
    assert counted(cluster, directory, "infinite", ALONE, WAYS[way], True, wanted) == wanted


@contextmanager
def signals_to_all(cluster: Cluster) -> Iterator[None]:
    """SignalChildrenProcesses: proctrack/cgroup signals every process of a step."""
    edit = "sed -i '/^SignalChildrenProcesses/d' /etc/slurm/cgroup.conf; {}; scontrol reconfigure"
    cluster.root("ctl", edit.format("echo SignalChildrenProcesses=yes >>/etc/slurm/cgroup.conf"))
    cluster.all_idle()
    try:
        yield
    finally:
        cluster.root("ctl", edit.format("true"))
        cluster.all_idle()


@pytest.mark.parametrize("way", ["step", "batch", "full"])
def test_scancel_where_slurm_signals_every_process(cluster: Cluster, directory: Path, way: str) -> None:
    """Then the ranks in the pod have their signal from Slurm itself, and must not get it from us too."""
    with signals_to_all(cluster):
        wanted = counted(cluster, directory, "off", WITH_STEP, WAYS[way], False)
        found = counted(cluster, directory, "infinite", WITH_STEP, WAYS[way], False, wanted)
    if way == "step":
        assert wanted["rank.0.child"] == ["USR1", "USR1", "USR2"], "the setting has no effect"
    assert found == wanted


@pytest.mark.parametrize("restore", [False, True], ids=["fresh", "restored"])
def test_scancel_gives_the_ranks_killwait_to_end(cluster: Cluster, directory: Path, restore: bool) -> None:
    """SIGCONT and SIGTERM, and after KillWait SIGKILL."""

    def ended(option: str) -> tuple[Tallies, str]:
        where = place(cluster, directory, option)
        job = cluster.submit(WITH_STEP, f"--checkpoint-interval={option}", "--ntasks=2", directory=where)
        await_ready(where, "batch", *RANKS)
        if restore and option != "off":
            job.checkpoint()
            move(job, job.node())
            restored_from(job)
        job.cancel()
        state = job.wait_end().split()[0]
        found = read(where)
        if restore:
            # The script was not captured: it has begun anew, and its srun too.
            del found["batch"], found["batch.child"]
        return {name: sorted(got) for name, got in found.items()}, state

    wanted = ended("off")
    assert wanted[1] == "CANCELLED" and wanted[0]["rank.0"].count("TERM") >= 1
    assert ended("infinite") == wanted


def test_signals_before_the_time_limit(cluster: Cluster, directory: Path) -> None:
    """--signal to the steps and with B: to the script alone, and then the end by the limit; four jobs side by side."""
    scripts = {"steps": (WITH_STEP, "USR1@45"), "script": (ALONE, "B:USR1@45")}
    jobs: dict[tuple[str, str], tuple[Job, Path]] = {}
    for kind, (script, signal) in scripts.items():
        for option in ("off", "infinite"):
            where = place(cluster, directory, f"{kind}-{option}")
            # Otherwise the limit is not the end of it (recovery from timelimit).
            ours = (f"--checkpoint-interval={option}", "--checkpoint-recover=nodefail")
            options = (*ours, f"--signal={signal}", "--time=10", "--ntasks=2")
            jobs[kind, option] = cluster.submit(script, *options, directory=where), where
    for (kind, _), (job, where) in jobs.items():
        await_ready(where, "batch", *(RANKS if kind == "steps" else ()))
        # Slurm looks every 30 s, and sends what is due by the next time: with this limit from the beginning it may do so
        # before there is anybody.
        cluster.root("ctl", f"scontrol update JobId={job.number} TimeLimit=1")
    states = {key: job.wait_end(300) for key, (job, _) in jobs.items()}
    assert set(states.values()) == {"TIMEOUT"}
    found = {key: {name: sorted(got) for name, got in read(where).items()} for key, (_, where) in jobs.items()}
    assert found["steps", "off"]["rank.0"].count("USR1") == 1
    assert found["script", "off"]["batch"].count("USR1") == 1
    for kind in scripts:
        assert found[kind, "infinite"] == found[kind, "off"]


def test_ctrl_c_on_an_srun_from_the_login_node(cluster: Cluster, directory: Path) -> None:
    """Twice within a second, as srun asks for: the first only shows the state of the tasks."""

    def interrupted(option: str) -> Tallies:
        where = place(cluster, directory, option)
        done = cluster.run("salloc", "--no-shell", "--ntasks=2", f"--checkpoint-interval={option}", "true", check=False)
        number = done.stderr.split("job allocation ")[1].split()[0]
        srun = f"cd {where.relative_to(cluster.home)} && echo $$ >pid && exec srun --jobid={number} -n2 ./tally rank. 2>srun.log"
        command = [str(TREE / "sandbox/cluster"), "run", "--user", "alice", "--node", "login", "--", "sh", "-c", srun]
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as run:
            await_ready(where, *RANKS)
            pid = (where / "pid").read_text().strip()
            log = where / "srun.log"
            while "sending Ctrl-C" not in (said := log.read_text()):
                cluster.run("kill", "-INT", pid)
                wait_for("srun to answer", lambda said=said: log.read_text() != said)  # type: ignore[misc]
            for rank in RANKS:
                await_last(where, rank, "INT")
            settle(where)
            found = read(where)
            (where / "stop").touch()
            run.communicate(timeout=60)
        cluster.run("scancel", number)
        return found

    wanted = interrupted("off")
    assert wanted["rank.0"].count("INT") == 1
    assert interrupted("infinite") == wanted
