"""The plugin where the tasks start: who is wrapped, how, and what is said when it cannot be."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.spank.plugged import GIVEN, JOB, NOBODY, TASK, UNWRAPPED, argv, lines, needs_root, run, task_words

BATCH, INTERACTIVE, EXTERN = 0xFFFFFFFB, 0xFFFFFFFA, 0xFFFFFFFC


@needs_root
@pytest.mark.parametrize("step", [0, 5, BATCH])
@pytest.mark.parametrize("options", [[GIVEN], []])
def test_a_task_is_wrapped(
    host: Path, plugin: Path, libexec: Path, listener: socket.socket, step: int, options: list[str]
) -> None:
    words = task_words(libexec, step, task=3, gtask=11, ntasks=8, nnodes=2)
    done = run(host, plugin, "remote", *words, *options, f"setuid={NOBODY}", *TASK)
    assert done.stderr == ""
    (inherited,) = lines(done, "inherits")
    (line,) = argv(done)
    match = re.fullmatch(r"argv\|/proc/self/fd/(\d+)\|slurmckpt-shim\|(\d+)\|/bin/echo\|hello world", line)
    assert match and match[2] == inherited and match[1] != inherited

    connection, _ = listener.accept()
    with connection:
        message = connection.recv(65536)
        assert message.endswith(b"\0")
        verb, *fields = message[:-1].split(b"\0")
        assert verb == b"HELLO"
        assert dict(field.split(b"=") for field in fields) == {
            b"v": b"1",
            b"job": b"1234",
            b"step": str(step).encode(),
            b"task": b"3",
            b"gtask": b"11",
            b"ntasks": b"8",
            b"nnodes": b"2",
            b"uid": b"65534",
            b"gid": b"65534",
        }
        assert connection.recv(1) == b""  # the task has ended


# Ends when the coordinator's end is closed, after it has said on it that it is there.
ANCHOR = """#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	char byte;
	int sock = argc == 2 ? atoi(argv[1]) : -1;
	close(1);
	close(2);
	return write(sock, "anchor", 6) == 6 && read(sock, &byte, 1) == 0 ? 0 : 1;
}
"""


@pytest.fixture
def anchor(libexec: Path) -> Path:
    """A program in the place of the anchor."""
    source = libexec / "anchor.c"
    source.write_text(ANCHOR)
    subprocess.run(["cc", "-o", str(libexec / "anchor"), str(source)], check=True)
    return libexec / "anchor"


@needs_root
def test_the_first_task_of_a_step_brings_an_anchor(
    host: Path, plugin: Path, libexec: Path, listener: socket.socket, anchor: Path
) -> None:
    done = run(host, plugin, "remote", *task_words(libexec, ntasks=2), GIVEN, f"setuid={NOBODY}", *TASK)
    # Nothing of it but the child is the task's.
    assert len(lines(done, "inherits")) == 1 and len(argv(done)) == 1
    connection, _ = listener.accept()
    with connection:
        message, descriptors, _, _ = socket.recv_fds(connection, 65536, 4)
        assert message.startswith(b"HELLO\0v=1\0") and len(descriptors) == 1
        with socket.socket(fileno=descriptors[0]) as leading:
            assert leading.recv(100) == b"anchor"
    run(host, plugin, "remote", *task_words(libexec, task=1, ntasks=2), GIVEN, f"setuid={NOBODY}", *TASK)
    connection, _ = listener.accept()
    with connection:
        assert socket.recv_fds(connection, 65536, 4)[1] == []


@needs_root
@pytest.mark.parametrize("spoil", [lambda path: path.unlink(), lambda path: path.chmod(0o777)])
def test_a_task_is_wrapped_without_an_anchor(
    host: Path, plugin: Path, libexec: Path, listener: socket.socket, anchor: Path, spoil: Callable[[Path], None]
) -> None:
    """The pod then stands outside Slurm's process tree; that is no reason to go without checkpoints."""
    spoil(anchor)
    done = run(host, plugin, "remote", *task_words(libexec), GIVEN, f"setuid={NOBODY}", *TASK)
    assert "slurmckpt-shim" in argv(done)[0]
    assert lines(done, "info") == [f"slurmckpt: {anchor}: " + lines(done, "info")[0].partition(f"{anchor}: ")[2]]
    connection, _ = listener.accept()
    with connection:
        assert socket.recv_fds(connection, 65536, 4)[1] == []


@needs_root
def test_a_task_that_is_not_wrapped_has_no_child_that_it_did_not_make(
    host: Path, plugin: Path, libexec: Path, listener: socket.socket, anchor: Path
) -> None:
    listener.close()
    words = [*task_words(libexec), GIVEN, "exec=1", "--", "/bin/sh", "-c", "cat /proc/$$/task/$$/children"]
    done = subprocess.run([str(host), str(plugin), "remote", *words], capture_output=True, text=True, timeout=60)
    # The child that it does see is the cat.
    assert len(done.stdout.splitlines()[-1].split()) == 1, done.stdout


@needs_root
def test_the_batch_script_is_on_one_node(host: Path, plugin: Path, libexec: Path, listener: socket.socket) -> None:
    """Slurm 26.05.5 says 0 there."""
    run(host, plugin, "remote", *task_words(libexec, BATCH, nnodes=0), GIVEN, *TASK)
    connection, _ = listener.accept()
    with connection:
        assert b"nnodes=1" in connection.recv(65536).split(b"\0")


