"""Who may die when, and what the others do then."""

from __future__ import annotations

import contextlib
import os
import pty
import resource
import signal
import struct
import subprocess
from pathlib import Path

import pytest

from tests.unit.awaiting import wait_until
from tests.unit.pod.harness import POD, FakeCoordinator, children, open_files, process_exists, shell

pytestmark = pytest.mark.root

GONE = "slurmckpt: the coordinator is gone, this task runs without checkpoints\n"


def test_coordinator_gone_before_start(coordinator: FakeCoordinator) -> None:
    shim = coordinator.shim(shell("echo ran"))
    shim.wire.close()
    code, out, err = shim.finish()
    assert (code, out) == (0, "ran\n")
    assert err in (
        GONE,
        "slurmckpt: this task runs without checkpoints: cannot reach the coordinator: Broken pipe\n",
        "slurmckpt: this task runs without checkpoints: cannot reach the coordinator: Connection reset by peer\n",
    )


def test_coordinator_gone_before_run(coordinator: FakeCoordinator) -> None:
    shim = coordinator.started_shim(shell("echo ran"))
    shim.wire.close()
    assert shim.finish() == (0, "ran\n", GONE)


def test_end_of_connection_after_run_is_a_killed_pod(coordinator: FakeCoordinator, scratch: Path) -> None:
    shim = coordinator.started_shim(shell(f"touch {scratch}/ran"))
    shim.wire.send("RUN")
    shim.wire.close()
    assert shim.finish() == (-signal.SIGKILL, "", "")
    assert not (scratch / "ran").exists()


def test_say_then_direct(coordinator: FakeCoordinator) -> None:
    shim = coordinator.started_shim(shell("echo ran"))
    shim.wire.send("SAY", text="slurmckpt: cold start\x1b[31m\nbecause")
    shim.wire.send("DIRECT")
    assert shim.finish() == (0, "ran\n", "slurmckpt: cold start?[31m?because\n")


def test_direct_task_is_left_alone(coordinator: FakeCoordinator) -> None:
    """The very same process, with nothing of ours in it."""
    shim = coordinator.started_shim(shell("echo $$; ls -l /proc/$$/fd | grep -c -e socket -e memfd; exit 7"))
    shim.wire.send("DIRECT")
    assert shim.finish() == (7, f"{shim.process.pid}\n0\n", "")


def test_status_of_a_finished_task(coordinator: FakeCoordinator) -> None:
    shim = coordinator.started_shim(shell("echo ran"))
    shim.wire.send("EXIT", status=42 << 8)
    assert shim.finish() == (42, "", "")


def test_say_while_it_runs_goes_to_the_first_task_that_runs(coordinator: FakeCoordinator) -> None:
    pod, (first, second) = coordinator.run(shell("exit 0"), shell("read x; exit 0"), stdin=subprocess.PIPE)
    first.finish()
    pod.expect("EXITED")
    pod.wire.send("SAY", text="slurmckpt: checkpoint #3")
    pod.wire.send("SYNC")
    pod.expect("SYNCED")
    assert second.finish() == (0, "", "slurmckpt: checkpoint #3\n")


def test_sync_comes_after_the_ends_before_it(coordinator: FakeCoordinator) -> None:
    pod, (first, second) = coordinator.run(shell("exit 3"), shell("exec sleep 1000"))
    assert first.finish()[0] == 3
    pod.wire.send("SYNC")
    exited = pod.wire.expect("EXITED")
    assert (exited.number("index"), exited.number("status")) == (0, 3 << 8)
    pod.wire.expect("SYNCED")
    assert second.process.poll() is None


def test_tasks_outlive_the_coordinator(coordinator: FakeCoordinator) -> None:
    pod, (shim,) = coordinator.run(shell("trap 'exit 8' USR1; while :; do sleep 0.01; done"))
    task = pod.outer_pid(shim.pid_inside)
    wait_until(lambda: bool(children(task)), "the script has reached its loop")
    pod.wire.close()
    shim.signal(signal.SIGUSR1)
    assert shim.finish()[0] == 8
    pod.wait_gone()


def test_coordinator_gone_before_go(coordinator: FakeCoordinator) -> None:
    shim = coordinator.started_shim(shell("echo ran"))
    pod = coordinator.pod(shim)
    pod.announce([shim])
    shim.wire.close()
    pod.wire.close()
    assert shim.finish() == (0, "ran\n", GONE)
    pod.wait_gone()


