"""What a task in a pod sees of itself: the same as under slurmstepd."""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.pod.harness import GID, GROUPS, TASK_ENV, UID, FakeCoordinator, has_capability, shell

pytestmark = pytest.mark.root

CAP_SYS_RESOURCE = 24
PYTHON = "/usr/bin/python3"


@pytest.fixture(autouse=True)
def needs_python() -> None:
    if not Path(PYTHON).exists():
        pytest.skip(f"needs {PYTHON}")


def output_of(coordinator: FakeCoordinator, script: str, **options: Any) -> str:
    _, (shim,) = coordinator.run(shell(script), **options)
    code, out, err = shim.finish()
    assert (code, err) == (0, "")
    return out


def status_of(coordinator: FakeCoordinator, **options: Any) -> dict[str, str]:
    out = output_of(coordinator, "exec cat /proc/self/status", **options)
    return {key: value.strip() for key, _, value in (line.partition(":") for line in out.splitlines())}


def test_user_groups_and_no_privileges(coordinator: FakeCoordinator) -> None:
    status = status_of(coordinator)
    assert status["Uid"].split() == [str(UID)] * 4
    assert status["Gid"].split() == [str(GID)] * 4
    assert [int(group) for group in status["Groups"].split()] == sorted(GROUPS)
    assert [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")] == [0, 0, 0, 0]
    assert status["NoNewPrivs"] == "0", "setuid programs must keep working"
    assert status["Seccomp"] == "2"


def test_no_groups(coordinator: FakeCoordinator) -> None:
    assert status_of(coordinator, groups=())["Groups"] == ""


def test_root_job(coordinator: FakeCoordinator) -> None:
    status = status_of(coordinator, uid=0, gid=0, groups=())
    assert status["Uid"].split() == ["0"] * 4
    assert int(status["CapEff"], 16) != 0


def test_arguments_and_environment_come_unchanged(coordinator: FakeCoordinator) -> None:
    env = {**TASK_ENV, "EMPTY": "", "LINES": "a\nb", "ODD": "=x=\u00e4", "BIG": "y" * 100_000}
    _, (shim,) = coordinator.run(
        ["/bin/sh", "-c", 'printf "<%s>" "$@"; tr "\\0" "\\1" </proc/$$/environ', "name", "", "a b", "\n"], env=env
    )
    code, out, _ = shim.finish()
    arguments, _, environment = out.partition(">PATH=")
    assert code == 0
    assert arguments + ">" == "<><a b><\n>"
    assert "PATH=" + environment == "".join(f"{key}={value}\x01" for key, value in env.items())


def test_directory_umask_nice(coordinator: FakeCoordinator, scratch: Path) -> None:
    place = scratch / "with space\nand line"
    place.mkdir()
    out = output_of(coordinator, "pwd; umask; nice", cwd=place, umask=0o137, before_exec=lambda: os.nice(7))
    assert out == f"{place}\n0137\n7\n"


def test_directory_that_the_task_cannot_enter_any_more(coordinator: FakeCoordinator, scratch: Path) -> None:
    place = scratch / "gone"
    place.mkdir()
    shim = coordinator.started_shim(shell("pwd"), cwd=place)
    pod = coordinator.pod(shim)
    place.rmdir()
    pod.lead([shim])
    code, out, err = shim.finish()
    assert (code, out) == (0, "/tmp\n")
    assert err == (
        f"slurmstepd: error: couldn't chdir to `{place}': No such file or directory: going to /tmp instead\n"
    )


def test_affinity(coordinator: FakeCoordinator) -> None:
    cpu = max(os.sched_getaffinity(0))
    status = status_of(coordinator, before_exec=lambda: os.sched_setaffinity(0, {cpu}))
    assert status["Cpus_allowed_list"] == str(cpu)


def test_limits(coordinator: FakeCoordinator) -> None:
    limits = {
        resource.RLIMIT_NOFILE: (70, 80),
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_FSIZE: (4096, 1 << 20),
        resource.RLIMIT_STACK: (1 << 20, resource.RLIM_INFINITY),
        resource.RLIMIT_NPROC: (50, 60),
        resource.RLIMIT_AS: (1 << 30, 1 << 31),
    }

    def set_limits() -> None:
        for number, pair in limits.items():
            resource.setrlimit(number, pair)

    out = output_of(coordinator, "exec cat /proc/self/limits", before_exec=set_limits)
    seen = {line[:26].strip(): line[26:].split()[:2] for line in out.splitlines()}
    assert seen["Max open files"] == ["70", "80"]
    assert seen["Max core file size"] == ["0", "0"]
    assert seen["Max file size"] == ["4096", str(1 << 20)]
    assert seen["Max stack size"] == [str(1 << 20), "unlimited"]
    assert seen["Max processes"] == ["50", "60"]
    assert seen["Max address space"] == [str(1 << 30), str(1 << 31)]


def test_hard_limits_above_those_of_the_coordinator(coordinator: FakeCoordinator) -> None:
    if not has_capability(CAP_SYS_RESOURCE):
        pytest.skip("this root has no CAP_SYS_RESOURCE: it cannot raise a hard limit")

    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))

    shim = coordinator.started_shim(shell("ulimit -Hn"))
    pod = coordinator.pod(shim, preexec_fn=lower)
    pod.lead([shim])
    assert shim.finish()[1] == f"{resource.getrlimit(resource.RLIMIT_NOFILE)[1]}\n"


