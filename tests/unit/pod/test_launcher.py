"""The launcher: the real srun outside the pod, as the stand-in would have been it, with a coordinator or without."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.awaiting import wait_until
from tests.unit.pod.harness import (
    GROUPS,
    POD,
    UID,
    FakeCoordinator,
    children,
    open_files,
    pack,
    process_exists,
    shell,
    status_field,
)
from tests.unit.pod.launching import Launcher, read_word, word
from tests.unit.pod.payloads import memfd, payload_bytes
from tests.unit.pod.test_hostile import HOSTILE_PAYLOADS, MALFORMED
from tests.unit.pod.test_signals import CATCHABLE, COUNTER, PYTHON

pytestmark = pytest.mark.root

Launch = Callable[..., Launcher]
CAT = ["/bin/cat"]
SLEEP = ["srun", "-c", "exec sleep 1000"]


@pytest.fixture
def launcher(coordinator: FakeCoordinator) -> Iterator[Launch]:
    shim = coordinator.started_shim(shell("true"))
    opened: list[Launcher] = []

    def launcher(*options: str, shim_pid: int = shim.process.pid, **more: Any) -> Launcher:
        opened.append(Launcher(shim_pid, *options, **more))
        return opened[-1]

    yield launcher
    for item in opened:
        item.close()


def status_of(text: str) -> dict[str, str]:
    return {key: value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}


# What it starts


def test_the_program_is_the_users_and_no_more(launcher: Launch) -> None:
    run = launcher(program="/bin/cat")
    run.start(["srun", "/proc/self/status"])
    wait_status, out, err = run.finish()
    assert (wait_status, err) == (0, "")
    status = status_of(out)
    assert status["Uid"].split() == [str(UID)] * 4
    assert [int(group) for group in status["Groups"].split()] == sorted(GROUPS)
    assert [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")] == [0, 0, 0, 0]
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("0", "0")
    assert [int(status[name], 16) for name in ("SigBlk", "SigIgn", "ShdPnd")] == [0, 0, 0]


def test_the_payload_is_applied(launcher: Launch) -> None:
    extra = {"umask": "027", "rlimit.7": "50:60", "nice": "3"}
    run = launcher()
    script = "echo $0 $1 A=$A; pwd; umask; ulimit -n; nice"
    run.start(["srun", "-c", script, "zero", "a  b"], extra, cwd="/usr", env=["A=x"])
    assert run.finish() == (0, "zero a b A=x\n/usr\n0027\n50\n3\n", "")


def test_signals_and_affinity_are_those_of_the_payload(launcher: Launch) -> None:
    cpu = min(os.sched_getaffinity(0))
    run = launcher(program="/bin/cat")
    run.start(["srun", "/proc/self/status"], {"sigmask": "200", "sigign": "1", "affinity": f"{1 << cpu:x}"})
    status = status_of(run.finish()[1])
    assert (int(status["SigBlk"], 16), int(status["SigIgn"], 16)) == (1 << (signal.SIGUSR1 - 1), 1)
    assert status["Cpus_allowed_list"] == str(cpu)


def test_argv_0_is_as_given(launcher: Launch) -> None:
    run = launcher(program="/bin/cat")
    run.start(["strange name", "/proc/self/cmdline"])
    assert run.finish()[1] == "strange name\0/proc/self/cmdline\0"


@pytest.mark.parametrize("numbers", ["0,1,2", "1,2", "0,1,2,3,4,5,7", "7,1,2,200"])
def test_descriptors_are_those_of_the_payload_alone(launcher: Launch, numbers: str) -> None:
    """Under their numbers, wherever the message's own came to lie; the one that tells of a failure is closed."""
    ends = {int(number): os.open("/dev/null", os.O_RDWR) for number in numbers.split(",")}
    ends[1] = os.dup2(os.memfd_create("one"), ends[1])
    run = launcher(program="/bin/sleep")
    run.launch(memfd(payload_bytes(["srun", "1000"], {"fds": numbers})), list(ends.values()))
    run.started()
    expected = dict.fromkeys(sorted(ends), "/dev/null") | {1: "/memfd:one (deleted)"}
    wait_until(lambda: open_files(run.srun) == expected, f"it has {expected}")


def test_its_place_among_the_processes(launcher: Launch) -> None:
    run = launcher()
    run.start(SLEEP)
    fields = Path(f"/proc/{run.srun}/stat").read_text().rpartition(")")[2].split()
    parent, group, session = (int(word) for word in fields[1:4])
    assert (parent, group, session) == (run.process.pid, run.srun, run.process.pid)
    assert children(run.process.pid) == [run.srun]


def test_what_the_launcher_keeps(launcher: Launch) -> None:
    run = launcher()
    run.start(SLEEP)
    pid = run.process.pid
    links = list(open_files(pid).values())
    assert links[:3] == ["/dev/null"] * 3
    inodes = [os.fstat(fd).st_ino for fd in (run.signals.write_end, run.status.read_end)]
    assert sorted(link for link in links[3:] if not link.startswith("socket:")) == sorted(
        ["anon_inode:[signalfd]", *(f"pipe:[{inode}]" for inode in inodes)]
    )
    assert len(links) == 7
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert status_field(pid, "Uid").split() == [str(UID)] * 4
    assert int(status_field(pid, "CapPrm"), 16) == 0
    assert Path(f"/proc/{pid}/fd").stat().st_uid == 0, "its user cannot reach its connection to the coordinator"
    assert Path(f"/proc/{run.srun}/fd").stat().st_uid == UID, "srun itself is the user's like any other"