def test_killed_shim_kills_its_task_only(coordinator: FakeCoordinator) -> None:
    pod, (first, second) = coordinator.run(shell("exec sleep 1000"), shell("exec sleep 1000"))
    task = pod.outer_pid(first.pid_inside)
    first.process.kill()
    exited = pod.expect("EXITED")
    assert (exited.number("index"), exited.number("status")) == (0, signal.SIGKILL)
    assert not process_exists(task)
    assert second.process.poll() is None
    second.process.kill()
    pod.expect("DONE")
    pod.wait_gone()


def test_all_shims_gone_before_go_ends_the_pod(coordinator: FakeCoordinator, scratch: Path) -> None:
    shim = coordinator.started_shim(shell(f"touch {scratch}/ran"))
    pod = coordinator.pod(shim)
    pod.announce([shim])
    shim.wire.close()
    shim.process.kill()
    pod.expect("DONE")
    pod.wait_gone()
    assert not (scratch / "ran").exists()


def test_shim_killed_before_go_kills_its_task_at_the_start(coordinator: FakeCoordinator) -> None:
    shims = [coordinator.started_shim(shell("exec sleep 1000")) for _ in range(2)]
    pod = coordinator.pod(shims[0])
    pod.announce(shims)
    shims[0].process.kill()
    shims[0].process.wait()
    pod.go(shims)
    exited = pod.expect("EXITED")
    assert (exited.number("index"), exited.number("status")) == (0, signal.SIGKILL)
    assert shims[1].process.poll() is None


def test_killed_leader_takes_its_tasks_along(coordinator: FakeCoordinator) -> None:
    pod, (first, second, third) = coordinator.run(shell("exec sleep 1000"), shell("exec sleep 1000"), shell("exit 3"))
    assert third.finish()[0] == 3
    tasks = [pod.outer_pid(shim.pid_inside) for shim in (first, second)]
    os.kill(pod.leader_pid(), signal.SIGKILL)
    for shim in (first, second):
        code, _, err = shim.finish()
        assert code == -signal.SIGKILL
        assert err == "slurmckpt: the task is killed: the leader of the pod was killed by signal 9\n"
    ends = {message.number("index"): message.number("status") for message in (pod.expect("EXITED") for _ in range(3))}
    assert ends == {0: 9, 1: 9, 2: 3 << 8}
    pod.expect("DONE")
    assert not any(process_exists(task) for task in tasks)


def test_killed_pod_init_is_seen_by_the_shims(coordinator: FakeCoordinator) -> None:
    pod, (shim,) = coordinator.run(shell("exec sleep 1000"))
    task = pod.outer_pid(shim.pid_inside)
    os.kill(pod.pid, signal.SIGKILL)
    assert shim.finish()[0] == -signal.SIGKILL
    pod.wait_gone()
    assert not process_exists(task)


def test_a_stuck_coordinator_stops_nobody(coordinator: FakeCoordinator) -> None:
    """Nobody reads the notes: thousands of signals and the end still go through."""
    pod, (shim,) = coordinator.run(shell("trap '' USR1; trap 'exit 9' TERM; while :; do sleep 0.01; done"))
    wait_until(lambda: bool(children(pod.outer_pid(shim.pid_inside))), "the script has reached its loop")
    for _ in range(5000):
        shim.signal(signal.SIGUSR1)
    shim.signal(signal.SIGTERM)
    assert shim.finish()[0] == 9
    pod.expect("EXITED")


def test_a_stopped_shim_gets_its_status_later(coordinator: FakeCoordinator) -> None:
    pod, (shim,) = coordinator.run(shell("exec sleep 1000"))
    shim.signal(signal.SIGSTOP)
    for _ in range(100):
        pod.wire.send("SAY", text="x" * 3000)
    os.kill(pod.outer_pid(shim.pid_inside), signal.SIGTERM)
    pod.expect("DONE")
    pod.wait_gone()
    shim.signal(signal.SIGCONT)
    code, _, err = shim.finish()
    assert code == -signal.SIGTERM
    assert set(err.splitlines()) == {"x" * 3000}


def test_kill_and_start_again_in_the_same_pod(coordinator: FakeCoordinator) -> None:
    pod, (old,) = coordinator.run(shell("setsid sleep 1000 & exec sleep 1000"))
    kept = [pod.outer_pid(old.pid_inside), pod.leader_pid()]
    pod.wire.send("KILL")
    pod.expect("KILLED")
    assert not children(pod.pid) and not any(process_exists(pid) for pid in kept)
    assert old.process.poll() is None, "the shim waits for what comes next"
    assert all(note.verb != "EXITED" for note in pod.notes)
    fresh = coordinator.started_shim(shell("cut -d' ' -f1 /proc/$$/stat; exit 4"))
    pod.lead([fresh])
    assert fresh.finish() == (4, "101\n", "")
    assert old.finish()[0] == -signal.SIGKILL, "it was not announced again, and its pod is gone"


