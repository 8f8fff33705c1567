"""The plugin in each SPANK context, loaded by a double of Slurm."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
JOB = 1234
BATCH, INTERACTIVE, EXTERN = 0xFFFFFFFB, 0xFFFFFFFA, 0xFFFFFFFC
NOBODY = 65534
OPTIONS = ["interval", "dir", "keep", "recover", "model", "fresh", "pre", "post", "restored"]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="the shim and the coordinator must be root's")


def run(
    host: Path, plugin: Path, context: str, *words: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(host), str(plugin), context, *words], capture_output=True, text=True, timeout=30, env=env or {}
    )
    assert done.returncode == 0, done.stderr
    return done


def lines(done: subprocess.CompletedProcess[str], kind: str) -> list[str]:
    return [line[len(kind) + 1 :] for line in done.stdout.splitlines() if line.startswith(kind + " ")]


# The file itself


def test_exports_what_slurm_calls_and_nothing_else(plugin: Path) -> None:
    table = subprocess.run(["nm", "-D", "--defined-only", str(plugin)], capture_output=True, text=True, check=True)
    assert {line.split()[-1] for line in table.stdout.splitlines()} == {
        "plugin_name",
        "plugin_type",
        "plugin_version",
        "spank_plugin_version",
        "slurm_spank_init",
        "slurm_spank_init_post_opt",
        "slurm_spank_task_init_privileged",
        "slurm_spank_task_init",
    }


def test_links_libc_only(plugin: Path) -> None:
    dynamic = subprocess.run(["readelf", "-d", str(plugin)], capture_output=True, text=True, check=True).stdout
    assert re.findall(r"NEEDED.*\[(.*)\]", dynamic) == ["libc.so.6"]


def test_prepend_is_a_weak_reference(plugin: Path) -> None:
    table = subprocess.run(["nm", "-D", "--undefined-only", str(plugin)], capture_output=True, text=True, check=True)
    assert " w spank_prepend_task_argv" in table.stdout


def test_missing_headers_are_one_line(tmp_path: Path) -> None:
    if Path("/usr/include/slurm/spank.h").exists():
        pytest.skip("Slurm's headers are installed")
    done = subprocess.run(
        ["make", "-C", str(ROOT / "spank"), f"BUILD={tmp_path}", "SLURM_CFLAGS=-I/nowhere"],
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert [line for line in done.stderr.splitlines() if "slurm/spank.h not found" in line] == [done.stderr.strip()]


def test_install_respects_destdir_and_prefix(build: Path, plugin: Path, tmp_path: Path) -> None:
    double = ROOT / "tests/unit/spank/double"
    command = ["make", "-s", "-C", str(ROOT / "spank"), "install", f"BUILD={build}", f"SLURM_CFLAGS=-I{double}"]
    subprocess.run([*command, f"DESTDIR={tmp_path}", "PREFIX=/opt/x"], check=True)
    assert (tmp_path / "opt/x/lib/slurmckpt/slurmckpt.so").read_bytes() == plugin.read_bytes()


# Options


@pytest.mark.parametrize("context", ["local", "allocator", "remote", "slurmd", "script"])
def test_every_context_registers_every_option(host: Path, plugin: Path, context: str) -> None:
    registered = lines(run(host, plugin, context, "step=0", "job=1", "arg=run=/nonexistent"), "registered")
    assert [entry.split("|")[0] for entry in registered] == [f"checkpoint-{name}" for name in OPTIONS]


def test_help_stays_in_slurms_columns(host: Path, plugin: Path) -> None:
    for entry in lines(run(host, plugin, "allocator"), "registered"):
        name, argument, has_argument, usage = entry.split("|")
        shown = f"      --{name}" + (f"={argument}" if argument else "")
        assert len(shown) < 30, shown  # spank_print_options(stdout, 6, 30)
        assert bool(argument) == (has_argument == "1")
        assert usage and usage[0].islower() and not usage.endswith(".")


@pytest.mark.parametrize("context", ["local", "allocator"])
@pytest.mark.parametrize(
    ("option", "value", "accepted"),
    [
        ("interval", "10x", "90s"),
        ("dir", "here", "absolute"),
        ("keep", "0", "1 to 1000"),
        ("recover", "sometimes", "nodefail"),
        ("model", "a b", "255"),
    ],
)
def test_a_wrong_value_stops_the_submission_with_one_line(
    host: Path, plugin: Path, context: str, option: str, value: str, accepted: str
) -> None:
    done = run(host, plugin, context, f"opt=checkpoint-{option}={value}")
    assert lines(done, "option") == [f"checkpoint-{option} -1"]
    (line,) = lines(done, "error")
    assert line.startswith(f"--checkpoint-{option}={value} is not accepted; accepted: ")
    assert accepted in line


def test_a_hostile_value_stays_on_one_line(host: Path, plugin: Path) -> None:
    done = run(host, plugin, "allocator", "opt=checkpoint-model=a\nb\x1b[31m" + "x" * 500)
    (line,) = lines(done, "error")
    assert line.startswith("--checkpoint-model=a?b?[31mxxx")
    assert len(line) < 300


def test_a_wrong_value_never_fails_on_the_node(host: Path, plugin: Path, tmp_path: Path) -> None:
    words = [f"opt=checkpoint-{name}=\n" for name in OPTIONS]
    done = run(host, plugin, "remote", "job=1", "step=0", f"arg=run={tmp_path}", *words, "--", "/bin/true")
    assert lines(done, "option") == [f"checkpoint-{name} 0" for name in OPTIONS]
    assert lines(done, "slurm_spank_task_init") == ["0"]


@pytest.mark.parametrize("value", [None, "", "(null)"])
def test_the_flag_ignores_what_slurm_passes_as_its_value(host: Path, plugin: Path, value: str | None) -> None:
    """Slurm itself puts "(null)" into the job's environment and an empty string into the step's."""
    word = "opt=checkpoint-fresh" + ("" if value is None else f"={value}")
    assert lines(run(host, plugin, "local", word), "option") == ["checkpoint-fresh 0"]


# srun inside a job


def job_environment(**values: str) -> dict[str, str]:
    prefix = "SLURM_SPANK__SLURM_SPANK_OPTION_slurmckpt_checkpoint_"
    return {"SLURM_JOB_ID": "7"} | {prefix + name: value for name, value in values.items()}


def test_srun_names_options_without_effect_on_a_step(host: Path, plugin: Path) -> None:
    words = ["opt=checkpoint-interval=10m", "opt=checkpoint-interval=5m", "opt=checkpoint-keep=3"]
    done = run(host, plugin, "local", *words, env=job_environment(interval="10m"))
    (line,) = lines(done, "info")
    assert line.startswith("slurmckpt: --checkpoint-interval, --checkpoint-keep: ")


@pytest.mark.parametrize(
    ("words", "env"),
    [
        (["opt=checkpoint-interval=10m"], job_environment(interval="10m")),
        (["opt=checkpoint-interval=10m", "opt=checkpoint-interval=off"], job_environment(interval="10m")),
        (["opt=checkpoint-interval=5m", "opt=checkpoint-interval=10m"], job_environment(interval="10m")),
        (["opt=checkpoint-fresh=(null)"], job_environment(fresh="(null)")),
        (["opt=checkpoint-interval=off"], {}),
        ([], {}),
    ],
)
def test_srun_is_silent_otherwise(host: Path, plugin: Path, words: list[str], env: dict[str, str]) -> None:
    assert lines(run(host, plugin, "local", *words, env=env), "info") == []


# What is said at the submission

INTERVAL = "opt=checkpoint-interval=10m"
NO_REQUEUE = "slurmckpt: Slurm will not requeue this job (--no-requeue): its checkpoints will not bring it back "


def submit(host: Path, plugin: Path, name: str, *words: str, **env: str) -> list[str]:
    """What the plugin says in an allocator of this name."""
    program = host.with_name(name)
    if not program.exists():
        program.symlink_to(host)
    return lines(run(program, plugin, "allocator", *words, env=env), "info")


@pytest.mark.parametrize(
    ("words", "env"),
    [
        (["optind=9", "--no-requeue"], {}),
        (["optind=9", "--requeue", "--no-requeue"], {}),
        ([], {"SBATCH_NO_REQUEUE": "1"}),
        (["optind=9", "--no-requeue"], {"SBATCH_REQUEUE": "1"}),
    ],
)
def test_a_job_that_is_not_requeued_is_told_so(host: Path, plugin: Path, words: list[str], env: dict[str, str]) -> None:
    (line,) = submit(host, plugin, "sbatch", INTERVAL, *words, **env)
    assert line.startswith(NO_REQUEUE)


@pytest.mark.parametrize(
    ("words", "env"),
    [
        ([], {}),
        (["optind=9", "--no-requeue", "--requeue"], {}),
        (["optind=9", "--no-requeue", "--requeue=expedite"], {}),
        (["optind=9", "--requeue"], {"SBATCH_NO_REQUEUE": "1"}),
        ([], {"SBATCH_NO_REQUEUE": "1", "SBATCH_REQUEUE": "1"}),
        # What stands behind the script's name is the script's.
        (["optind=5", "--no-requeue"], {}),
    ],
)
def test_a_job_that_is_requeued_is_told_nothing(
    host: Path, plugin: Path, words: list[str], env: dict[str, str]
) -> None:
    assert submit(host, plugin, "sbatch", INTERVAL, *words, **env) == []


def test_a_heterogeneous_job_is_told_once(host: Path, plugin: Path) -> None:
    assert submit(host, plugin, "sbatch", INTERVAL, "components=3") == [
        "slurmckpt: no checkpoints for this job: heterogeneous jobs are not supported yet"
    ]


ONLY_BATCH = "slurmckpt: no checkpoints for this job: only batch jobs (sbatch) can be requeued and restored"


def test_salloc_says_it_once(host: Path, plugin: Path) -> None:
    assert submit(host, plugin, "salloc", INTERVAL, "components=2") == [ONLY_BATCH]


def test_srun_says_it_for_a_job_of_its_own(host: Path, plugin: Path) -> None:
    assert lines(run(host, plugin, "local", INTERVAL, "components=2"), "info") == [ONLY_BATCH]


@pytest.mark.parametrize("words", [[], ["opt=checkpoint-interval=off"]])
@pytest.mark.parametrize("name", ["sbatch", "salloc"])
def test_who_asks_for_nothing_is_told_nothing(host: Path, plugin: Path, name: str, words: list[str]) -> None:
    assert submit(host, plugin, name, *words, "components=2", SBATCH_NO_REQUEUE="1") == []


# Arguments in plugstack.conf


@pytest.mark.parametrize("argument", ["colour=blue", "run=relative", "run=/" + "x" * 200, "libexec=", "runs=/x", "run"])
def test_slurmd_names_a_wrong_argument_once(host: Path, plugin: Path, argument: str) -> None:
    (line,) = lines(run(host, plugin, "slurmd", "arg=run=/run/x", f"arg={argument}"), "error")
    assert f"'{argument}'" in line


@pytest.mark.parametrize("context", ["local", "allocator", "remote"])
def test_users_are_not_bothered_with_it(host: Path, plugin: Path, context: str) -> None:
    done = run(host, plugin, context, "arg=colour=blue", "job=4294967295", "--", "/bin/true")
    assert lines(done, "error") == []
    assert done.stderr == ""


# Tasks

SHIM = """
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>

