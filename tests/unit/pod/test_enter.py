"""enter: a program inside a pod, with the caller's descriptors, that ends as it would have ended outside."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.unit.awaiting import wait_until
from tests.unit.pod.harness import POD, FakeCoordinator, Pod, children, process_exists, shell, status_field

pytestmark = pytest.mark.root

ENTER = POD / "enter"
USAGE = (
    "usage: enter --pid POD_INIT [--keep-ipc] [--cgroup FILE]... [--real-id UID:GID] [--guard CHANNEL:BEAT]"
    " [--restores] [--uid U --gid G --groups A,B,C [--chdir PATH] [--environment FD]] [--whole]"
    " -- PROGRAM ARG..."
)


@pytest.fixture
def pod(coordinator: FakeCoordinator) -> Pod:
    return coordinator.run(shell("exec sleep 1000"))[0]


def enter(pod: Pod, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ENTER), "--pid", str(pod.pid), *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_namespaces_are_the_pods(pod: Pod) -> None:
    names = ("ipc", "uts", "net", "pid", "mnt")
    result = enter(pod, "--", "/bin/sh", "-c", f"for n in {' '.join(names)}; do readlink /proc/self/ns/$n; done; id -u")
    expected = [os.readlink(f"/proc/{pod.pid}/ns/{name}") for name in names]
    assert result.stdout.splitlines() == [*expected, "0"]


def test_the_ipc_namespace_can_stay_the_callers(pod: Pod) -> None:
    result = enter(pod, "--keep-ipc", "--", "/bin/sh", "-c", "readlink /proc/self/ns/ipc /proc/self/ns/net")
    assert result.stdout.splitlines() == [os.readlink("/proc/self/ns/ipc"), os.readlink(f"/proc/{pod.pid}/ns/net")]


def test_a_host_name_of_its_own(coordinator: FakeCoordinator) -> None:
    other = coordinator.run(shell("exec sleep 1000"), pod_options=("--hostname", "elsewhere"))[0]
    assert enter(other, "--", "/bin/uname", "-n").stdout == "elsewhere\n"
    assert os.uname().nodename != "elsewhere"


def test_status_comes_out(pod: Pod) -> None:
    assert enter(pod, "--", "/bin/sh", "-c", "exit 33").returncode == 33
    assert enter(pod, "--", "/bin/sh", "-c", "kill -USR1 $$").returncode == -signal.SIGUSR1
    assert enter(pod, "--", "/bin/sh", "-c", "exit 0").returncode == 0


def test_descriptors_go_in(pod: Pod, scratch: Path) -> None:
    with (scratch / "file").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        command = [
            str(ENTER),
            "--pid",
            str(pod.pid),
            "--",
            "/bin/sh",
            "-c",
            f"echo inside >/proc/self/fd/{file.fileno()}",
        ]
        subprocess.run(command, pass_fds=(file.fileno(),), check=True, timeout=60)
    assert (scratch / "file").read_text() == "inside\n"


def test_real_id(pod: Pod) -> None:
    result = enter(pod, "--real-id", "4321:4322", "--", "/bin/cat", "/proc/self/status")
    fields = dict(line.split(":\t", 1) for line in result.stdout.splitlines() if ":\t" in line)
    assert fields["Uid"].split() == ["4321", "0", "0", "0"]
    assert fields["Gid"].split() == ["4322", "0", "0", "0"]
    assert int(fields["CapEff"], 16) == int(status_field(os.getpid(), "CapBnd"), 16), "root's rights are still there"


def test_a_user_has_no_other_rights(pod: Pod, scratch: Path) -> None:
    words = ["--uid", "4321", "--gid", "4322", "--groups", "4322,4323", "--chdir", str(scratch)]
    result = enter(pod, *words, "--", "/bin/sh", "-c", "pwd; cat /proc/self/status")
    directory, _, status = result.stdout.partition("\n")
    assert directory == str(scratch)
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["Uid"].split() == ["4321"] * 4 and fields["Gid"].split() == ["4322"] * 4
    assert fields["Groups"].split() == ["4322", "4323"]
    assert {fields[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
    # A directory that is not there, or not the user's, is no reason not to run.
    words[-1] = "/no/such"
    assert enter(pod, *words, "--", "/bin/pwd").stdout == "/\n"


USER = ["--uid", "4321", "--gid", "4322", "--groups", ""]


def test_an_environment_from_a_file(pod: Pod) -> None:
    file = os.memfd_create("environment")
    os.write(file, b"PATH=/bin:/usr/bin\0A=b c\0odd\0")
    words = ["--pid", str(pod.pid), *USER, "--environment", str(file), "--", "env"]
    result = subprocess.run([ENTER, *words], pass_fds=[file], env={"LD_X": "y"}, capture_output=True, check=False)
    assert sorted(result.stdout.splitlines()) == [b"A=b c", b"PATH=/bin:/usr/bin", b"odd"]


ESCAPES = "(setsid sh -c 'setsid sleep 1234 & sleep 1234' >/dev/null 2>&1 &) ; (setsid sleep 1234 &) >/dev/null 2>&1; "


@pytest.mark.parametrize("end", ["by itself", "SIGTERM"])
def test_nothing_is_left_of_a_whole_program(pod: Pod, end: str) -> None:
    def left() -> list[int]:
        return [pid for pid in inside(pod) if b"sleep\x001234" in cmdline(pid)]

    words = [str(ENTER), "--pid", str(pod.pid), *USER, "--whole", "--", "/bin/sh", "-c"]
    with subprocess.Popen(
        [*words, ESCAPES + ("read x; exit 3" if end == "by itself" else "sleep 1234")], stdin=-1
    ) as run:
        wait_until(lambda: len(left()) >= 3, "they run")
        assert run.stdin is not None
        if end == "by itself":
            run.stdin.close()
            assert run.wait(60) == 3
        else:
            run.terminate()
            assert run.wait(60) == -signal.SIGTERM
    assert left() == []


def inside(pod: Pod) -> list[int]:
    """The processes of the pod's PID namespace, as seen here."""
    home = os.readlink(f"/proc/{pod.pid}/ns/pid")
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and os.readlink(f"/proc/{name}/ns/pid") == home:
                found.append(int(name))
    return found


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_terminate_goes_to_the_program(pod: Pod) -> None:
    script = "trap 'exit 12' TERM; echo up; while :; do sleep 0.01; done"
    with subprocess.Popen(
        [ENTER, "--pid", str(pod.pid), "--", "/bin/sh", "-c", script], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        process.terminate()
        assert process.wait(60) == 12


def test_terminate_kills_by_default(pod: Pod) -> None:
    with subprocess.Popen([ENTER, "--pid", str(pod.pid), "--", "/bin/sleep", "1000"]) as process:
        wait_until(lambda: bool(children(process.pid)), "the program runs")
        (child,) = children(process.pid)
        wait_until(lambda: Path(f"/proc/{child}/comm").read_text() == "sleep\n", "it is executed")
        process.terminate()
        assert process.wait(60) == -signal.SIGTERM
        assert not process_exists(child)


def test_ignored_sigchld_of_the_caller(pod: Pod) -> None:
    result = subprocess.run(
        [ENTER, "--pid", str(pod.pid), "--", "/bin/sh", "-c", "exit 5"],
        preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
        check=False,
        timeout=60,
    )
    assert result.returncode == 5


def test_cgroup(pod: Pod) -> None:
    group = Path(f"/sys/fs/cgroup/pids/slurmckpt-test-{os.getpid()}-enter")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        result = enter(pod, "--cgroup", str(group / "cgroup.procs"), "--", "/bin/cat", "/proc/self/cgroup")
        assert f"/{group.name}\n" in result.stdout
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text(), "the group is empty")
        group.rmdir()


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--", "/no/such"], 127, "cannot execute /no/such: No such file or directory"),
        (["--", "/dev/null"], 126, "cannot execute /dev/null: Permission denied"),
        (["--cgroup", "/no/such", "--", "true"], 125, "cannot open /no/such: No such file or directory"),
        (["--real-id", "1", "--", "true"], 125, "--real-id 1 is not UID:GID"),
        (["--real-id", "1:-1", "--", "true"], 125, "--real-id 1:-1 is not UID:GID"),
        (["--guard", "3", "--", "true"], 125, "--guard 3 is not CHANNEL:BEAT, two descriptors above 2"),
        (["--guard", "1:4", "--", "true"], 125, "--guard 1:4 is not CHANNEL:BEAT, two descriptors above 2"),
        (["--uid", "1", "--gid", "x", "--groups", "", "--", "true"], 125, "gid=x is not a group id"),
        (["--uid", "1", "--gid", "1", "--", "true"], 125, "groups= is missing"),
        (["--environment", "2", "--", "true"], 125, "--environment 2 is not a descriptor above 2"),
        ([], 125, USAGE),
        (["--what"], 125, USAGE),
    ],
)
def test_errors_are_one_line(pod: Pod, arguments: list[str], code: int, text: str) -> None:
    result = enter(pod, *arguments)
    assert (result.returncode, result.stdout, result.stderr) == (code, "", f"slurmckpt: enter: {text}\n")


def test_pid_that_is_none() -> None:
    for pid, text in (
        ("x", "--pid x is not the pid of a pod init"),
        ("1", "--pid 1 is not the pid of a pod init"),
        ("2147483647", "cannot open /proc/2147483647/ns/ipc: No such file or directory"),
    ):
        result = subprocess.run([ENTER, "--pid", pid, "--", "true"], capture_output=True, text=True, check=False)
        assert (result.returncode, result.stderr) == (125, f"slurmckpt: enter: {text}\n")
