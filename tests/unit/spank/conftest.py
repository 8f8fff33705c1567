"""Builds the plugin against a double of Slurm's header, with a double of the programs that load it."""

from __future__ import annotations

import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.spank.plugged import JOB, SHIM

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
DOUBLE = HERE / "double"
STRICT = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-g"]


def compile_c(output: Path, *arguments: str) -> Path:
    subprocess.run(["cc", *STRICT, "-o", str(output), *arguments], check=True)
    return output


@pytest.fixture(scope="session")
def build() -> Iterator[Path]:
    # The task runs as another user in some tests, who must be able to pass through here. So not below pytest's own
    # directories: it closes them to others, again whenever another pytest starts.
    with tempfile.TemporaryDirectory(prefix="slurmckpt-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@pytest.fixture(scope="session")
def plugin(build: Path) -> Path:
    subprocess.run(["make", "-s", "-C", str(ROOT / "spank"), f"BUILD={build}", f"SLURM_CFLAGS=-I{DOUBLE}"], check=True)
    return build / "slurmckpt.so"


@pytest.fixture(scope="session")
def host(build: Path) -> Path:
    return compile_c(build / "host", str(DOUBLE / "host.c"), f"-I{DOUBLE}", "-rdynamic", "-ldl")


@pytest.fixture(scope="session")
def old_host(build: Path) -> Path:
    """A Slurm before 23.11: without spank_prepend_task_argv."""
    return compile_c(build / "old-host", str(DOUBLE / "host.c"), f"-I{DOUBLE}", "-DOLD_SLURM", "-rdynamic", "-ldl")


class Checker:
    """The C checks of option values, in one long-lived process under the sanitizers."""

    def __init__(self, program: Path) -> None:
        self.process = subprocess.Popen([str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __call__(self, kind: str, value: bytes | str) -> str:
        assert self.process.stdin and self.process.stdout
        raw = value.encode() if isinstance(value, str) else value
        self.process.stdin.write(kind.encode() + b"\0" + raw + b"\0")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"the checker died on {kind} {raw!r}"
        return answer.decode().strip()


@pytest.fixture(scope="session")
def check(build: Path) -> Iterator[Checker]:
    program = compile_c(
        build / "check",
        str(DOUBLE / "check.c"),
        str(ROOT / "spank/values.c"),
        str(ROOT / "spank/duration.c"),
        f"-I{ROOT / 'spank'}",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    )
    checker = Checker(program)
    yield checker
    assert checker.process.stdin
    checker.process.stdin.close()
    assert checker.process.wait(timeout=60) == 0  # also: the leak check


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
        listening.settimeout(60)
        yield listening