def test_its_control_groups(launcher: Launch) -> None:
    group = Path(f"/sys/fs/cgroup/pids/slurmckpt-test-{os.getpid()}-launch")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        run = launcher("--cgroup", str(group / "cgroup.procs"))
        run.start(["srun", "-c", "cat /proc/$$/cgroup"])
        assert f"/{group.name}\n" in run.finish()[1]
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text(), "the group is empty")
        group.rmdir()


def test_the_jobs_shm(launcher: Launch, scratch: Path) -> None:
    """srun finds there what the script, in its pod, has put there."""
    (scratch / "conf").write_text("of the job\n")
    before = Path("/proc/self/mountinfo").read_text()
    run = launcher("--shm", str(scratch), program="/bin/cat")
    run.start(["srun", "/dev/shm/conf"], cwd="/dev/shm")
    assert run.finish() == (0, "of the job\n", "")
    assert Path("/proc/self/mountinfo").read_text() == before


# Ends


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 77", 77 << 8), ("kill -9 $$", 9), ("ulimit -c 0; kill -SEGV $$", 11)]
)
def test_the_end_reaches_both(launcher: Launch, script: str, status: int) -> None:
    run = launcher()
    run.start(["srun", "-c", script])
    assert run.finish() == (status, "", "")


def test_orphans_of_srun_are_not_waited_for(launcher: Launch) -> None:
    run = launcher()
    run.start(["srun", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!; exit 3"])
    wait_status, out, _ = run.finish()
    assert wait_status == 3 << 8
    os.kill(int(out), signal.SIGKILL)


def test_it_goes_on_without_the_coordinator(launcher: Launch) -> None:
    run = launcher()
    run.start(["srun", "-c", "trap 'exit 5' USR1; echo up; while :; do sleep 0.01; done"])
    assert os.read(run.output.read_end, 3) == b"up\n"
    run.wire.close()
    run.signal(signal.SIGUSR1)
    assert read_word(run.status.read_end) == 5 << 8
    assert read_word(run.status.read_end) is None
    assert run.process.wait(60) == 0


def test_it_ends_without_anybody(launcher: Launch) -> None:
    run = launcher()
    run.start(["srun", "-c", "read x; exit 5"])
    run.wire.close()
    os.close(run.status.take_read())
    assert run.process.wait(60) == 0


def test_the_stand_ins_death_kills_srun(launcher: Launch) -> None:
    run = launcher()
    run.start(["srun", "-c", "trap '' TERM INT HUP; exec sleep 1000"])
    os.close(run.signals.take_write())
    assert run.finish()[0] == signal.SIGKILL


def test_the_launchers_death_kills_srun(launcher: Launch) -> None:
    run = launcher()
    run.start(SLEEP)
    run.process.kill()
    run.process.wait()
    wait_until(lambda: not process_exists(run.srun) or status_field(run.srun, "State").startswith("Z"), "srun is dead")
    assert read_word(run.status.read_end) is None, "the stand-in learns it from the end of its pipe"


# Signals


@pytest.mark.skipif(not Path(PYTHON).exists(), reason=f"needs {PYTHON}")
def test_every_signal_once(launcher: Launch, scratch: Path) -> None:
    ready = scratch / "ready"
    run = launcher(program=PYTHON)
    run.start(["srun", "-c", COUNTER, str(ready), ",".join(map(str, CATCHABLE))])
    wait_until(ready.exists, "it waits for signals")
    for number in CATCHABLE:
        run.signal(number)
    wait_status, out, err = run.finish()
    assert (wait_status, err) == (0, "")
    assert [int(text) for text in out.split()] == CATCHABLE


@pytest.mark.parametrize("numbers", [[0, -1, 65, 2**31 - 1, -(2**31)], [1 << 8, 1 << 24]])
def test_what_is_no_signal_is_ignored(launcher: Launch, numbers: list[int]) -> None:
    run = launcher()
    run.start(SLEEP)
    for number in numbers:
        run.signal(number)
    run.signal(signal.SIGTERM)
    assert run.finish()[0] == signal.SIGTERM


def test_a_signal_in_pieces(launcher: Launch) -> None:
    """The pipe's writer is the user's process."""
    run = launcher()
    run.start(SLEEP)
    for byte in word(signal.SIGUSR1):
        os.write(run.signals.write_end, bytes([byte]))
    assert run.finish()[0] == signal.SIGUSR1


def test_stop_and_continue(launcher: Launch) -> None:
    run = launcher(program="/bin/sleep")
    run.start(["srun", "1000"])
    for number, state in ((signal.SIGTSTP, "T"), (signal.SIGCONT, "S"), (signal.SIGSTOP, "T"), (signal.SIGCONT, "S")):
        run.signal(number)
        wait_until(lambda state=state: status_field(run.srun, "State").startswith(state), f"state {state}")  # type: ignore[misc]
    run.signal(signal.SIGTERM)
    assert run.finish()[0] == signal.SIGTERM


# Failures: before STARTED, and nothing has been started then


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("/no/such/srun", "cannot execute /no/such/srun: No such file or directory"),
        ("/etc", "cannot execute /etc: Permission denied"),
        ("/etc/passwd", "cannot execute /etc/passwd: Permission denied"),
    ],
)
def test_a_program_that_cannot_be_executed(launcher: Launch, program: str, text: str) -> None:
    run = launcher(program=program)
    run.send(CAT)
    assert run.failed() == text
    assert read_word(run.status.read_end) is None


