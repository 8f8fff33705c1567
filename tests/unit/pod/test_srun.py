"""The stand-in for srun: everything goes to the coordinator, signals out, the status in; or the real srun runs here."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.awaiting import wait_until
from tests.unit.pod.harness import UID, build_variant, open_files, status_field
from tests.unit.pod.launching import StandIn, read_word, word
from tests.unit.pod.payloads import payload_header
from tests.unit.pod.test_hostile import malformed
from tests.unit.pod.test_signals import CATCHABLE

pytestmark = pytest.mark.root

WITHOUT = "slurmckpt: this srun runs without checkpoints: "
# The real srun of these tests: tells what it was executed with.
REAL = """#!/bin/sh
if [ "$1" = status ]; then exec cat /proc/self/status; fi
if [ "$1" = limits ]; then ulimit -Sn; fi
if [ "$1" = files ]; then exec ls /proc/self/fd; fi
echo "real $*, A=$A"
exit 7
"""
RAN = (7, "real -n 2 hostname, A=\n", "")


class House:
    """LIBEXEC of these tests: the stand-in, and beside it what a batch pod has.

    impatient: a stand-in that waits for answers for three seconds instead of a minute.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = build_variant(folder, "srun", libexec=folder)
        (folder / "impatient").mkdir(mode=0o755)
        self.impatient = build_variant(folder / "impatient", "srun", "ANSWER_PATIENCE_SECONDS=3", libexec=folder)
        (folder / "pod").mkdir(mode=0o755)
        self.real = folder / "pod/srun"
        self.socket = folder / "pod/launch.sock"


@pytest.fixture(scope="module")
def house(programs: None) -> Iterator[House]:
    with tempfile.TemporaryDirectory(prefix="slurmckpt-pod-") as name:
        Path(name).chmod(0o755)
        yield House(Path(name))


@pytest.fixture
def listening(house: House) -> Iterator[socket.socket]:
    house.real.write_text(REAL)
    house.real.chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(house.socket))
        house.socket.chmod(0o666)
        listening.listen(8)
        listening.settimeout(60)
        yield listening
    house.socket.unlink(missing_ok=True)


Start = Callable[..., StandIn]


@pytest.fixture
def start(house: House, listening: socket.socket) -> Iterator[Start]:
    started: list[StandIn] = []

    def start(*argv: str, program: Path = house.program, **options: Any) -> StandIn:
        started.append(StandIn(program, argv or ("srun", "-n", "2", "hostname"), **options))
        return started[-1]

    yield start
    for stand_in in started:
        stand_in.close()


def launched(start: Start, listening: socket.socket, *argv: str, **options: Any) -> StandIn:
    stand_in = start(*argv, **options)
    stand_in.take(listening)
    stand_in.launched()
    return stand_in


# Handing over


def test_everything_is_handed_over(start: Start, listening: socket.socket) -> None:
    reader, writer = os.pipe()

    def prepare() -> None:
        os.umask(0o027)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGUSR2})

    stand_in = start("srun", "a b", "", before_exec=prepare, env={"A": "1"}, cwd="/usr", pass_fds=(writer,))
    message = stand_in.take(listening)
    payload, *fds = message.fds
    header = payload_header(payload)
    expected = {"v": "1", "argc": "3", "envc": "1", "cwd": "/usr", "umask": "027", "relays": ""}
    assert {key: header[key] for key in expected} == expected
    assert (header["sigign"], header["sigmask"]) == ("1", f"{1 << (signal.SIGUSR2 - 1):x}")
    assert os.pread(payload, 1 << 20, 0).endswith(b"\0\0srun\0a b\0\0A=1\0")
    numbers = [int(number) for number in header["fds"].split(",")]
    assert numbers == [0, 1, 2, writer] and len(fds) == 4
    own = Path(f"/proc/{stand_in.process.pid}/fd")
    for number, fd in zip(numbers, fds, strict=True):
        ours, theirs = os.fstat(fd), (own / str(number)).stat()
        assert (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)
    sealed = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    assert fcntl.fcntl(payload, fcntl.F_GET_SEALS) & sealed == sealed
    stand_in.answer("DIRECT")
    os.close(reader)
    os.close(writer)