def test_kill_reports_ends_from_before(coordinator: FakeCoordinator) -> None:
    pod, (first, second) = coordinator.run(shell("exit 5"), shell("exec sleep 1000"))
    assert first.finish()[0] == 5
    pod.wire.send("KILL")
    pod.expect("KILLED")
    assert [(note.number("index"), note.number("status")) for note in pod.notes if note.verb == "EXITED"] == [
        (0, 5 << 8)
    ]
    pod.wire.close()
    assert second.finish()[0] == -signal.SIGKILL
    pod.wait_gone()


def test_kill_of_an_empty_pod(coordinator: FakeCoordinator) -> None:
    shim = coordinator.started_shim(shell("exit 2"))
    pod = coordinator.pod(shim)
    pod.wire.send("KILL")
    pod.expect("KILLED")
    pod.lead([shim])
    assert shim.finish()[0] == 2


def test_a_terminal_is_never_handed_over(coordinator: FakeCoordinator) -> None:
    """The coordinator is told, and says what there is to say: once for all tasks of a job that have one."""
    primary, secondary = pty.openpty()
    try:
        for line in ("slurmckpt: because of its terminal", ""):
            shim = coordinator.shim(shell("echo ran"), stdin=secondary)
            message = shim.wire.expect("TERMINAL")
            assert (message.values, message.fds) == ({"v": "1"}, ())
            if line:
                shim.wire.send("SAY", text=line)
            shim.wire.send("DIRECT")
            assert shim.finish() == (0, "ran\n", f"{line}\n" if line else "")
    finally:
        os.close(primary)
        os.close(secondary)


def test_a_terminal_and_no_coordinator(coordinator: FakeCoordinator) -> None:
    primary, secondary = pty.openpty()
    try:
        shim = coordinator.shim(shell("echo ran"), stdin=secondary)
        shim.wire.expect("TERMINAL")
        shim.wire.close()
        status, output, errors = shim.finish()
        assert (status, output, errors.count("\n")) == (0, "ran\n", 1)
        assert errors.startswith("slurmckpt: ")
    finally:
        os.close(primary)
        os.close(secondary)


def open_many(count: int) -> None:
    for _ in range(count):
        os.set_inheritable(os.open("/dev/null", os.O_RDONLY), True)


@pytest.mark.parametrize(("more", "handed_over"), [(237, True), (238, False)])
def test_too_many_descriptors(coordinator: FakeCoordinator, more: int, handed_over: bool) -> None:
    shim = coordinator.shim(shell("echo ran"), before_exec=lambda: open_many(more), close_fds=False)
    if handed_over:
        shim.start()
        assert len(shim.fds) == 241
        coordinator.pod(shim).lead([shim])
        assert shim.finish() == (0, "ran\n", "")
    else:
        code, out, err = shim.finish()
        assert (code, out) == (0, "ran\n")
        assert err == (
            "slurmckpt: this task runs without checkpoints: 241 open descriptors, at most 240 can be handed over\n"
        )


def test_a_deleted_directory_is_not_handed_over(coordinator: FakeCoordinator, scratch: Path) -> None:
    place = scratch / "gone"
    place.mkdir()
    shim = coordinator.shim(shell("echo ran"), cwd=place, before_drop=lambda: os.rmdir(place))
    code, out, err = shim.finish()
    assert (code, out) == (0, "ran\n")
    assert err.startswith("slurmckpt: this task runs without checkpoints: the working directory cannot be named")