def test_a_directory_that_is_gone(launcher: Launch) -> None:
    run = launcher()
    run.send(CAT, cwd="/no/such")
    assert run.failed() == "cannot enter /no/such: No such file or directory"


@pytest.mark.parametrize("name", HOSTILE_PAYLOADS)
def test_hostile_payloads(launcher: Launch, name: str) -> None:
    data, text = HOSTILE_PAYLOADS[name]
    run = launcher()
    run.launch(memfd(data), [os.open("/dev/null", os.O_RDWR) for _ in range(3)])
    assert run.failed() == text


def test_the_payload_is_read_with_the_users_rights(launcher: Launch, scratch: Path) -> None:
    secret = scratch / "secret"
    secret.write_text(f"#!/bin/sh\ntouch {scratch}/ran\n")
    secret.chmod(0o700)
    run = launcher(program=secret)
    run.send(["srun"], {"uid": "0", "gid": "0"})
    assert run.failed() == f"cannot execute {secret}: Permission denied"
    assert not (scratch / "ran").exists()


LAUNCH = {
    **{f"malformed, {name}": (data, "cannot receive LAUNCH: malformed message") for name, data in MALFORMED.items()},
    "malformed, unknown verb": (pack("NOSUCHVERB"), "LAUNCH was expected, not NOSUCHVERB"),
    "nothing": (pack("LAUNCH"), "LAUNCH needs a signal pipe, a status pipe, a payload and its descriptors"),
}


@pytest.mark.parametrize("name", LAUNCH)
def test_a_broken_coordinator(launcher: Launch, name: str) -> None:
    data, text = LAUNCH[name]
    run = launcher()
    run.wire.send_bytes(data)
    assert run.failed() == text


def test_ends_of_pipes_that_are_exchanged(launcher: Launch) -> None:
    run = launcher()
    run.wire.send("LAUNCH", fds=(run.status.write_end, run.signals.read_end, memfd(payload_bytes(CAT))))
    assert run.failed() == "LAUNCH needs a signal pipe, a status pipe, a payload and its descriptors"


def test_a_coordinator_that_leaves_at_once(launcher: Launch) -> None:
    run = launcher()
    run.wire.close()
    assert run.process.wait(60) == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--cgroup", "/no/such"], "cannot open /no/such: No such file or directory"),
        (["--shm", "/no/such"], "cannot bind /no/such over /dev/shm: No such file or directory"),
    ],
)
def test_surroundings_that_cannot_be_had(launcher: Launch, options: list[str], text: str) -> None:
    assert launcher(*options).failed() == text


def test_a_shim_in_a_foreign_namespace_is_refused(launcher: Launch) -> None:
    with subprocess.Popen(["unshare", "--user", "--mount", "sleep", "1000"]) as foreign:
        try:
            own = os.readlink("/proc/self/ns/mnt")
            wait_until(lambda: os.readlink(f"/proc/{foreign.pid}/ns/mnt") != own, "it is in its namespace")
            assert launcher(shim_pid=foreign.pid).failed() == "the task has mounts that its user made"
        finally:
            foreign.kill()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"--control": "2"}, "--control 2 is not a descriptor above 2"),
        ({"--control": "999"}, "--control 999 is not a SOCK_SEQPACKET socket"),
        ({"--shim-pid": "x"}, "--shim-pid x is not the pid of a task shim"),
        ({"--uid": "-1"}, "uid=-1 is not a user id"),
        ({"--gid": "4294967295"}, "gid=4294967295 is not a group id"),
        ({"--groups": "1,,2"}, "groups= is not a list of group ids"),
        ({"--program": "srun"}, "--program srun is not an absolute path"),
        ({"--colour": "blue"}, "usage: launcher --control FD"),
        ({"--program": None}, "usage: launcher --control FD"),
    ],
)
def test_by_hand(change: dict[str, str | None], text: str) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    words: dict[str, str | None] = {"--control": str(theirs.fileno()), "--shim-pid": "2", "--uid": "1", "--gid": "1"}
    words |= {"--groups": "", "--program": "/bin/true"} | change
    command = [word for key, value in words.items() if value is not None for word in (key, value)]
    done = subprocess.run(
        [POD / "launcher", *command], pass_fds=(theirs.fileno(),), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"slurmckpt: launcher: {text}") and done.stderr.count("\n") == 1
    ours.close()
    theirs.close()
