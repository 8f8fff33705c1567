"""Patterns and directories of the section [files]."""

from __future__ import annotations

import pytest

from slurmckpt.filerules import FileRule, check_directory, check_pattern, expand

HOME = "/home/jane"


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("/data/run.log", "/data/run.log", True),
        ("/data/run.log", "/data/run.log2", False),
        ("/data/run.log", "/x/data/run.log", False),
        ("/data/*.log", "/data/run.log", True),
        ("/data/*.log", "/data/a/run.log", False),
        ("/data/**/*.log", "/data/run.log", True),
        ("/data/**/*.log", "/data/a/b/run.log", True),
        ("/data/**", "/data/a/b", True),
        ("/data/**", "/data", False),
        ("/data/**", "/database/a", False),
        ("/data/?.db", "/data/a.db", True),
        ("/data/?.db", "/data//.db", False),
        ("/data/a+(b)", "/data/a+(b)", True),
        ("/**/x", "/x", True),
        ("/**", "/a", True),
        ("/data/*", "/data/a\nb", True),
        ("~/**", "/home/jane/a/b", True),
        ("~/*.db", "/home/jane/a.db", True),
        ("~/*.db", "/home/janette/a.db", False),
        ("~/*.db", "/home/jane2/a.db", False),
    ],
)
def test_what_fits(pattern: str, path: str, fits: bool) -> None:
    assert FileRule(check_pattern(pattern), "keep").fits(path, HOME) is fits


def test_a_home_is_no_pattern() -> None:
    assert not FileRule("~/*", "keep").fits("/home/xxxx/a", "/home/*")
    assert FileRule("~/*", "keep").fits("/home/*/a", "/home/*")


def test_nothing_fits_below_a_home_that_is_not_known() -> None:
    assert not FileRule("~/**", "keep").fits("/etc/passwd", "")


@pytest.mark.parametrize("text", ["", "data/*", "~jane/x", "$HOME/x", "/a/../b", "/a/./b", "/a\nb", "/" + "a" * 4096])
def test_no_pattern(text: str) -> None:
    with pytest.raises(ValueError, match=r"^pattern .* is not accepted: a path that begins with"):
        check_pattern(text)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("$TMPDIR", "/scratch/7"),
        ("${TMPDIR}/a", "/scratch/7/a"),
        ("/scratch/$SLURM_JOB_ID/", "/scratch/7"),
        ("/scratch/$SLURM_JOB_ID$SLURM_JOB_ID", "/scratch/77"),
        ("~/run", "/home/jane/run"),
        ("/fixed//path", "/fixed/path"),
        ("$NOTHING", ""),
        ("/scratch/$NOTHING", ""),
        ("$EMPTY/x", ""),
        ("$RELATIVE", ""),
        ("$UP", ""),
        ("$ROOT", ""),
    ],
)
def test_what_a_directory_means(text: str, path: str) -> None:
    environment = {
        "TMPDIR": "/scratch/7",
        "SLURM_JOB_ID": "7",
        "EMPTY": "",
        "RELATIVE": "a",
        "UP": "/a/../b",
        "ROOT": "/",
    }
    assert expand(check_directory(text), environment, HOME) == path


@pytest.mark.parametrize("text", ["", "tmp", "~jane", "~", "/a/../b", "/a/$", "/a/$(id)", "/a/${x", "$1/a"])
def test_no_directory(text: str) -> None:
    with pytest.raises(ValueError, match=r"^directory .* is not accepted: a path that begins with"):
        check_directory(text)
