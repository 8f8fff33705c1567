"""How tasks end, and what their shims, the coordinator and the processes they leave behind see of it."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from tests.unit.awaiting import wait_until
from tests.unit.pod.harness import TASK_ENV, FakeCoordinator, children, process_exists, shell

pytestmark = pytest.mark.root


@pytest.mark.parametrize("code", [0, 1, 77, 255])
def test_exit_codes(coordinator: FakeCoordinator, code: int) -> None:
    pod, (shim,) = coordinator.run(shell(f"exit {code}"))
    assert shim.finish() == (code, "", "")
    exited = pod.expect("EXITED")
    assert (exited.number("index"), exited.number("status")) == (0, code << 8)
    pod.expect("DONE")
    pod.wire.expect_end()
    pod.wait_gone()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGRTMAX])
def test_death_by_signal(coordinator: FakeCoordinator, scratch: Path, number: int) -> None:
    pod, (shim,) = coordinator.run(shell(f"ulimit -c 0; kill -{number} $$"), cwd=scratch)
    assert shim.finish()[0] == -number
    assert pod.expect("EXITED").number("status") == number
    assert list(scratch.iterdir()) == [], "the shim must not leave a core file"


def test_each_task_has_its_own_end(coordinator: FakeCoordinator) -> None:
    pod, (first, second, third) = coordinator.run(
        shell("read x; exit 3"), shell("exit 4"), shell("kill -9 $$"), stdin=subprocess.PIPE
    )
    assert second.finish()[0] == 4
    assert third.finish()[0] == -signal.SIGKILL
    assert first.process.poll() is None
    assert first.process.stdin is not None
    first.process.stdin.close()
    first.process.stdin = None
    assert first.finish()[0] == 3
    ends = {message.number("index"): message.number("status") for message in (pod.expect("EXITED") for _ in range(3))}
    assert ends == {0: 3 << 8, 1: 4 << 8, 2: 9}
    pod.expect("DONE")


def test_output_before_the_end_is_complete(coordinator: FakeCoordinator) -> None:
    _, (shim,) = coordinator.run(shell("i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; echo last >&2"))
    code, out, err = shim.finish()
    assert code == 0
    assert out == "".join(f"line {i}\n" for i in range(2000))
    assert err == "last\n"


def test_orphans_are_killed_at_the_end(coordinator: FakeCoordinator, scratch: Path) -> None:
    # three kinds: in the background, in a session of its own, and one that ignores what can be ignored
    script = (
        "sleep 1000 & setsid sleep 1000 & (trap '' TERM HUP INT; exec sleep 1000) & "
        f"while [ ! -e {scratch}/go ]; do sleep 0.01; done; exit 5"
    )
    pod, (shim,) = coordinator.run(shell(script), stdout=subprocess.DEVNULL)
    task = pod.outer_pid(shim.pid_inside)

    def orphans() -> list[int]:
        return [pid for pid in children(task) if "1000" in Path(f"/proc/{pid}/cmdline").read_text()]

    wait_until(lambda: len(orphans()) == 3, "all three run")
    running = orphans()
    (scratch / "go").touch()
    assert shim.finish()[0] == 5
    pod.expect("DONE")
    assert not any(process_exists(pid) for pid in running), "DONE comes when nothing is left"
    pod.wait_gone()


def test_orphans_do_not_outlive_a_task_that_others_outlive(coordinator: FakeCoordinator) -> None:
    """An orphan goes to the leader, its subreaper, and is reaped there without being taken for a task."""
    pod, (first, second) = coordinator.run(shell("(sleep 0 & exec true); sleep 1000"), shell("(exit 9 &); exit 2"))
    assert second.finish()[0] == 2
    assert pod.expect("EXITED").number("index") == 1
    leader = pod.leader_pid()
    wait_until(lambda: len(children(leader)) == 1, "the leader has reaped everything but the first task")
    assert first.process.poll() is None
    first.signal(signal.SIGTERM)
    assert first.finish()[0] == -signal.SIGTERM


def test_setuid_of_leader_and_what_it_holds(coordinator: FakeCoordinator) -> None:
    """The leader, as a capture finds it: the user's, dumpable, /dev/null and the status pipe, nothing else."""
    pod, (shim,) = coordinator.run(shell("sleep 1000"))
    leader = pod.leader_pid()
    # its last step before it only waits
    wait_until(lambda: Path(f"/proc/{leader}/fd").stat().st_uid == shim.uid, "the leader is dumpable as the user")
    wait_until(lambda: len(os.listdir(f"/proc/{leader}/fd")) == 4, "the leader has closed the rest")
    links = {name: os.readlink(f"/proc/{leader}/fd/{name}") for name in os.listdir(f"/proc/{leader}/fd")}
    assert {links[name] for name in ("0", "1", "2")} == {"/dev/null"}
    assert stat.S_ISFIFO(os.stat(f"/proc/{leader}/fd/3").st_mode)
    assert os.stat(f"/proc/{leader}/fd/3").st_ino == os.fstat(pod.status_write).st_ino
    status = Path(f"/proc/{leader}/status").read_text()
    assert f"Uid:\t{shim.uid}\t{shim.uid}\t{shim.uid}\t{shim.uid}\n" in status
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    kill_stop = 1 << (signal.SIGKILL - 1) | 1 << (signal.SIGSTOP - 1)
    assert int(fields["SigBlk"], 16) == (1 << 64) - 1 - kill_stop
    assert int(fields["VmRSS"].split()[0]) < 2048
    assert os.readlink(f"/proc/{leader}/cwd") == "/"