def test_it_waits_with_its_descriptors_and_two_pipes(start: Start, listening: socket.socket) -> None:
    """As a checkpoint finds it: no socket, no memfd, and the script's descriptors under their numbers."""
    extra = os.open("/etc/passwd", os.O_RDONLY)
    stand_in = launched(start, listening, pass_fds=(extra,))
    pid = stand_in.process.pid
    links = open_files(pid)
    assert {number: links.pop(number) for number in (0, extra)} == {0: "/dev/null", extra: "/etc/passwd"}
    assert links.pop(1).startswith("pipe:") and links.pop(2).startswith("pipe:")
    assert all(number >= 200 for number in links)
    inodes = [os.fstat(fd).st_ino for fd in (stand_in.signals.read_end, stand_in.status.write_end)]
    assert sorted(links.values()) == sorted(["anon_inode:[signalfd]", *(f"pipe:[{inode}]" for inode in inodes)])
    assert Path(f"/proc/{pid}/comm").read_text() == "srun\n"
    assert status_field(pid, "Uid").split() == [str(UID)] * 4
    assert int(status_field(pid, "VmRSS").split()[0]) < 2048
    assert stand_in.wire is not None
    stand_in.wire.expect_end()
    os.close(extra)


def test_closed_standard_streams_stay_closed(start: Start, listening: socket.socket) -> None:
    def close() -> None:
        os.close(0)

    stand_in = start(before_exec=close)
    message = stand_in.take(listening)
    assert payload_header(message.fds[0])["fds"] == "1,2"
    stand_in.launched()
    assert 0 not in open_files(stand_in.process.pid)


def test_a_tight_limit_of_open_files(start: Start, listening: socket.socket) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (7, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    stand_in = launched(start, listening, before_exec=limit)
    limits = Path(f"/proc/{stand_in.process.pid}/limits").read_text()
    assert "\nMax open files            7 " in limits
    stand_in.process.send_signal(signal.SIGUSR1)
    assert read_word(stand_in.signals.read_end) == signal.SIGUSR1
    stand_in.end(0)
    assert stand_in.finish() == (0, "", "")


# The real srun in its place


def test_direct_is_the_real_one(start: Start, listening: socket.socket) -> None:
    stand_in = start("srun", "files", env={"A": "1"})
    stand_in.take(listening)
    stand_in.answer("SAY", text="slurmckpt: not\x1b now")
    stand_in.answer("DIRECT")
    assert stand_in.finish() == (0, "0\n1\n2\n3\n", "slurmckpt: not? now\n"), "3 is that of ls"
    stand_in = start("srun", "x", env={"A": "1"})
    stand_in.take(listening)
    stand_in.answer("DIRECT")
    assert stand_in.finish() == (7, "real x, A=1\n", "")


def test_direct_keeps_limits_and_signals(start: Start, listening: socket.socket) -> None:
    def prepare() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (50, 60))
        signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGUSR2})

    stand_in = start("srun", "limits", before_exec=prepare)
    stand_in.take(listening)
    stand_in.answer("DIRECT")
    assert stand_in.finish()[1] == "50\nreal limits, A=\n"
    stand_in = start("srun", "status", before_exec=prepare)
    stand_in.take(listening)
    stand_in.process.send_signal(signal.SIGUSR2)
    stand_in.answer("DIRECT")
    fields = dict(line.split(":\t", 1) for line in stand_in.finish()[1].splitlines() if ":\t" in line)
    assert int(fields["SigBlk"], 16) == int(fields["ShdPnd"], 16) == 1 << (signal.SIGUSR2 - 1)


def test_a_signal_before_direct_reaches_the_real_one(start: Start, listening: socket.socket) -> None:
    stand_in = start()
    stand_in.take(listening)
    stand_in.process.send_signal(signal.SIGTERM)
    stand_in.answer("DIRECT")
    assert stand_in.finish()[0] == -signal.SIGTERM


