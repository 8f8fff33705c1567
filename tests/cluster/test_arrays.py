"""Every task of an array by itself, never the whole array."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster, Job, chain, drained, restored_from, wait_for

INFINITE = "--checkpoint-interval=infinite"
STEPS = 50


@pytest.fixture
def array(cluster: Cluster, directory: Path) -> Iterator[Job]:
    """An array of three tasks that run."""
    # However slow this machine is, no task ends before the test has done its part.
    script = f"python3 chain.py {STEPS} 0.1 own.$SLURM_ARRAY_TASK_ID; until [ -e go ]; do sleep 0.1; done"
    job = cluster.submit(script, INFINITE, "--array=1-3", "--mem=500", directory=directory)
    wait_for("all tasks to run", lambda: len(job.tasks()) == 3 and all(task.output() for task in job.tasks().values()))
    yield job
    job.cancel()


def wait_attempt(job: Job, count: int) -> None:
    """Wait until so many incarnations have begun."""
    wait_for(f"attempt {count} of {job.name}", lambda: len(job.status()["attempts"]) == count)


def test_one_task_is_requeued_and_restored_and_no_other(cluster: Cluster, array: Job, directory: Path) -> None:
    """Task by task; that with the array's own number, too: the whole array has the same."""
    tasks = array.tasks()
    assert array.number in {task.number for task in tasks.values()}
    cluster.run("slurmckpt", "checkpoint", str(array.number))
    requeued = [number for number, task in tasks.items() if task.number == array.number]
    requeued.append(next(number for number in tasks if number not in requeued))
    for number in requeued:
        tasks[number].wait_output("^20 ")
        with drained(cluster, [tasks[number].node()]):
            tasks[number].requeue()
            wait_attempt(tasks[number], 2)
            assert restored_from(tasks[number]) == 1
    (directory / "go").touch()
    for number, task in tasks.items():
        assert task.wait_end() == "COMPLETED", task.output()
        assert task.output().splitlines() == chain(STEPS)
        assert (directory / f"own.{number}").read_text().splitlines() == chain(STEPS)
        assert task.info()["restart_cnt"] == (1 if number in requeued else 0)
        assert len(task.status()["attempts"]) == (2 if number in requeued else 1)


def test_all_tasks_are_requeued_when_the_user_says_the_array(cluster: Cluster, array: Job, directory: Path) -> None:
    """And each goes on from its own checkpoint."""
    tasks = array.tasks()
    done = cluster.run("slurmckpt", "checkpoint", str(array.number))
    assert sorted(line.split(":")[0] for line in done.stdout.splitlines()) == [
        f"job {name}" for name in sorted(task.name for task in tasks.values())
    ]
    cluster.run("scontrol", "requeue", str(array.number))
    for task in tasks.values():
        wait_attempt(task, 2)
        assert restored_from(task) == 1
    (directory / "go").touch()
    for task in tasks.values():
        assert task.wait_end() == "COMPLETED", task.output()
        assert task.output().splitlines() == chain(STEPS)


def test_the_node_feature_goes_to_the_right_task(cluster: Cluster, array: Job) -> None:
    """AdminComment and constraint, of the task with the array's own number, which an update by number would miss."""
    for node in ("n1", "n2"):
        cluster.run("slurmckpt", "node", "register", user="root", node=node)
    tasks = array.tasks()
    number = next(number for number, task in tasks.items() if task.number == array.number)
    tasks[number].checkpoint()
    noted = wait_for("the AdminComment", lambda: tasks[number].info()["admin_comment"])
    feature = noted.removeprefix("slurmckpt:feature=")
    tasks[number].requeue()
    wait_attempt(tasks[number], 2)
    assert restored_from(tasks[number]) == 1
    assert tasks[number].info()["features"] == f"({feature})"
    for other in set(tasks) - {number}:
        assert tasks[other].info()["admin_comment"] == tasks[other].info()["features"] == ""
        assert tasks[other].info()["restart_cnt"] == 0


def test_names_as_slurm_users_write_them(cluster: Cluster, array: Job, directory: Path) -> None:
    """One task by its name, all by the array's number, and each by its raw id."""
    tasks = array.tasks()
    for task in tasks.values():
        done = cluster.run("slurmckpt", "checkpoint", task.name)
        assert done.stdout.startswith(f"job {task.name}: checkpoint #1 committed, ")
        done = cluster.run("slurmckpt", "status", task.name)
        assert f"job {task.name} ({task.number}) of alice" in done.stdout
    done = cluster.run("slurmckpt", "status", str(array.number))
    assert sorted(line.split()[1] for line in done.stdout.splitlines() if line.startswith("job ")) == sorted(
        task.name for task in tasks.values()
    )
    listed = cluster.run("slurmckpt", "status").stdout.splitlines()
    for task in tasks.values():
        (line,) = [line for line in listed if line.split()[:1] == [task.name]]
        assert line.split()[1:6] == ["job.sh", "RUNNING", task.node(), "1", "1"]
    done = cluster.run("slurmckpt", "checkpoint", f"{array.number}_4", check=False)
    assert (done.returncode, done.stderr.strip()) == (1, f"Error: Slurm knows no job {array.number}_4")
    other = cluster.run("slurmckpt", "checkpoint", f"{array.number}_1", user="bob", check=False)
    assert (other.returncode, other.stderr.strip()) == (
        1,
        f"Error: job {array.number}_1 belongs to alice; only root and its owner may do that",
    )