def test_signal_mask_and_ignored_signals(coordinator: FakeCoordinator) -> None:
    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGUSR1, 64})
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)

    status = status_of(coordinator, before_exec=prepare, restore_signals=False)
    assert int(status["SigBlk"], 16) == 1 << (signal.SIGUSR1 - 1) | 1 << 63
    assert int(status["SigIgn"], 16) == 1 << (signal.SIGHUP - 1)


def test_descriptors_have_their_numbers_and_no_others(coordinator: FakeCoordinator, scratch: Path) -> None:
    files = {number: scratch / f"file{number}" for number in (3, 4, 5, 6, 17, 63)}

    def arrange() -> None:
        for number, path in files.items():
            opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            lifted = fcntl.fcntl(opened, fcntl.F_DUPFD, 100)
            os.close(opened)
            os.dup2(lifted, number)
            os.close(lifted)

    listing = "ls -l /proc/$$/fd; for n in 3 4 5 6 17 63; do echo $n >/proc/$$/fd/$n; done"
    shim = coordinator.started_shim(shell(listing), before_exec=arrange, close_fds=False)
    pod = coordinator.pod(shim)
    pod.lead([shim])
    code, out, err = shim.finish()
    assert (code, err) == (0, "")
    links = [line.split(" -> ") for line in out.splitlines() if " -> " in line]
    seen = {int(left.rsplit(" ", 1)[1]): target for left, target in links}
    assert {number: target for number, target in seen.items() if number > 2} == {
        number: str(path) for number, path in files.items()
    }
    assert {number: path.read_text() for number, path in files.items()} == {number: f"{number}\n" for number in files}


# A shell opens descriptors of its own while it looks; this looks before anything else.
OPEN_BELOW_TEN = """
import os, sys
def is_open(fd):
    try:
        os.fstat(fd)
        return True
    except OSError:
        return False
seen = [fd for fd in range(10) if is_open(fd)]
open(sys.argv[1], "w").write(repr(seen))
"""


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_closed_standard_descriptors_stay_closed(
    coordinator: FakeCoordinator, scratch: Path, closed: tuple[int, ...]
) -> None:
    def close() -> None:
        for fd in closed:
            os.close(fd)

    _, (shim,) = coordinator.run([PYTHON, "-ISc", OPEN_BELOW_TEN, str(scratch / "seen")], before_exec=close)
    assert shim.finish()[0] == 0
    assert (scratch / "seen").read_text() == repr([fd for fd in range(3) if fd not in closed])


def test_output_goes_through_the_same_file_description(coordinator: FakeCoordinator, scratch: Path) -> None:
    with (scratch / "log").open("w+b", buffering=0) as log:
        log.write(b"before\n")
        _, (shim,) = coordinator.run(shell("echo inside"), stdout=log)
        assert shim.finish()[0] == 0
        assert log.tell() == len(b"before\ninside\n"), "the position is shared"


