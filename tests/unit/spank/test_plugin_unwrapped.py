"""Tasks that run without checkpoints, and the line that says why."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.spank.plugged import GIVEN, JOB, NOBODY, TASK, UNWRAPPED, argv, lines, needs_root, run, task_words


def without_checkpoints(done: subprocess.CompletedProcess[str]) -> str:
    """The reason that the job's stderr states; the task runs as it would without us."""
    assert argv(done) == UNWRAPPED
    assert lines(done, "inherits") == []
    match = re.fullmatch(
        r"slurmckpt: no checkpoints for this step: (.*); see /var/log/slurmckpt\.log on n1\n", done.stderr
    )
    assert match, done.stderr
    return match[1]


NODE = "env=SLURMD_NODENAME=n1"


@needs_root
@pytest.mark.parametrize(
    ("options", "exists", "reason"),
    [
        ([GIVEN], False, "there is no coordinator for this job on this node"),
        (["opt=checkpoint-fresh"], False, "there is no coordinator for this job on this node"),
        ([], True, "there is no coordinator for this job on this node"),
    ],
)
def test_no_coordinator(host: Path, plugin: Path, libexec: Path, options: list[str], exists: bool, reason: str) -> None:
    if exists:
        (libexec / str(JOB)).mkdir()
    done = run(host, plugin, "remote", *task_words(libexec), *options, NODE, *TASK)
    assert without_checkpoints(done) == reason


@needs_root
def test_a_dead_coordinator(host: Path, plugin: Path, libexec: Path, listener: socket.socket) -> None:
    listener.close()
    done = run(host, plugin, "remote", *task_words(libexec), GIVEN, NODE, *TASK)
    assert without_checkpoints(done) == "the coordinator of this job has ended"


@needs_root
def test_a_full_queue_does_not_hold_the_task(host: Path, plugin: Path, libexec: Path) -> None:
    (libexec / str(JOB)).mkdir()
    path = str(libexec / str(JOB) / "task.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen(0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as first:
            first.connect(path)  # takes the only place
            done = run(host, plugin, "remote", *task_words(libexec), GIVEN, NODE, *TASK)
    assert without_checkpoints(done) == "the coordinator of this job does not answer"


@needs_root
def test_a_socket_of_another_user_is_not_trusted(host: Path, plugin: Path, libexec: Path) -> None:
    (libexec / str(JOB)).mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(libexec / str(JOB) / "task.sock"))
        # The peer credentials of a listener are those of the process that calls listen().
        listen = f"import os, socket; os.setuid({NOBODY}); socket.socket(fileno={listening.fileno()}).listen(1)"
        subprocess.run([sys.executable, "-c", listen], pass_fds=[listening.fileno()], check=True)
        done = run(host, plugin, "remote", *task_words(libexec), GIVEN, NODE, *TASK)
    assert without_checkpoints(done).endswith("task.sock is not root's")


def make_fifo(shim: Path) -> None:
    shim.unlink()
    os.mkfifo(shim, 0o755)


@needs_root
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda shim: shim.unlink(), "No such file or directory"),
        (lambda shim: os.chown(shim, NOBODY, 0), "not owned by root, or writable by others"),
        (lambda shim: shim.chmod(0o775), "not owned by root, or writable by others"),
        (lambda shim: shim.chmod(0o744), "not executable by everybody"),
        (lambda shim: shim.write_text(""), "not a program"),
        (lambda shim: shim.write_text("#!/bin/sh\n"), "not a program"),
        (make_fifo, "not a regular file"),
    ],
)
def test_a_bad_shim_never_reaches_the_task(
    host: Path, plugin: Path, libexec: Path, listener: socket.socket, spoil: object, reason: str
) -> None:
    assert callable(spoil)
    spoil(libexec / "shim")
    done = run(host, plugin, "remote", *task_words(libexec), GIVEN, NODE, *TASK)
    assert without_checkpoints(done) == f"{libexec}/shim: {reason}"


