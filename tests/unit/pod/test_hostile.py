"""Bytes that nobody should send: every program answers with one line and a defined end; nothing of it runs as root."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.pod.harness import POD, UID, FakeCoordinator, Pod, Shim, Wire, pack, shell
from tests.unit.pod.payloads import memfd, payload_bytes

pytestmark = pytest.mark.root


LEADER = POD / "leader"


GOOD = payload_bytes(["/bin/true"])


HOSTILE_PAYLOADS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "payload: it does not end with a NUL byte"),
    "no end": (GOOD[:-1], "payload: it does not end with a NUL byte"),
    "only NULs": (b"\0" * 100, "payload: v= is missing or not acceptable"),
    "header only": (GOOD.split(b"\0\0")[0] + b"\0", "payload: the empty string after the header is missing"),
    "no equals": (b"v\0" + GOOD, "payload: a header line has no '='"),
    "version": (GOOD.replace(b"v=1", b"v=2"), "payload: only version 1 is known"),
    "no argv": (GOOD.replace(b"argc=1", b"argc=0"), "payload: argc=0, at least 1 is needed"),
    "huge argc": (
        GOOD.replace(b"argc=1", b"argc=4294967296"),
        "payload: argc= is missing or not acceptable",
    ),
    "large argc": (
        GOOD.replace(b"argc=1", b"argc=8388608"),
        "payload: argc= and envc= do not fit the strings that follow",
    ),
    "large envc": (
        GOOD.replace(b"envc=0", b"envc=8388608"),
        "payload: argc= and envc= do not fit the strings that follow",
    ),
    "negative": (GOOD.replace(b"argc=1", b"argc=-1"), "payload: argc= is missing or not acceptable"),
    "too many strings": (GOOD + b"more\0", "payload: argc= and envc= do not fit the strings that follow"),
    "umask": (GOOD.replace(b"umask=022", b"umask=9"), "payload: umask= is missing or not acceptable"),
    "fds": (GOOD.replace(b"fds=0,1,2", b"fds=0,1,"), "payload: fds= is not a list of numbers"),
    "many fds": (
        GOOD.replace(b"fds=0,1,2", b"fds=" + b",".join([b"1"] * 241)),
        "payload: more than 240 descriptors",
    ),
    "fewer fds": (GOOD.replace(b"fds=0,1,2", b"fds=0,1"), "the payload names 2 descriptors, 3 came"),
    "far fd": (
        GOOD.replace(b"fds=0,1,2", b"fds=0,1,2147483647"),
        "cannot place descriptor 2147483647: Bad file descriptor",
    ),
    "affinity": (payload_bytes(["x"], {"affinity": "xyz"}), "payload: affinity= is not a hexadecimal mask"),
    "long affinity": (
        payload_bytes(["x"], {"affinity": "f" * 5000}),
        "payload: affinity= has 5000 digits, accepted are 1 to 4096",
    ),
    "limit": (payload_bytes(["x"], {"rlimit.7": "1"}), "payload: a limit is not <number>=soft:hard"),
    "nice": (payload_bytes(["x"], {"nice": "--5"}), "payload: nice= is not a number from -20 to 20"),
    "sigmask": (payload_bytes(["x"], {"sigmask": "0x1"}), "payload: sigmask= is not a hexadecimal mask"),
    "too long": (GOOD + b"\0" * (8 << 20), "payload: more than 8388608 bytes"),
}


def run_with_payload(coordinator: FakeCoordinator, payload: int) -> tuple[Pod, Shim]:
    """A pod whose task 0 has this payload instead of what its shim sent."""
    shim = coordinator.started_shim(shell("true"))
    os.close(shim.fds[0])
    shim.fds = (payload, *shim.fds[1:])
    pod = coordinator.pod(shim)
    pod.lead([shim])
    return pod, shim


@pytest.mark.parametrize("name", HOSTILE_PAYLOADS)
def test_hostile_payload_is_one_line_and_exit_code_1(coordinator: FakeCoordinator, name: str) -> None:
    data, text = HOSTILE_PAYLOADS[name]
    pod, shim = run_with_payload(coordinator, memfd(data))
    assert shim.finish() == (1, "", f"slurmckpt: cannot start the task: {text}\n")
    assert pod.expect("EXITED").number("status") == 1 << 8
    pod.expect("DONE")


def test_payload_that_is_a_pipe_or_a_directory_does_not_hang(coordinator: FakeCoordinator) -> None:
    reader, writer = os.pipe()
    _, shim = run_with_payload(coordinator, reader)
    assert shim.finish() == (1, "", "slurmckpt: cannot start the task: payload: cannot read it: Illegal seek\n")
    os.close(writer)
    _, shim = run_with_payload(coordinator, os.open("/", os.O_RDONLY))
    assert shim.finish() == (1, "", "slurmckpt: cannot start the task: payload: cannot read it: Is a directory\n")


def test_payload_cannot_ask_for_more_than_the_user_has(coordinator: FakeCoordinator) -> None:
    extra = {
        "nice": "-20",
        "rlimit.7": "inf:inf",
        "affinity": "f" * 4096,
        "sigmask": "ffffffffffffffff",
        "sigign": "ffffffffffffffff",
        "uid": "0",
        "gid": "0",
        "groups": "0",
    }
    data = payload_bytes(["/bin/cat", "/proc/self/status"], extra, cwd="/root/x")
    _, shim = run_with_payload(coordinator, memfd(data))
    code, out, err = shim.finish()
    fields = dict(line.split(":\t", 1) for line in out.splitlines() if ":\t" in line)
    assert code == 0
    assert fields["Uid"].split() == [str(UID)] * 4
    assert int(fields["CapEff"], 16) == int(fields["CapPrm"], 16) == 0
    assert err.startswith("slurmstepd: error: couldn't chdir to `/root/x': ")


def test_hostile_payload_runs_with_the_users_rights_only(coordinator: FakeCoordinator, scratch: Path) -> None:
    """Whatever reads the payload is the user: a program that only root may execute is refused."""
    secret = scratch / "secret"
    secret.write_text(f"#!/bin/sh\ntouch {scratch}/ran\n")
    secret.chmod(0o700)
    _, shim = run_with_payload(coordinator, memfd(payload_bytes([str(secret)])))
    assert shim.finish() == (13, "", f"slurmstepd: error: execve(): {secret}: Permission denied\n")
    assert not (scratch / "ran").exists()


payload_parts = st.one_of(
    st.sampled_from(
        [b"v=1", b"argc=1", b"argc=2", b"envc=0", b"envc=1", b"cwd=/", b"umask=022", b"fds=", b"fds=0,1,2"]
    ),
    st.sampled_from(
        [b"", b"/bin/true", b"affinity=ff", b"nice=0", b"rlimit.7=1:2", b"rlimit.=:", b"sigmask=", b"=", b"x"]
    ),
    st.binary(max_size=20),
)


def parsed_by_check(what: str, data: bytes) -> str:
    """What the parser, built with sanitizers, says about data."""
    result = subprocess.run([POD / "build/check", what], input=data, capture_output=True, check=False, timeout=60)
    assert result.returncode == 0, result.stderr.decode(errors="replace")
    return result.stdout.decode(errors="replace").strip()


@settings(max_examples=120, deadline=None)
@given(st.lists(payload_parts, max_size=14))
def test_any_payload_is_parsed_without_a_fault(parts: list[bytes]) -> None:
    verdict = parsed_by_check("payload", b"".join(part + b"\0" for part in parts))
    assert verdict == "good" or verdict.startswith("payload: ")


@settings(max_examples=120, deadline=None)
@given(st.integers(0, len(GOOD)), st.binary(max_size=8), st.integers(0, 8))
@example(len(GOOD), b"", 0)
def test_a_damaged_payload_is_parsed_without_a_fault(at: int, insert: bytes, remove: int) -> None:
    data = GOOD[:at] + insert + GOOD[at + remove :]
    verdict = parsed_by_check("payload", data)
    assert verdict == "good" or verdict.startswith("payload: ")
    if data == GOOD:
        assert verdict == "good"


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=40))
@example(b"GO\0")
@example(b"GO\0a=\0")
@example(b"GO\0=a\0")
def test_any_message_is_judged_without_a_fault(data: bytes) -> None:
    verb, *rest = data.split(b"\0")[:-1] or [b""]
    good = data.endswith(b"\0") and verb != b"" and all(b"=" in part[1:] for part in rest)
    assert parsed_by_check("message", data) == ("good" if good else "malformed")


MALFORMED = {
    "no NUL": b"GO",
    "only a NUL": b"\0",
    "no verb": b"\0a=b\0",
    "no equals": b"GO\0novalue\0",
    "noise": b"\xff" * 100,
    "unknown verb": pack("NOSUCHVERB"),
    "too long": b"X" * 150_000 + b"\0",
}


def malformed(**more: bytes) -> list[ParameterSet]:
    return [pytest.param(data, id=name) for name, data in {**MALFORMED, **more}.items()]


@pytest.mark.parametrize("data", malformed())
def test_shim_before_run(coordinator: FakeCoordinator, data: bytes) -> None:
    shim = coordinator.started_shim(shell("echo ran"))
    shim.wire.send_bytes(data)
    text = "slurmckpt: malformed message from the coordinator, this task runs without checkpoints\n"
    assert shim.finish() == (0, "ran\n", text)


@pytest.mark.parametrize(
    "data",
    malformed(
        run=pack("RUN"),
        direct=pack("DIRECT"),
        exit=pack("EXIT"),
        say=pack("SAY"),
        stopped=pack("EXIT", [("status", 0x137F)]),
    ),
)
def test_shim_after_run(coordinator: FakeCoordinator, data: bytes) -> None:
    shim = coordinator.started_shim(shell("echo ran"))
    shim.wire.send("RUN")
    shim.wire.send_bytes(data)
    text = "slurmckpt: malformed message from the coordinator, this task is killed\n"
    assert shim.finish() == (-signal.SIGKILL, "", text)


def test_shim_with_a_connection_that_is_none(coordinator: FakeCoordinator) -> None:
    shim = coordinator.shim(shell("echo ran"), connection=1)
    text = "slurmckpt: this task runs without checkpoints: descriptor 1 is not the coordinator's connection\n"
    assert shim.finish() == (0, "ran\n", text)


def test_shim_by_hand() -> None:
    result = subprocess.run([POD / "shim"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (
        2,
        "slurmstepd: error: No executable program specified for this task\n",
    )
    result = subprocess.run([POD / "shim", "x", "y", "/bin/echo", "ran"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "ran\n")
    assert result.stderr == (
        "slurmckpt: this task runs without checkpoints: y is not the number of the coordinator's connection\n"
    )


@pytest.mark.parametrize(
    "data", malformed(none=pack("SIGNAL"), high=pack("SIGNAL", [("n", 65)]), zero=pack("SIGNAL", [("n", 0)]))
)
def test_pod_init_and_a_hostile_shim(coordinator: FakeCoordinator, data: bytes) -> None:
    """Its task is killed; the other goes on."""
    shims = [coordinator.started_shim(shell("exec sleep 1000")) for _ in range(2)]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    hostile = Wire(ours)
    pod = coordinator.pod(shims[0])
    pod.wire.send("LEADER", path=LEADER, uid=UID, gid=UID, groups="", ntasks=2, pid=100)
    pod.wire.send("TASK", index=0, fds=(theirs.fileno(), *shims[0].fds))
    theirs.close()
    pod.task(1, shims[1])
    pod.go(shims)
    # descriptors that nobody asked for must not pile up in pod-init either
    before = len(os.listdir(f"/proc/{pod.pid}/fd"))
    hostile.send_bytes(data, fds=(0, 1, 2))
    message = hostile.expect("SAY")
    assert message.values["text"] == "slurmckpt: malformed message from the task shim, the task is killed"
    hostile.expect_end()
    assert pod.expect("EXITED").values == {"index": "0", "status": "9"}
    assert len(os.listdir(f"/proc/{pod.pid}/fd")) <= before - 1
    assert shims[1].process.poll() is None
    hostile.close()


CONTROL = {
    "malformed": (b"GO", "malformed message"),
    "unknown": (pack("NOSUCHVERB"), "NOSUCHVERB is not a message to pod init"),
    "leader without path": (pack("LEADER", [("ntasks", 1)]), "LEADER needs path=, absolute"),
    "relative path": (pack("LEADER", [("path", "leader")]), "LEADER needs path=, absolute"),
    "leader without ntasks": (pack("LEADER", [("path", LEADER)]), "LEADER needs ntasks= from 1 to 65536"),
    "no tasks": (pack("LEADER", [("path", LEADER), ("ntasks", 0)]), "LEADER needs ntasks= from 1 to 65536"),
    "leader without pid": (pack("LEADER", [("path", LEADER), ("ntasks", 1)]), "LEADER needs pid=, from 2 on"),
    "leader as pod init": (
        pack("LEADER", [("path", LEADER), ("ntasks", 1), ("pid", 1)]),
        "LEADER needs pid=, from 2 on",
    ),
    "a last pid that is none": (pack("LASTPID", [("pid", 0)]), "LASTPID needs pid=, from 1 on"),
    "no last pid": (pack("LASTPID"), "LASTPID needs pid=, from 1 on"),
    "task alone": (pack("TASK", [("index", 0)]), "TASK came without a LEADER that expects it"),
    "shim alone": (pack("SHIM", [("index", 0), ("pid", 5)]), "SHIM came without an ADOPT"),
    "go alone": (pack("GO"), "GO came before all tasks were announced"),
    "adopt without leader": (pack("ADOPT"), "ADOPT needs leader=, a pid of the pod"),
    "adopt itself": (pack("ADOPT", [("leader", 1)]), "ADOPT needs leader=, a pid of the pod"),
    "say nothing": (pack("SAY"), "SAY needs text="),
    "hold nothing": (pack("HOLD"), "HOLD needs exits=, yes or no"),
    "hold some exits": (pack("HOLD", [("exits", "some"), ("signals", 0)]), "HOLD needs exits=, yes or no"),
    "hold for ever": (
        pack("HOLD", [("exits", "no"), ("signals", 0), ("patience", 0)]),
        "HOLD: patience= is not a number of milliseconds from 1 to 86400000",
    ),
    "hold for years": (
        pack("HOLD", [("exits", "no"), ("signals", 0), ("patience", 86400001)]),
        "HOLD: patience= is not a number of milliseconds from 1 to 86400000",
    ),
    "hold no signals": (pack("HOLD", [("exits", "no")]), "HOLD needs signals=, a hexadecimal mask"),
    "hold a number": (
        pack("HOLD", [("exits", "no"), ("signals", "0x1")]),
        "HOLD needs signals=, a hexadecimal mask",
    ),
    "hold too much": (
        pack("HOLD", [("exits", "no"), ("signals", "10000000000000000")]),
        "HOLD needs signals=, a hexadecimal mask",
    ),
    "pass nothing": (pack("PASS"), "PASS needs index="),
    "pass signal 0": (pack("PASS", [("index", 0), ("n", 0)]), "PASS: n= is not a signal from 1 to 64"),
    "pass signal 65": (pack("PASS", [("index", 0), ("n", 65)]), "PASS: n= is not a signal from 1 to 64"),
}


@pytest.mark.parametrize("name", CONTROL)
def test_pod_init_and_a_broken_coordinator(coordinator: FakeCoordinator, name: str) -> None:
    data, text = CONTROL[name]
    pod = coordinator.pod(coordinator.started_shim(shell("true")))
    pod.wire.send_bytes(data)
    assert pod.expect("FAILED").values == {"reason": text}
    pod.wire.expect_end()
    pod.wait_gone()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (pack("TASK", [("index", 1)]), "TASK needs index= and at least two descriptors"),
        (pack("TASK", []), "TASK needs index= and at least two descriptors"),
        (pack("GO"), "GO came before all tasks were announced"),
        (pack("LEADER", [("path", LEADER), ("ntasks", 1), ("pid", 100)]), "LEADER came while the pod is not empty"),
    ],
)
def test_pod_init_while_tasks_are_announced(coordinator: FakeCoordinator, data: bytes, text: str) -> None:
    shim = coordinator.started_shim(shell("true"))
    pod = coordinator.pod(shim)
    pod.wire.send("LEADER", path=LEADER, uid=UID, gid=UID, groups="", ntasks=2, pid=100)
    pod.task(0, shim)
    pod.wire.send_bytes(data)
    assert pod.expect("FAILED").values == {"reason": text}
    pod.wait_gone()


@pytest.mark.parametrize("data", [b"GO", pack("NOSUCHVERB"), pack("GO"), pack("ADOPT", [("leader", 100)])])
def test_running_tasks_survive_a_broken_coordinator(coordinator: FakeCoordinator, data: bytes) -> None:
    pod, (shim,) = coordinator.run(shell("exec sleep 1000"))
    pod.wire.send_bytes(data)
    assert pod.expect("FAILED").values["reason"]
    pod.wire.expect_end()
    assert shim.process.poll() is None
    shim.signal(signal.SIGTERM)
    assert shim.finish()[0] == -signal.SIGTERM
    pod.wait_gone()


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"gid": 1, "groups": ""}, "uid= is not a user id"),
        ({"uid": -1, "gid": 1, "groups": ""}, "uid=-1 is not a user id"),
        ({"uid": 2**32 - 1, "gid": 1, "groups": ""}, "uid=4294967295 is not a user id"),
        ({"uid": 1, "gid": "x", "groups": ""}, "gid=x is not a group id"),
        ({"uid": 1, "gid": 1}, "groups= is missing"),
        ({"uid": 1, "gid": 1, "groups": "1,,2"}, "groups= is not a list of group ids"),
        ({"uid": 1, "gid": 1, "groups": "", "deny": "ptrace"}, "LEADER: deny=ptrace is not known, only io_uring is"),
    ],
)
def test_leader_refuses_what_it_does_not_understand(
    coordinator: FakeCoordinator, values: dict[str, object], text: str
) -> None:
    shim = coordinator.started_shim(shell("true"))
    pod = coordinator.pod(shim)
    pod.wire.send("LEADER", ("path", LEADER), ("ntasks", 1), ("pid", 100), *values.items())
    assert pod.expect("FAILED").values == {"reason": f"the leader failed: {text}"}
    pod.wait_gone()


@pytest.mark.parametrize("data", malformed(task=pack("TASK", [("index", 0)]), empty=pack("LEADER")))
def test_leader_and_a_broken_pod_init(data: bytes) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reader, writer = os.pipe()
    process = subprocess.Popen([LEADER, str(theirs.fileno()), str(writer)], pass_fds=(theirs.fileno(), writer))
    theirs.close()
    os.close(writer)
    wire = Wire(ours)
    wire.send_bytes(data)
    assert wire.expect("FAILED").values["reason"]
    assert process.wait(60) == 1
    assert os.read(reader, 1) == b""
    os.close(reader)
    wire.close()