@pytest.mark.parametrize("hard", [16, resource.RLIM_INFINITY])
def test_file_size_limit(coordinator: FakeCoordinator, hard: int) -> None:
    """The payload is a file too: the soft limit must not stop it; where the hard one would, the task runs by itself."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))

    shim = coordinator.shim(shell("ulimit -f"), before_exec=limit, stdout=subprocess.PIPE)
    if hard == 16:
        code, out, err = shim.finish()
        assert (code, out) == (0, "0\n")
        assert "the file size limit (ulimit -f) is below the" in err
    else:
        shim.start()
        coordinator.pod(shim).lead([shim])
        assert shim.finish() == (0, "0\n", "")


def test_nothing_of_the_shim_is_left_open_while_it_stands_in(coordinator: FakeCoordinator) -> None:
    _, (shim,) = coordinator.run(shell("exec sleep 1000"))
    pid = shim.process.pid
    wait_until(lambda: any("signalfd" in link for link in open_files(pid).values()), "the shim stands in")
    links = list(open_files(pid).values())
    # the connection, the signals, and of each relayed stream the task's pipe and the original one
    assert links[:3] == ["/dev/null"] * 3
    kinds = [link.split(":")[0] for link in links[3:]]
    assert sorted(kinds) == ["anon_inode", "pipe", "pipe", "pipe", "pipe", "socket"]
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert Path(f"/proc/{pid}/comm").read_text() == "slurmckpt-shim\n"


def test_readers_of_the_tasks_output_see_its_end_while_the_shim_stands_in(coordinator: FakeCoordinator) -> None:
    _, (shim,) = coordinator.run(shell("exec >/dev/null; exec sleep 1000"))
    assert shim.process.stdout is not None
    assert shim.process.stdout.read() == b"", "only the task holds its standard output"


def test_pod_init_as_seen_from_outside(coordinator: FakeCoordinator) -> None:
    pod, _ = coordinator.run(shell("exec sleep 1000"))
    links = list(open_files(pod.pid).values())
    assert links[:3] == ["/dev/null"] * 3
    assert not [link for link in links if link.startswith("/") and link != "/dev/null"]
    for name in ("pid", "mnt", "ipc"):
        assert os.readlink(f"/proc/{pod.pid}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}")
    for name in ("net", "uts", "user"):
        assert os.readlink(f"/proc/{pod.pid}/ns/{name}") == os.readlink(f"/proc/self/ns/{name}")
    with contextlib.suppress(ProcessLookupError):
        os.kill(pod.pid, signal.SIGTERM)
    pod.wire.send("SYNC")
    pod.expect("SYNCED")


def test_the_oom_adjustment_is_the_shims(coordinator: FakeCoordinator) -> None:
    shim = coordinator.started_shim(
        shell("cat /proc/self/oom_score_adj"), before_drop=lambda: Path("/proc/self/oom_score_adj").write_text("321")
    )
    coordinator.pod(shim).lead([shim])
    assert shim.finish()[1] == "321\n"


def test_leader_that_cannot_be_executed(coordinator: FakeCoordinator) -> None:
    shim = coordinator.started_shim(shell("echo ran"))
    pod = coordinator.pod(shim)
    pod.wire.send("LEADER", path="/no/such/leader", uid=1, gid=1, groups="", ntasks=1, pid=100)
    assert pod.expect("FAILED").values["reason"] == (
        "cannot execute the leader /no/such/leader: No such file or directory"
    )
    pod.wait_gone()
    shim.wire.send("DIRECT")
    assert shim.finish() == (0, "ran\n", "")


def test_leader_that_ends_at_once(coordinator: FakeCoordinator) -> None:
    shim = coordinator.started_shim(shell("true"))
    pod = coordinator.pod(shim)
    pod.wire.send("LEADER", path="/bin/false", uid=1, gid=1, groups="", ntasks=1, pid=100)
    assert pod.expect("FAILED").values["reason"] == "the leader of the pod ended with exit code 1"
    pod.wait_gone()


def test_programs_are_static() -> None:
    interpreter = 3  # PT_INTERP
    for name in ("shim", "pod-init", "leader", "enter", "srun", "launcher"):
        image = (POD / name).read_bytes()
        offset, size, count = struct.unpack_from("=Q", image, 32) + struct.unpack_from("=HH", image, 54)
        kinds = [struct.unpack_from("=I", image, offset + i * size)[0] for i in range(count)]
        assert kinds and interpreter not in kinds


@pytest.mark.slow
def test_a_coordinator_that_does_not_answer(coordinator: FakeCoordinator) -> None:
    """Stopped, or in a call that never returns: the task must run all the same. One that says WAIT is waited for."""
    silent, patient = (coordinator.started_shim(shell("echo ran")) for _ in range(2))
    for _ in range(20):
        patient.wire.send("WAIT")
        if silent.process.poll() is not None:
            break
        with contextlib.suppress(subprocess.TimeoutExpired):
            silent.process.wait(5)
    text = "slurmckpt: this task runs without checkpoints: the coordinator does not answer\n"
    assert silent.finish() == (0, "ran\n", text)
    assert patient.process.poll() is None
    patient.wire.send("DIRECT")
    assert patient.finish() == (0, "ran\n", "")