@needs_root
def test_the_shim_is_executed_through_its_descriptor(
    host: Path, plugin: Path, libexec: Path, listener: socket.socket
) -> None:
    words = [*task_words(libexec), GIVEN, f"setuid={NOBODY}", "exec=1", *TASK]
    done = subprocess.run([str(host), str(plugin), "remote", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 7, done.stderr
    assert re.search(
        r"\[/proc/self/fd/\d+\]\[slurmckpt-shim\]\[\d+\]\[/bin/echo\]\[hello world\] timeout 0$", done.stdout
    )


def test_nothing_asked_nothing_done(host: Path, plugin: Path, tmp_path: Path) -> None:
    done = run(host, plugin, "remote", *task_words(tmp_path), *TASK)
    assert argv(done) == UNWRAPPED
    assert (done.stderr, lines(done, "info")) == ("", [])


@needs_root
@pytest.mark.parametrize("step", [EXTERN, INTERACTIVE])
def test_extern_and_interactive_are_left_alone(
    host: Path, plugin: Path, libexec: Path, listener: socket.socket, step: int
) -> None:
    done = run(host, plugin, "remote", *task_words(libexec, step), GIVEN, *TASK)
    assert argv(done) == UNWRAPPED
    assert done.stderr == ""
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.accept()


@needs_root
def test_off_wins_when_it_comes_last(host: Path, plugin: Path, libexec: Path, listener: socket.socket) -> None:
    off = "opt=checkpoint-interval=off"
    done = run(host, plugin, "remote", *task_words(libexec), GIVEN, off, "opt=checkpoint-keep=2", *TASK)
    assert (argv(done), done.stderr) == (UNWRAPPED, "")
    done = run(host, plugin, "remote", *task_words(libexec), off, GIVEN, *TASK)
    assert argv(done) != UNWRAPPED


def hello(listener: socket.socket) -> dict[bytes, bytes]:
    """What the plugin says of the only task that comes; it has left by then."""
    connection, _ = listener.accept()
    with connection:
        verb, *fields = connection.recv(65536)[:-1].split(b"\0")
        assert verb == b"HELLO"
        assert connection.recv(1) == b""
    return dict(field.split(b"=", 1) for field in fields)


LAUNCH = "env=SLURM_CKPT_LAUNCH="


@needs_root
@pytest.mark.parametrize(("text", "said"), [("0", b"0"), ("17", b"17"), ("007", b"7"), ("999999999", b"999999999")])
def test_the_launch_is_named_and_taken_out(
    host: Path, plugin: Path, libexec: Path, listener: socket.socket, text: str, said: bytes
) -> None:
    done = run(host, plugin, "remote", *task_words(libexec), GIVEN, "env=A=1", LAUNCH + text, "env=B=2", *TASK)
    assert argv(done) != UNWRAPPED
    fields = hello(listener)
    assert fields[b"launch"] == said
    assert b"off" not in fields
    assert sorted(lines(done, "environment")) == ["A=1", "B=2"]


@needs_root
@pytest.mark.parametrize("text", ["", "x", "-1", " 1", "1 ", "+1", "1000000000", "1" * 300])
def test_what_is_no_launch_is_left_alone(
    host: Path, plugin: Path, libexec: Path, listener: socket.socket, text: str
) -> None:
    done = run(host, plugin, "remote", *task_words(libexec), GIVEN, LAUNCH + text, *TASK)
    assert argv(done) != UNWRAPPED
    assert b"launch" not in hello(listener)
    assert lines(done, "environment") == [f"SLURM_CKPT_LAUNCH={text}"]


@needs_root
def test_the_launch_of_a_step_without_checkpoints_is_told(
    host: Path, plugin: Path, libexec: Path, listener: socket.socket
) -> None:
    words = [*task_words(libexec, 4, task=1, gtask=1, ntasks=2), GIVEN, "opt=checkpoint-interval=off", LAUNCH + "3"]
    done = run(host, plugin, "remote", *words, f"setuid={NOBODY}", *TASK)
    assert (argv(done), done.stderr, lines(done, "inherits"), lines(done, "environment")) == (UNWRAPPED, "", [], [])
    fields = hello(listener)
    assert {key: fields[key] for key in (b"off", b"launch", b"step", b"task", b"ntasks")} == {
        b"off": b"1",
        b"launch": b"3",
        b"step": b"4",
        b"task": b"1",
        b"ntasks": b"2",
    }


@needs_root
@pytest.mark.parametrize("exists", [True, False])
def test_off_needs_no_coordinator(host: Path, plugin: Path, libexec: Path, exists: bool) -> None:
    if exists:
        (libexec / str(JOB)).mkdir()
    done = run(host, plugin, "remote", *task_words(libexec), "opt=checkpoint-interval=off", LAUNCH + "3", *TASK)
    assert (argv(done), done.stderr, lines(done, "info")) == (UNWRAPPED, "", [])


@needs_root
@pytest.mark.parametrize(("step", "launch"), [(0, []), (EXTERN, [LAUNCH + "3"]), (INTERACTIVE, [LAUNCH + "3"])])
def test_off_is_told_to_nobody_else(
    host: Path, plugin: Path, libexec: Path, listener: socket.socket, step: int, launch: list[str]
) -> None:
    done = run(host, plugin, "remote", *task_words(libexec, step), "opt=checkpoint-interval=off", *launch, *TASK)
    assert (argv(done), done.stderr) == (UNWRAPPED, "")
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.accept()
