"""`slurmckpt fingerprint --diff`: what keeps a checkpoint from being restored here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from slurmckpt import config
from slurmckpt.capture import criu
from slurmckpt.cli import find, fingerprint
from slurmckpt.config import Settings
from slurmckpt.errors import SlurmckptError
from slurmckpt.identity import JobIdentity
from slurmckpt.store.layout import JobStore
from tests.unit.store.world import World

HERE = {"host.arch": "x86_64", "gpu.driver": "575.51", "gpu.0.uuid": "GPU-2"}


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    job = JobIdentity("cluster", "jane", 1000, 1000, 7)
    world = World(tmp_path, job, JobStore(tmp_path, job), cast(Any, None), tmp_path)
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    recorded = {"host.arch": "x86_64", "gpu.driver": "570.86", "gpu.0.uuid": "GPU-1", "model.id": "llama"}
    (directory / "manifest.json").write_bytes(replace(world.manifest(1), fingerprint=recorded).to_json())
    monkeypatch.setattr(config, "load", Settings)
    monkeypatch.setattr(criu, "find", lambda *_: criu.Installation("/criu", "4.2.1", False))
    monkeypatch.setattr(fingerprint, "node_fingerprint", lambda *_: dict(HERE))
    return directory


def test_what_differs_is_shown_with_what_it_means(checkpoint: Path) -> None:
    done = CliRunner().invoke(fingerprint.command, ["--diff", str(checkpoint)])
    assert done.exit_code == 1
    assert done.output.splitlines() == [
        "allowed  gpu.0.uuid (informative): 'GPU-1' -> 'GPU-2'",
        "forbids  gpu.driver (equal): '570.86' -> '575.51'",
        f"{checkpoint} would not be restored here: driver 570.86 -> 575.51",
    ]


def test_as_json(checkpoint: Path) -> None:
    done = CliRunner().invoke(fingerprint.command, ["--json", "--diff", str(checkpoint)])
    found = json.loads(done.output)
    assert found["fits"] is False
    assert found["differences"]["gpu.driver"] == {
        "recorded": "570.86",
        "here": "575.51",
        "rule": "equal",
        "forbids": True,
    }


def test_one_that_fits(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "node_fingerprint", lambda *_: {**HERE, "gpu.driver": "570.86"})
    done = CliRunner().invoke(fingerprint.command, ["--diff", str(checkpoint)])
    assert done.exit_code == 0 and done.output.endswith(f"{checkpoint} fits this node\n")


def test_no_such_checkpoint(checkpoint: Path) -> None:
    done = CliRunner().invoke(fingerprint.command, ["--diff", str(checkpoint / "none")])
    assert isinstance(done.exception, SlurmckptError) and "manifest.json" in str(done.exception)


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """The jobs in the store that have the number."""
    found: list[SimpleNamespace] = []
    monkeypatch.setattr(find, "stores_of", lambda root, job: found)
    monkeypatch.setattr(fingerprint, "read", lambda store: store)
    return found


def test_a_job_that_left_no_record(checkpoint: Path, tasks: list[SimpleNamespace]) -> None:
    done = CliRunner().invoke(fingerprint.command, ["--diff", "99"])
    assert isinstance(done.exception, SlurmckptError)
    assert str(done.exception).startswith("no record of job 99 in /var/spool/slurmckpt that you may read: it has not")


def test_an_array_is_several_jobs(checkpoint: Path, tasks: list[SimpleNamespace]) -> None:
    tasks += [SimpleNamespace(array=f"99_{task}") for task in (2, 1)]
    done = CliRunner().invoke(fingerprint.command, ["--diff", "99"])
    assert str(done.exception) == "99 is several jobs: name one of 99_1, 99_2"


@pytest.mark.parametrize(
    ("asked", "numbers", "told"),
    [
        ("99", [], "job 99 has no checkpoint now"),
        ("99#1", [], "job 99 has no checkpoint now"),
        ("99#1", [3, 4], "job 99 has no checkpoint #1; it has #3, #4"),
        ("99#x", [3], "job 99 has no checkpoint #x; it has #3"),
    ],
)
def test_a_checkpoint_that_is_not_there(
    checkpoint: Path, tasks: list[SimpleNamespace], asked: str, numbers: list[int], told: str
) -> None:
    tasks.append(SimpleNamespace(sequence_numbers=lambda: numbers))
    done = CliRunner().invoke(fingerprint.command, ["--diff", asked])
    assert str(done.exception) == told