@needs_root
def test_a_file_system_without_exec_never_reaches_the_task(
    host: Path, plugin: Path, libexec: Path, listener: socket.socket
) -> None:
    mounted = libexec / "noexec"
    mounted.mkdir()
    script = 'mount -t tmpfs -o noexec none "$0" && cp "$0/../shim" "$0/" && exec "$@"'
    words = [*task_words(libexec), f"arg=libexec={mounted}", GIVEN, NODE, f"setuid={NOBODY}", *TASK]
    command = ["unshare", "--mount", "sh", "-c", script, str(mounted), str(host), str(plugin), "remote", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert without_checkpoints(done) == "this task cannot execute the task shim: Permission denied"


@needs_root
def test_an_old_slurm_is_named(old_host: Path, plugin: Path, libexec: Path, listener: socket.socket) -> None:
    done = run(old_host, plugin, "remote", *task_words(libexec), GIVEN, NODE, *TASK)
    assert "23.11" in without_checkpoints(done)
    connection, _ = listener.accept()
    with connection:  # HELLO, then end of file: this task does not come
        assert connection.recv(4096).startswith(b"HELLO\0")
        assert connection.recv(4096) == b""


@needs_root
def test_a_task_in_another_root_runs_unwrapped(
    host: Path, plugin: Path, libexec: Path, listener: socket.socket
) -> None:
    (libexec / "container").mkdir()
    words = [*task_words(libexec), GIVEN, NODE, f"chroot={libexec / 'container'}"]
    assert "another root directory" in without_checkpoints(run(host, plugin, "remote", *words, *TASK))


@needs_root
def test_an_oci_container_runs_unwrapped(host: Path, plugin: Path, libexec: Path, listener: socket.socket) -> None:
    done = run(host, plugin, "remote", *task_words(libexec), GIVEN, NODE, "env=SLURM_CONTAINER=/bundle", *TASK)
    assert "OCI container" in without_checkpoints(done)


@needs_root
@pytest.mark.parametrize(
    ("items", "said", "logged"), [({"task": 1}, False, False), ({"nodeid": 1}, False, True), ({}, True, True)]
)
def test_the_line_is_said_once_for_a_step(
    host: Path, plugin: Path, libexec: Path, items: dict[str, int], said: bool, logged: bool
) -> None:
    done = run(host, plugin, "remote", *task_words(libexec, **items), GIVEN, NODE, *TASK)
    assert (bool(done.stderr), bool(lines(done, "info"))) == (said, logged)


BATCH = 0xFFFFFFFB
MISSING = "there is no coordinator for this job on this node"


@needs_root
def test_the_line_is_said_once_for_a_script_and_its_steps(host: Path, plugin: Path, libexec: Path) -> None:
    """A script may start thousands. Where nothing of the job is on the node, its environment carries the word."""
    script = run(host, plugin, "remote", *task_words(libexec, step=BATCH), GIVEN, NODE, *TASK)
    assert without_checkpoints(script) == MISSING
    (word,) = [line for line in lines(script, "environment") if line.startswith("SLURM_CKPT_TOLD=")]
    assert word == f"SLURM_CKPT_TOLD={MISSING}"
    step = run(host, plugin, "remote", *task_words(libexec), GIVEN, NODE, f"env={word}", *TASK)
    assert (step.stderr, argv(step)) == ("", UNWRAPPED)
    assert lines(step, "info") and not [line for line in lines(step, "environment") if "TOLD" in line]
    # A job that the script submits has an output of its own; and another reason is news.
    nested = run(host, plugin, "remote", *task_words(libexec, step=BATCH), GIVEN, NODE, f"env={word}", *TASK)
    assert without_checkpoints(nested) == MISSING
    other = run(host, plugin, "remote", *task_words(libexec), GIVEN, NODE, "env=SLURM_CKPT_TOLD=other", *TASK)
    assert without_checkpoints(other) == MISSING


@needs_root
def test_the_line_is_said_once_when_the_coordinator_has_died(
    host: Path, plugin: Path, libexec: Path, listener: socket.socket
) -> None:
    """The script runs on; its sruns find the job's directory."""
    listener.close()
    words = [*task_words(libexec), GIVEN, NODE, *TASK]
    assert without_checkpoints(run(host, plugin, "remote", *words)) == "the coordinator of this job has ended"
    assert [run(host, plugin, "remote", *words).stderr for _ in range(2)] == ["", ""]
    (libexec / str(JOB) / "task.sock").unlink()
    assert without_checkpoints(run(host, plugin, "remote", *words)) == MISSING
    assert run(host, plugin, "remote", *words).stderr == ""
    assert (libexec / str(JOB) / "told").stat().st_mode & 0o7777 == 0o600


@needs_root
def test_a_closed_stderr_does_not_kill_the_task(host: Path, plugin: Path, libexec: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [str(host), str(plugin), "remote", *task_words(libexec), GIVEN, *TASK],
        stdout=subprocess.PIPE,
        stderr=writer,
        text=True,
        timeout=60,
        # Python ignores SIGPIPE and children inherit that; a task has the default.
        restore_signals=True,
    )
    os.close(writer)
    assert done.returncode == 0
    assert UNWRAPPED[0] in done.stdout