def test_nobody_is_there(start: Start, house: House, listening: socket.socket) -> None:
    listening.close()
    assert start().finish() == (*RAN[:2], f"{WITHOUT}cannot reach the coordinator: Connection refused\n")
    house.socket.unlink()
    assert start().finish() == (*RAN[:2], f"{WITHOUT}cannot reach the coordinator: No such file or directory\n")


def test_the_coordinator_goes(start: Start, listening: socket.socket) -> None:
    stand_in = start()
    stand_in.take(listening)
    assert stand_in.wire is not None
    stand_in.wire.close()
    assert stand_in.finish() == (*RAN[:2], f"{WITHOUT}the coordinator is gone\n")


@pytest.mark.parametrize("said", [[], ["WAIT", "WAIT"]])
def test_the_coordinator_does_not_answer(start: Start, house: House, listening: socket.socket, said: list[str]) -> None:
    """Three seconds here, a minute in the real one, after the last that it said."""
    since = time.monotonic()
    stand_in = start(program=house.impatient)
    stand_in.take(listening)
    for verb in said:
        stand_in.answer(verb)
    assert stand_in.finish() == (*RAN[:2], f"{WITHOUT}the coordinator does not answer\n")
    assert time.monotonic() - since >= 3


@pytest.mark.parametrize("data", malformed(say=b"SAY\0", run=b"RUN\0", launched=b"LAUNCHED\0"))
def test_malformed_answers(start: Start, listening: socket.socket, data: bytes) -> None:
    stand_in = start()
    stand_in.take(listening)
    assert stand_in.wire is not None
    stand_in.wire.send_bytes(data)
    assert stand_in.finish() == (*RAN[:2], f"{WITHOUT}malformed message from the coordinator\n")


@pytest.mark.parametrize("count", [1, 3])
def test_launched_needs_two_pipes(start: Start, listening: socket.socket, count: int) -> None:
    stand_in = start()
    stand_in.take(listening)
    stand_in.answer("LAUNCHED", fds=[stand_in.signals.write_end] * count)
    assert stand_in.finish() == (*RAN[:2], f"{WITHOUT}malformed message from the coordinator\n")


def test_too_many_descriptors(start: Start, listening: socket.socket) -> None:
    def open_many() -> None:
        for _ in range(250):
            os.set_inheritable(os.open("/dev/null", os.O_RDONLY), True)

    stand_in = start(before_exec=open_many, close_fds=False)
    code, out, err = stand_in.finish()
    assert (code, out) == RAN[:2]
    assert err.startswith(WITHOUT) and err.endswith(" open descriptors, at most 240 can be handed over\n")


@pytest.mark.parametrize(("spoil", "code", "text"), [("missing", 127, "No such file"), ("mode", 126, "Permission")])
def test_without_the_real_one(
    start: Start, house: House, listening: socket.socket, spoil: str, code: int, text: str
) -> None:
    if spoil == "missing":
        house.real.unlink()
    else:
        house.real.chmod(0o644)
    stand_in = start()
    stand_in.take(listening)
    stand_in.answer("DIRECT")
    got, out, err = stand_in.finish()
    assert (got, out) == (code, "")
    assert err.startswith(f"slurmckpt: cannot execute {house.real}: {text}") and err.count("\n") == 1


# Standing in


def test_each_signal_goes_out_once(start: Start, listening: socket.socket) -> None:
    stand_in = launched(start, listening)
    stand_in.process.send_signal(signal.SIGCHLD)
    for number in [*CATCHABLE, 32, 33, signal.SIGCONT, signal.SIGTSTP]:
        stand_in.process.send_signal(number)
        assert read_word(stand_in.signals.read_end) == number
    stand_in.end(0)
    assert stand_in.finish() == (0, "", "")
    assert read_word(stand_in.signals.read_end) is None, "nothing else came"


def test_signals_from_before_the_answer_go_out(start: Start, listening: socket.socket) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    stand_in = start(before_exec=ignore)
    stand_in.take(listening)
    # what the shell ignores for its background jobs, srun decides about itself: it may want it after all
    for number in (signal.SIGINT, signal.SIGUSR1):
        stand_in.process.send_signal(number)
    stand_in.launched()
    assert [read_word(stand_in.signals.read_end) for _ in range(2)] == [signal.SIGINT, signal.SIGUSR1]