def test_session_group_and_pid(coordinator: FakeCoordinator) -> None:
    command = shell("cut -d' ' -f1,4-6 /proc/$$/stat")
    _, shims = coordinator.run(command, command, command)
    rows = [[int(word) for word in shim.finish()[1].split()] for shim in shims]
    pids, parents, groups, sessions = zip(*rows, strict=True)
    assert pids == tuple(shim.pid_inside for shim in shims)
    assert min(pids) >= 100 and len(set(pids)) == 3
    assert set(groups) == {pids[0]}, "tasks share the process group of the first"
    assert set(parents) == set(sessions) and parents[0] == 100, "the leader is the first pid after those kept free"


def test_io_uring_is_not_there(coordinator: FakeCoordinator) -> None:
    script = "import ctypes; l = ctypes.CDLL(None, use_errno=True); l.syscall(425, 1, 0); print(ctypes.get_errno())"
    _, (denied,) = coordinator.run([PYTHON, "-c", script])
    assert denied.finish()[1] == "38\n"
    allowed = coordinator.started_shim([PYTHON, "-c", script])
    pod = coordinator.pod(allowed)
    pod.lead([allowed], deny="")
    assert allowed.finish()[1] != "38\n", "without deny= the kernel answers (14, EFAULT, or 1 by a site's sysctl)"


def test_own_proc_shm_and_ipc(coordinator: FakeCoordinator, scratch: Path) -> None:
    shared = scratch / "shm"
    shared.mkdir()
    shared.chmod(0o1777)
    script = (
        "echo data >/dev/shm/x; ls -d /proc/[0-9]* | tr '\\n' ' '; "
        "readlink /proc/self/ns/ipc; readlink /proc/self/ns/net"
    )
    out = output_of(coordinator, script, pod_options=("--shm", str(shared)))
    processes, ipc, net = out.replace(" ipc", "\nipc").split("\n")[:3]
    assert (shared / "x").read_text() == "data\n"
    assert {"/proc/1", "/proc/100", "/proc/101"} <= set(processes.split())
    assert len(processes.split()) <= 5
    assert ipc != os.readlink("/proc/self/ns/ipc")
    assert net == os.readlink("/proc/self/ns/net")


def test_new_network(coordinator: FakeCoordinator) -> None:
    script = "cut -d: -sf1 /proc/net/dev | tr -d ' '; wc -l </proc/net/if_inet6; readlink /proc/self/ns/net"
    *interfaces, addresses, net = output_of(coordinator, script, pod_options=("--net", "new")).split()
    assert "lo" in interfaces
    assert addresses == "0", "lo is down: the coordinator sets it up"
    assert net != os.readlink("/proc/self/ns/net")


def test_mount_namespace_of_the_shim(coordinator: FakeCoordinator, scratch: Path) -> None:
    """A task whose private /tmp was made by a job container plugin finds it in the pod as well."""
    (scratch / "outside").touch()
    out = output_of(coordinator, f"ls {scratch}; echo end", before_drop=_private_mount(scratch))
    assert out == "end\n"


def _private_mount(over: Path) -> Callable[[], None]:
    libc = ctypes.CDLL(None, use_errno=True)

    def prepare() -> None:
        clone_newns, ms_rec, ms_private = 0x20000, 0x4000, 0x40000
        assert libc.unshare(clone_newns) == 0
        assert libc.mount(None, b"/", None, ms_rec | ms_private, None) == 0
        assert libc.mount(b"tmpfs", str(over).encode(), b"tmpfs", 0, None) == 0

    return prepare


def test_binds_in_order_with_what_lies_below(coordinator: FakeCoordinator, scratch: Path) -> None:
    """As the batch pod has them: the real program below a directory of ours, then ours over the real one."""
    ours, house, place, program = (scratch / name for name in ("ours", "house", "place", "program"))
    for folder in (house, place):
        folder.mkdir()
    (house / "kept").touch()
    program.write_text("#!/bin/sh\necho real\n")
    ours.write_text(f"#!/bin/sh\necho ours\nexec {place}/kept\n")
    for path in (ours, program):
        path.chmod(0o755)
    binds = (f"{program}:{house}/kept", f"{house}:{place}", f"{ours}:{program}")
    options = [word for bind in binds for word in ("--bind", bind)]
    assert output_of(coordinator, f"exec {program}", pod_options=options) == "ours\nreal\n"
    assert (house / "kept").read_text() == "" and list(place.iterdir()) == [], "only the pod sees them"