PATH_CASES = {
    "absolute": ("{scratch}/prog", "{scratch}/prog"),
    "through PATH": ("prog", "{scratch}/bin/prog"),
    "PATH with a slash": ("sub/prog", "{scratch}/bin/sub/prog"),
    "relative": ("./prog", "{scratch}/./prog"),
    "hidden name": (".prog", "{scratch}/.prog"),
}


@pytest.mark.parametrize("name", PATH_CASES)
@pytest.mark.parametrize("direct", [False, True])
def test_program_search(coordinator: FakeCoordinator, scratch: Path, name: str, direct: bool) -> None:
    """slurmstepd's _build_path: it also makes the resolved path argv[0]."""
    command, expected = (text.format(scratch=scratch) for text in PATH_CASES[name])
    for place in ("prog", "bin/prog", "bin/sub/prog", ".prog"):
        path = scratch / place
        path.parent.mkdir(exist_ok=True)
        path.write_text('#!/bin/sh\necho "$0" "$@"\n')
        path.chmod(0o755)
    (scratch / "first" / "prog").mkdir(parents=True)
    env = {"PATH": f"::{scratch}/first:{scratch}/bin:/usr/bin:/bin"}
    shim = coordinator.started_shim([command, "argument"], env=env, cwd=scratch)
    if direct:
        shim.wire.send("DIRECT")
    else:
        coordinator.pod(shim).lead([shim])
    assert shim.finish() == (0, f"{expected} argument\n", "")


def test_broadcast_directory(coordinator: FakeCoordinator, scratch: Path) -> None:
    path = scratch / "slurm_bcast_77.2_n1"
    path.write_text("#!/bin/sh\necho found\n")
    path.chmod(0o755)
    env = {**TASK_ENV, "SLURM_STEP_ID": "2", "SLURMD_NODENAME": "n1"}
    _, (shim,) = coordinator.run([f"{scratch}/"], env=env)
    assert shim.finish() == (0, "found\n", "")


EXEC_FAILURES = {
    "missing": ("nosuchprogram", errno.ENOENT, "execve(): nosuchprogram: No such file or directory"),
    "missing absolute": ("/no/such", errno.ENOENT, "execve(): /no/such: No such file or directory"),
    "not executable": ("{scratch}/plain", errno.EACCES, "execve(): {scratch}/plain: Permission denied"),
    "directory": ("{scratch}/dir", errno.EACCES, "execve(): {scratch}/dir: Permission denied"),
    "no format": ("{scratch}/text", errno.ENOEXEC, "execve(): {scratch}/text: Exec format error"),
    "interpreter": (
        "{scratch}/script",
        errno.ENOENT,
        "execve(): bad interpreter(/no/interp -x): No such file or directory",
    ),
    "empty": ("", errno.ENOENT, "execve(): : No such file or directory"),
}


@pytest.mark.parametrize("name", EXEC_FAILURES)
@pytest.mark.parametrize("direct", [False, True])
def test_exec_failures_look_like_slurms(coordinator: FakeCoordinator, scratch: Path, name: str, direct: bool) -> None:
    command, code, text = EXEC_FAILURES[name]
    (scratch / "plain").write_text("x")
    (scratch / "dir").mkdir()
    (scratch / "text").write_text("no program")
    (scratch / "text").chmod(0o755)
    (scratch / "script").write_text("#!/no/interp -x\n")
    (scratch / "script").chmod(0o755)
    shim = coordinator.started_shim([command.format(scratch=scratch)])
    if direct:
        shim.wire.send("DIRECT")
    else:
        pod = coordinator.pod(shim)
        pod.lead([shim])
    assert shim.finish() == (code, "", f"slurmstepd: error: {text.format(scratch=scratch)}\n")
    if not direct:
        assert pod.expect("EXITED").number("status") == code << 8


def test_cgroups_of_each_task(coordinator: FakeCoordinator, scratch: Path) -> None:
    groups = [Path(f"/sys/fs/cgroup/pids/slurmckpt-test-{os.getpid()}-{name}") for name in ("pod", "task")]
    made = []
    try:
        for group in groups:
            try:
                group.mkdir()
            except OSError as error:
                pytest.skip(f"no cgroup can be made here: {error}")
            made.append(group)
        shims = [coordinator.started_shim(shell("cat /proc/self/cgroup")) for _ in range(2)]
        pod = coordinator.pod(shims[0], "--cgroup", str(groups[0] / "cgroup.procs"))
        pod.announce(shims, cgroups={1: groups[1] / "cgroup.procs"})
        pod.go(shims)
        seen = [shim.finish()[1] for shim in shims]
        assert f"/{groups[0].name}\n" in seen[0] and f"/{groups[1].name}\n" in seen[1]
        pod.expect("DONE")
        pod.wait_gone()
    finally:
        for group in made:
            wait_until(lambda group=group: not (group / "cgroup.procs").read_text(), "the group is empty")  # type: ignore[misc]
            group.rmdir()


def test_a_task_that_cannot_join_its_cgroup_does_not_run(coordinator: FakeCoordinator, scratch: Path) -> None:
    shim = coordinator.started_shim(shell(f"touch {scratch}/ran"))
    pod = coordinator.pod(shim)
    pod.announce([shim], cgroups={0: Path("/no/such/cgroup.procs")})
    pod.go([shim])
    code, _, err = shim.finish()
    assert code == 1
    assert err == "slurmckpt: cannot start the task: cannot open /no/such/cgroup.procs: No such file or directory\n"
    assert not (scratch / "ran").exists()
