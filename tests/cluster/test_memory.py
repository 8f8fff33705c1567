"""Shared memory of every kind, and what else lives in /dev/shm or in the IPC namespace, through checkpoints and moves."""

from __future__ import annotations

from pathlib import Path

from tests.cluster import looks
from tests.cluster.harness import Cluster


def test_system_v_objects(cluster: Cluster, directory: Path) -> None:
    """Ids, keys, content, and a segment that is removed but attached."""
    looks.build(cluster, directory, "sysv")
    told = looks.go_through(cluster, directory, {"sysv": "./sysv"})["sysv"]
    looks.same(told)
    assert told.last == [
        "message type=3 length=0 first=-",
        "message type=2 length=8192 first=b",
        "message type=1 length=20 first=c",
        "errno 1",
        "removed is gone 1",
        "done",
    ]


def test_what_semaphores_have_to_undo(cluster: Cluster, directory: Path) -> None:
    """SEM_UNDO of processes with and without threads: their ends undo what they have done, and no more."""
    looks.build(cluster, directory, "undo")
    told = looks.go_through(cluster, directory, {"undo": "./undo"})["undo"]
    values = [10] * 40
    values[4:6] = [5, 32767]
    now = {0: 9, 1: 11, 2: 0, 39: 17, 10: 8, 11: 32010, 20: 6}
    undone = {"": [], "with threads: ": [0, 1, 2, 39], "without: ": [10, 11], "waiting: ": [20]}
    lines = []
    for who, numbers in undone.items():
        now = {number: value for number, value in now.items() if number not in numbers}
        lines.append(f"{who}values " + " ".join(str(now.get(number, one)) for number, one in enumerate(values)))
    assert looks.same(told) == lines[:1]
    assert told.last == lines[1:]


def test_python_multiprocessing(cluster: Cluster, directory: Path) -> None:
    """Queues, pools, managers, named and unlinked semaphores, shared memory; started in each of the three ways."""
    commands = {method: f"python3 multi.py {method}" for method in ("fork", "forkserver", "spawn")}
    for one in looks.go_through(cluster, directory, commands).values():
        looks.same(one)
        assert one.last == ["done 5 5000 0"]


def test_posix_shared_memory_and_semaphores(cluster: Cluster, directory: Path) -> None:
    """In the script and in two steps at once, which share /dev/shm: named, unlinked, mapped only, memfd; robust locks."""
    looks.build(cluster, directory, "posix")
    commands = {"a": "srun -n1 --exact ./posix a", "b": "srun -n1 --exact ./posix b", "c": "./posix c"}
    told = looks.go_through(cluster, directory, commands, "--ntasks=2")
    for one in told.values():
        looks.same(one)
        kinds = ("named", "unlinked", "mapped only", "anonymous", "memfd", "sealed")
        assert one.last == [f"{kind} owner died 1" for kind in kinds]
    assert looks.same(told["a"]) == looks.same(told["b"]) == looks.same(told["c"])


def test_system_v_objects_after_a_crash(cluster: Cluster, directory: Path) -> None:
    """A restore in the same pod, where the objects of before are still there, and have changed."""
    looks.build(cluster, directory, "sysv")
    commands = {"sysv": "srun -n1 ./sysv"}
    job = looks.start(cluster, directory, commands)
    looks.look(directory, commands, 0)
    job.checkpoint()
    cluster.root(job.node(), "pkill -SEGV -x sysv")
    looks.look(directory, commands, 1)
    told = looks.finish(job, directory, commands)["sysv"]
    looks.same(told)
    assert told.last[-2:] == ["removed is gone 1", "done"]
    assert len(job.status()["attempts"]) == 1