int main(int argc, char *argv[])
{
	struct timeval timeout;
	socklen_t size = sizeof(timeout);

	for (int i = 0; i < argc; i++)
		printf("[%s]", argv[i]);
	if (getsockopt(atoi(argv[2]), SOL_SOCKET, SO_SNDTIMEO, &timeout, &size) == 0)
		printf(" timeout %ld", (long)timeout.tv_sec);
	return 7;
}
"""


@pytest.fixture
def libexec(tmp_path: Path) -> Path:
    """A shim that tells what it was started with."""
    source = tmp_path / "shim.c"
    source.write_text(SHIM)
    for folder in (tmp_path, tmp_path.parent):
        folder.chmod(0o755)
    subprocess.run(["cc", "-static", "-o", str(tmp_path / "shim"), str(source)], check=True)
    return tmp_path


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    (tmp_path / str(JOB)).mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(tmp_path / str(JOB) / "task.sock"))
        listening.listen(16)
        listening.settimeout(10)
        yield listening


def task_words(folder: Path, step: int = 0, **items: int) -> list[str]:
    numbers = {"job": JOB, "step": step, "task": 0, "gtask": 0, "ntasks": 1, "nnodes": 1, "uid": NOBODY, "gid": NOBODY}
    return [f"arg=run={folder}", f"arg=libexec={folder}"] + [f"{k}={v}" for k, v in (numbers | items).items()]


TASK = ["--", "/bin/echo", "hello world"]
UNWRAPPED = ["argv|/bin/echo|hello world"]
GIVEN = "opt=checkpoint-interval=10m"


def argv(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stdout.splitlines() if line.startswith("argv")]


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
    done = subprocess.run([str(host), str(plugin), "remote", *words], capture_output=True, text=True, timeout=30)
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
    done = subprocess.run([str(host), str(plugin), "remote", *words], capture_output=True, text=True, timeout=30)
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
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
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


@needs_root
def test_a_closed_stderr_does_not_kill_the_task(host: Path, plugin: Path, libexec: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [str(host), str(plugin), "remote", *task_words(libexec), GIVEN, *TASK],
        stdout=subprocess.PIPE,
        stderr=writer,
        text=True,
        timeout=30,
        # Python ignores SIGPIPE and children inherit that; a task has the default.
        restore_signals=True,
    )
    os.close(writer)
    assert done.returncode == 0
    assert UNWRAPPED[0] in done.stdout
