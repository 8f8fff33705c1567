"""Which word of an srun's command line names a node, and when it is another one now."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurmckpt.coordinator.script.nodelist import node_of_now, renamed


def words(line: str) -> list[bytes]:
    return [word.encode() for word in line.split()]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("srun --nodelist=n1 a.out", "srun --nodelist=n2 a.out"),
        ("srun --nodelist n1 a.out", "srun --nodelist n2 a.out"),
        ("srun -w n1 a.out", "srun -w n2 a.out"),
        ("srun -wn1 a.out", "srun -wn2 a.out"),
        ("srun -lwn1 a.out", "srun -lwn2 a.out"),
        ("srun -l -n 1 -N1 --mem 100 -w n1 a.out", "srun -l -n 1 -N1 --mem 100 -w n2 a.out"),
        ("srun --exact --checkpoint-interval 10m -w n1 a.out", "srun --exact --checkpoint-interval 10m -w n2 a.out"),
        ("srun --unknown=x -In1 -w n1 -- a.out", "srun --unknown=x -In1 -w n2 -- a.out"),
        ("srun -w n1.site.org a.out", "srun -w n2 a.out"),
    ],
)
def test_the_node_of_before_is_this_one_now(line: str, wanted: str) -> None:
    argv, found = renamed(words(line), {b"n1", b"n1.site.org"}, b"n2")
    assert argv == words(wanted)
    assert found in (b"n1", b"n1.site.org")


@pytest.mark.parametrize(
    "line",
    [
        "srun a.out -w n1",
        "srun -- a.out -w n1",
        "srun -n 1 a.out --nodelist=n1",
        "srun -w n3 a.out",
        "srun -w n1,n3 a.out",
        "srun -w n[1-2] a.out",
        "srun -w n2 a.out",
        "srun --exclude=n1 a.out",
        "srun -x n1 a.out",
        "srun --unknown x -w n1 a.out",
        "srun --job-name -w n1",
        "srun -J -w n1",
        "srun -Jw n1",
        "srun -w",
        "srun --nodelist",
        "srun",
    ],
)
def test_nothing_else_is_touched(line: str) -> None:
    """Neither a program's own options, nor a word that may be the value of an option that we do not know."""
    assert renamed(words(line), {b"n1"}, b"n2") == (words(line), b"")


def test_the_node_of_an_allocation() -> None:
    assert node_of_now({b"SLURM_JOB_NODELIST": b"n1", b"SLURM_JOB_NUM_NODES": b"1"}) == b"n1"
    assert node_of_now({b"SLURM_JOB_NODELIST": b"n[1-2]", b"SLURM_JOB_NUM_NODES": b"2"}) == b""
    assert node_of_now({}) == b""


def test_each_option_of_ours_is_known() -> None:
    """One that is not would hide the list of nodes behind it."""
    source = (Path(__file__).resolve().parents[4] / "spank/options.c").read_text(encoding="utf-8")
    options = re.findall(r'\{ \{ "(checkpoint-[a-z]+)", ("|NULL)', source)
    assert len(options) == 9
    for name, argument in options:
        before = [f"--{name}", "x"] if argument == '"' else [f"--{name}"]
        argv, _ = renamed([b"srun", *(word.encode() for word in before), b"-w", b"n1"], {b"n1"}, b"n2")
        assert argv[-1] == b"n2", name
