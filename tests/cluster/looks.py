"""Programs that tell what they hold, before and after checkpoints and moves: each time it must be the same.

They are written with programs/look.h or programs/look.py and run side by side, as background jobs of one batch script.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.harness import Cluster, Job, move, wait_attempts, wait_for


@dataclass(frozen=True)
class Told:
    """What one program printed. looks: its answers, lines each. last: what it said after `stop`."""

    looks: list[list[str]]
    last: list[str]


def build(cluster: Cluster, directory: Path, *names: str, options: str = "") -> None:
    """Compile C programs of the tests inside the sandbox."""
    for name in names:
        cluster.run(
            "sh",
            "-c",
            f"cd {directory.name} && gcc -std=gnu11 -D_GNU_SOURCE -O2 -Wall -pthread {options} -o {name} {name}.c -lrt",
        )


def start(cluster: Cluster, directory: Path, commands: Mapping[str, str], *options: str) -> Job:
    """Submit one job that runs all `commands`, each with its output in NAME.out; wait until all are ready."""
    lines = [f"{command} >{name}.out 2>&1 &" for name, command in commands.items()]
    job = cluster.submit("\n".join([*lines, "wait"]), "--checkpoint-interval=infinite", *options, directory=directory)
    for name in commands:
        said(directory, name, "^ready$")
    return job


def look(directory: Path, commands: Mapping[str, str], number: int) -> None:
    """Have every program tell for the time `number`, counted from 0."""
    (directory / f"look.{number}").touch()
    for name in commands:
        said(directory, name, f"^end {number}$")


def finish(job: Job, directory: Path, commands: Mapping[str, str]) -> dict[str, Told]:
    """Let the programs end, and take what they have told."""
    (directory / "stop").touch()
    assert job.wait_end() == "COMPLETED", job.output() + "".join(text(directory, name)[-1000:] for name in commands)
    return {name: parse(text(directory, name)) for name in commands}


def go_through(cluster: Cluster, directory: Path, commands: Mapping[str, str], *options: str) -> dict[str, Told]:
    """Two checkpoints that leave the job running, a move, another checkpoint, another move: five looks."""
    job = start(cluster, directory, commands, *options)
    look(directory, commands, 0)
    job.checkpoint()
    look(directory, commands, 1)
    job.checkpoint()
    move(job, job.node())
    wait_attempts(job, 2)
    look(directory, commands, 2)
    job.checkpoint()
    look(directory, commands, 3)
    move(job, job.node())
    wait_attempts(job, 3)
    look(directory, commands, 4)
    return finish(job, directory, commands)


def same(told: Told) -> list[str]:
    """The lines of the first look, which all others must repeat; in whatever order, as some are the kernel's lists."""
    first = sorted(told.looks[0])
    for number, lines in enumerate(told.looks):
        assert sorted(lines) == first, f"look {number}: {sorted(set(lines) ^ set(first))}"
    return told.looks[0]


def text(directory: Path, name: str) -> str:
    """The output of one program so far."""
    try:
        return (directory / f"{name}.out").read_text(errors="replace")
    except FileNotFoundError:
        return ""


def said(directory: Path, name: str, pattern: str) -> None:
    """Wait until a program has printed it."""
    wait_for(
        lambda: f"{pattern!r} from {name}:\n{text(directory, name)[-500:]}",
        lambda: re.search(pattern, text(directory, name), re.MULTILINE),
    )


def parse(output: str) -> Told:
    """Take one program's output apart."""
    looks = [match[2].splitlines() for match in re.finditer(r"^look (\d+)\n(.*?)^end \1$", output, re.M | re.S)]
    return Told(looks, output.partition("\nlast\n")[2].splitlines())