def test_no_signal_is_lost_in_a_full_pipe(start: Start, listening: socket.socket) -> None:
    stand_in = start()
    stand_in.take(listening)
    assert fcntl.fcntl(stand_in.signals.read_end, fcntl.F_SETPIPE_SZ, 4096) == 4096
    stand_in.launched()
    sent = 3000
    for _ in range(sent):
        stand_in.process.send_signal(signal.SIGRTMIN)
    wait_until(lambda: not _is_running(stand_in), "it sleeps")
    stand_in.process.send_signal(signal.SIGUSR1)
    got = [read_word(stand_in.signals.read_end) for _ in range(sent + 1)]
    assert got.count(signal.SIGRTMIN) == sent and got.count(signal.SIGUSR1) == 1
    stand_in.end(3 << 8)
    assert stand_in.finish()[0] == 3


def _is_running(stand_in: StandIn) -> bool:
    return status_field(stand_in.process.pid, "State").startswith("R")


def test_a_status_comes_through_a_full_signal_pipe(start: Start, listening: socket.socket) -> None:
    stand_in = start()
    stand_in.take(listening)
    fcntl.fcntl(stand_in.signals.read_end, fcntl.F_SETPIPE_SZ, 4096)
    stand_in.launched()
    for _ in range(3000):
        stand_in.process.send_signal(signal.SIGRTMIN)
    stand_in.end(5 << 8)
    assert stand_in.finish()[0] == 5


@pytest.mark.parametrize(
    ("status", "code"), [(0, 0), (1 << 8, 1), (255 << 8, 255), (9, -9), (11 | 0x80, -11), (15, -15)]
)
def test_it_ends_as_srun_ended(start: Start, listening: socket.socket, status: int, code: int) -> None:
    stand_in = launched(start, listening)
    stand_in.end(status)
    assert stand_in.finish() == (code, "", "")


@pytest.mark.parametrize("data", [b"", b"\0", word(0x7F), word(-1), word(1 << 16)])
def test_no_status_is_a_killed_srun(start: Start, listening: socket.socket, data: bytes) -> None:
    stand_in = launched(start, listening)
    os.write(stand_in.status.write_end, data)
    os.close(stand_in.status.take_write())
    assert stand_in.finish() == (-signal.SIGKILL, "", "")


def test_signals_without_a_reader_are_dropped(start: Start, listening: socket.socket) -> None:
    """The launcher has gone, its last word is on the way: no SIGPIPE, and no signal that srun never got, in between."""
    stand_in = launched(start, listening)
    os.close(stand_in.signals.take_read())
    stand_in.process.send_signal(signal.SIGUSR1)
    wait_until(lambda: not int(status_field(stand_in.process.pid, "ShdPnd"), 16), "it has tried")
    wait_until(lambda: status_field(stand_in.process.pid, "State").startswith("S"), "it sleeps again")
    assert not int(status_field(stand_in.process.pid, "SigPnd"), 16)
    stand_in.end(4 << 8)
    assert stand_in.finish()[0] == 4


def test_a_killed_stand_in_is_seen_by_the_launcher(start: Start, listening: socket.socket) -> None:
    stand_in = launched(start, listening)
    stand_in.process.kill()
    assert read_word(stand_in.signals.read_end) is None


def test_the_path_that_is_built_in(house: House) -> None:
    """`slurmckpt doctor` looks for it, in these bytes."""
    assert f"{house.folder}/pod/srun\0".encode() in house.program.read_bytes()


def test_by_hand_outside_a_pod() -> None:
    program = Path(__file__).resolve().parents[3] / "pod/srun"
    if Path("/usr/libexec/slurmckpt/pod/srun").exists():
        pytest.skip("slurmckpt is installed here")
    done = subprocess.run([program, "true"], capture_output=True, text=True, check=False)
    assert done.returncode == 127
    assert done.stderr == (
        f"{WITHOUT}cannot reach the coordinator: No such file or directory\n"
        "slurmckpt: cannot execute /usr/libexec/slurmckpt/pod/srun: No such file or directory\n"
    )
