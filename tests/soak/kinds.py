"""The kinds of jobs of the soak: what each runs, and what it must have written when it has ended."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.cluster.harness import chain, ring

# slurmstepd, into the output of a batch script: `[2026-11-29T17:29:25.889] error: *** JOB 111 ON n2 CANCELLED ...`
_FROM_SLURM = re.compile(r"\[\d{4}-\d\d-\d\dT[\d:.]+\] error: ")
# A shell, of a program that died with a CRIU.
_FROM_SHELL = re.compile(r"\S+/slurm_script: line \d+: +\d+ (?:Trace/breakpoint trap|Killed) ")
MOST_ROUNDS = 480  # of chain.c
PAUSE = 0.25  # seconds between two lines of a program


@dataclass(frozen=True)
class Kind:
    """script: of `lines` lines, {lines} and {pause} filled in. files: each file below the job's directory that it

    writes, with what must stand in it. repeats: files that a cold start adds to instead of writing them anew.
    """

    name: str
    script: str
    files: Callable[[int], dict[str, list[str]]]
    options: Sequence[str] = ()
    tasks: Sequence[str] = ("",)
    repeats: frozenset[str] = frozenset()
    status: int = 0


@cache
def shared(count: int) -> tuple[str, ...]:
    """What shared.py prints."""
    lines, state = [], 7
    for number in range(count):
        state = state * 3 + 1 & (1 << 60) - 1
        lines.append(f"{number} {state}")
    return tuple(lines)


@cache
def _all_threads() -> tuple[str, ...]:
    """What chain.c prints of the longest run: by running it, undisturbed. Shorter ones print the beginning of it."""
    with tempfile.TemporaryDirectory() as directory:
        program = compiled(Path(directory))
        done = subprocess.run([program, str(MOST_ROUNDS)], check=True, capture_output=True, text=True)
    return tuple(done.stdout.splitlines())


def threads(count: int) -> tuple[str, ...]:
    """What chain.c prints."""
    assert count <= MOST_ROUNDS
    return _all_threads()[:count]


def compiled(directory: Path) -> Path:
    """chain.c as a program in this directory, static, so that it runs everywhere."""
    program = directory / "threads"
    source = Path(__file__).parents[1] / "cluster/programs/chain.c"
    subprocess.run(["gcc", "-O2", "-static", "-pthread", "-o", str(program), str(source)], check=True)
    return program


def _chains(*names: str) -> Callable[[int], dict[str, list[str]]]:
    return lambda count: {name: chain(count) for name in names}


KINDS = (
    Kind("plain", "python3 chain.py {lines} {pause}", _chains("out")),
    Kind(
        "own-file",
        "python3 chain.py {lines} {pause} own",
        _chains("out", "own"),
        repeats=frozenset({"own"}),
    ),
    Kind("exit-status", "python3 chain.py {lines} {pause} /dev/null 3", _chains("out"), status=3),
    Kind("step", "srun python3 chain.py {lines} {pause}", _chains("out")),
    Kind(
        "step-files",
        "srun -n2 --output=task-%t python3 chain.py {lines} {pause}",
        lambda count: {"out": [], "task-0": chain(count), "task-1": chain(count)},
        options=("--ntasks=2",),
    ),
    Kind(
        "steps",
        "for i in 1 2; do srun --output=step-$i python3 chain.py $(({lines} / 2)) {pause} || exit; done",
        lambda count: {"out": [], "step-1": chain(count // 2), "step-2": chain(count // 2)},
    ),
    Kind(
        "parallel-steps",
        "for i in 1 2; do srun --exact -n1 --output=step-$i python3 chain.py {lines} {pause} own-$i & done; wait",
        lambda count: {f"{what}-{i}": chain(count) for what in ("step", "own") for i in (1, 2)} | {"out": []},
        options=("--ntasks=2",),
        repeats=frozenset({"own-1", "own-2"}),
    ),
    Kind(
        "append",
        "python3 chain.py {lines} {pause}",
        _chains("out"),
        options=("--open-mode=append",),
        repeats=frozenset({"out"}),
    ),
    Kind("redirected", "python3 chain.py {lines} {pause} >log", lambda count: {"out": [], "log": chain(count)}),
    Kind("array", "python3 chain.py {lines} {pause}", _chains("out"), ("--array=0-1",), ("0", "1")),
    Kind(
        "ring",
        "python3 ring.py {lines} {pause} 3",
        lambda count: {"out": ring(count, 3)},
    ),
    Kind("shared-memory", "python3 shared.py {lines} {pause}", lambda count: {"out": list(shared(count))}),
    Kind("threads", "./threads $(({lines} * 4))", lambda count: {"out": list(threads(count * 4))}),
    Kind("pipeline", "python3 chain.py {lines} {pause} | tee log", _chains("out", "log")),
)


def of_ours(line: str) -> bool:
    """Whether a line of a job's output was said by slurmckpt, Slurm or the shell and not by the job's program."""
    said = line.startswith(("slurmckpt: ", "slurmstepd: ", "srun: "))
    return said or bool(_FROM_SLURM.match(line) or _FROM_SHELL.match(line))


def compare(path: Path, expected: list[str], complete: bool, repeated: bool) -> str:
    """What is wrong with a file; empty when nothing is.

    complete: all must be there, otherwise the beginning will do. repeated: earlier tries may stand before it.
    """
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return f"{path.name} is missing" if complete and expected else ""
    lines = [line for line in text.splitlines() if not of_ours(line)]
    begins = [number for number, line in enumerate(lines) if expected and line == expected[0]]
    tries = [lines[begin:end] for begin, end in zip(begins, [*begins[1:], len(lines)], strict=False)]
    if lines and (not begins or begins[0] != 0):
        return f"{path.name} begins with {lines[0][:80]!r}"
    if len(tries) > 1 and not repeated:
        return f"{path.name} holds {len(tries)} beginnings and nothing explains it"
    for number, one in enumerate(tries):
        if one != expected[: len(one)]:
            wrong = next(i for i, line in enumerate(one) if i >= len(expected) or line != expected[i])
            return f"{path.name}, line {begins[number] + wrong + 1} is {one[wrong][:80]!r}"
    if complete and (tries[-1] if tries else []) != expected:
        return f"{path.name} ends after {len(tries[-1]) if tries else 0} of {len(expected)} lines"
    return ""
