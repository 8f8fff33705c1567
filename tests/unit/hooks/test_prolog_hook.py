"""The prolog's Python: what it leaves for the tasks, and a coordinator that has nothing of the prolog's any more."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmckpt.config import Log, Paths, Settings, Staging
from slurmckpt.coordinator import shm, spec
from slurmckpt.coordinator.proc import start_time
from slurmckpt.errors import ConfigError
from slurmckpt.hooks import prolog
from tests.unit.awaiting import wait_until

PREFIX = "SPANK__SLURM_SPANK_OPTION_slurmckpt_checkpoint_"
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    yield Settings(
        paths=Paths(run=tmp_path / "run"), staging=Staging(path=tmp_path / "staging"), log=Log(path=tmp_path / "log")
    )
    shm.unmount(tmp_path / "run" / "7" / "shm")


@pytest.fixture
def detached(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """What would have been handed to the coordinator."""
    handed: list[tuple[object, ...]] = []

    def detach(job: object, settings: object, declined: str, *sockets: socket.socket) -> None:
        handed.append((job, settings, declined))
        for each in sockets:
            each.close()

    monkeypatch.setattr(prolog, "_detach", detach)
    return handed


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurmckpt.logs.start", lambda path, level, who: None)
    for name in list(os.environ):
        if name.startswith(("SLURM", "SPANK")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_UID", str(os.getuid()))
    monkeypatch.setenv(PREFIX + "interval", "10m")


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts")


@needs_root
def test_what_is_ready_when_the_prolog_returns(settings: Settings, detached: list[tuple[object, ...]]) -> None:
    prolog._start(settings, "")
    directory = settings.paths.run / "7"
    ((job, _, declined),) = detached
    assert declined == ""
    assert job == spec.load(directory / "spec.json")
    assert directory.stat().st_mode & 0o7777 == 0o711
    assert (directory / "task.sock").stat().st_mode & 0o777 == 0o600
    assert os.path.ismount(directory / "shm")


@needs_root
def test_what_an_earlier_run_left_is_removed_with_its_processes(
    settings: Settings, detached: list[tuple[object, ...]]
) -> None:
    directory = settings.paths.run / "7"
    prolog._start(settings, "")
    (directory / "shm" / "old").touch()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    (directory / "coordinator.pid").write_text(f"{child.pid} {start_time(child.pid)}\n")
    prolog._start(settings, "")
    assert child.wait(60) == -signal.SIGKILL
    assert list((directory / "shm").iterdir()) == []
    assert not (directory / "coordinator.pid").exists()


def test_a_job_that_wants_nothing_gets_nothing(
    settings: Settings, detached: list[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PREFIX + "interval", "off")
    prolog._start(settings, "")
    assert detached == []
    assert not settings.paths.run.exists()


def test_a_broken_configuration_is_said_by_the_job_itself(
    settings: Settings, detached: list[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    prolog._start(settings, "slurmckpt.toml: unknown key x")
    assert [declined for _, _, declined in detached] == ["slurmckpt.toml: unknown key x"]
    assert not (settings.paths.run / "7" / "shm").exists()


def test_a_node_that_cannot_mount_declines(
    settings: Settings, detached: list[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def mount(directory: Path) -> None:
        raise shm.ShmError("mount failed: permission denied")

    monkeypatch.setattr(shm, "mount", mount)
    prolog._start(settings, "")
    assert [declined for _, _, declined in detached] == ["mount failed: permission denied"]


@pytest.mark.parametrize(
    ("change", "logged"),
    [
        ({"SLURM_JOB_ID": ""}, "no coordinator: the prolog's environment has no SLURM_JOB_ID"),
        ({PREFIX + "interval": "soon"}, "no coordinator: interval 'soon' is not understood"),
        ({"SLURM_JOB_UID": "4294967290"}, "has no account on this node"),
    ],
)
def test_main_is_always_successful(
    settings: Settings,
    detached: list[tuple[object, ...]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    change: dict[str, str],
    logged: str,
) -> None:
    monkeypatch.setattr("slurmckpt.config.load", lambda: settings)
    for name, value in change.items():
        monkeypatch.setenv(name, value)
    assert prolog.main() == 0
    assert detached == []
    assert logged in caplog.text


def test_main_with_a_fault_of_ours(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def start(settings: Settings, declined: str) -> None:
        raise KeyError("a fault of ours")

    monkeypatch.setattr("slurmckpt.config.load", Settings)
    monkeypatch.setattr(prolog, "_start", start)
    assert prolog.main() == 0
    assert "a fault of ours" in caplog.text


def test_main_with_a_broken_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> Settings:
        raise ConfigError("slurmckpt.toml: is not valid TOML")

    started: list[tuple[Settings, str]] = []
    monkeypatch.setattr("slurmckpt.config.load", load)
    monkeypatch.setattr(prolog, "_start", lambda settings, declined: started.append((settings, declined)))
    assert prolog.main() == 0
    assert started == [(Settings(), "slurmckpt.toml: is not valid TOML")]


# A prolog as slurmd runs it, in a process of its own: the coordinator it leaves only tells what it has.
PROGRAM = """\
import json, os, signal, sys
from pathlib import Path
from slurmckpt import logs
from slurmckpt.config import Log, Paths, Settings
from slurmckpt.coordinator import daemon, spec, sockets
from slurmckpt.hooks import prolog
top = Path(sys.argv[1])
settings = Settings(log=Log(path=top / "log"), paths=Paths(run=top))
def target(name):
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except FileNotFoundError:
        return "/proc/self/fd"  # that of the listing itself
def run(job, settings, declined, task_socket, control_socket, waiting):
    import logging
    # The next descriptor must be nobody else's: what is logged must not end up in it.
    other = os.open(top / "other", os.O_RDWR | os.O_CREAT)
    logging.getLogger().warning("the coordinator is here")
    document = {
        "descriptors": {name: target(name) for name in os.listdir("/proc/self/fd")},
        "environment": sorted(os.environ), "directory": os.getcwd(), "session": os.getsid(0), "pid": os.getpid(),
        "parent": os.getppid(), "blocked": [int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        "sockets": [task_socket.fileno(), control_socket.fileno()], "log": settings.log.path.name, "other": other,
        "umask": os.umask(0),
    }
    (top / "found.tmp").write_text(json.dumps(document))
    os.rename(top / "found.tmp", top / "found")
    if waiting is not None:
        print("in time" if waiting.let_go() else "late", file=open(top / "lease", "w"))
daemon.run = run
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGCHLD])
logs.start(settings.log.path, "info", "prolog")
(top / "7").mkdir()
pair = sockets.bind(top / "7")
job = spec.from_environment(os.environ)
prolog._detach(job, settings, "", *pair)
print("returned", os.getpid(), (top / "found").exists())
"""


def start(top: Path, pass_fds: list[int], **environment: str) -> subprocess.CompletedProcess[str]:
    program = top / "program.py"
    program.write_text(PROGRAM)
    return subprocess.run(
        [sys.executable, program, top],
        env={
            "PYTHONPATH": str(ROOT / "src"),
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_UID": str(os.getuid()),
            "SLURM_CONF": "/etc/slurm/slurm.conf",
            "SECRET": "of the prolog",
            **environment,
        },
        pass_fds=pass_fds,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_coordinator_has_nothing_of_the_prologs(tmp_path: Path) -> None:
    leak = os.open(tmp_path / "leak", os.O_RDWR | os.O_CREAT)
    done = start(tmp_path, [leak])
    os.close(leak)
    # Reaching the end of its output means that nothing the coordinator inherited kept the pipes open.
    assert done.returncode == 0 and done.stdout.startswith("returned "), done.stderr
    wait_until((tmp_path / "found").exists, "what it has found")
    found = json.loads((tmp_path / "found").read_text())
    targets = {int(number): target for number, target in found["descriptors"].items()}
    assert [targets[number] for number in (0, 1, 2)] == ["/dev/null"] * 3
    others = {target for number, target in targets.items() if number > 2 and number not in found["sockets"]}
    assert {target for target in others if not target.startswith("/proc/")} == {
        str(tmp_path / "log"),
        str(tmp_path / "other"),
    }
    assert all(targets[number].startswith("socket:") for number in found["sockets"])
    assert found["environment"] == ["LANG", "PATH", "SLURM_CONF"]
    assert (found["directory"], found["umask"], found["blocked"]) == ("/", 0o022, [])
    assert found["session"] not in (os.getsid(0), found["pid"])
    assert found["parent"] != int(done.stdout.split()[1])
    # Its log is the log, and nothing else.
    assert "the coordinator is here" in (tmp_path / "log").read_text()
    assert (tmp_path / "other").read_bytes() == b""


def test_a_prolog_of_a_job_that_starts_again_waits_for_the_lease(tmp_path: Path) -> None:
    """Slurm empties the job's output when it returns."""
    done = start(tmp_path, [], SLURM_RESTART_COUNT="1")
    assert done.stdout.endswith(" True\n"), done.stderr
    wait_until(lambda: (tmp_path / "lease").exists() and (tmp_path / "lease").read_text(), "the coordinator's answer")
    assert (tmp_path / "lease").read_text() == "in time\n"
