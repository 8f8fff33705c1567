"""Slurm's files, as its parser reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmckpt.slurm import nodeconf


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodeconf, "_DIRECTORIES", (tmp_path / "etc", tmp_path / "run"))
    monkeypatch.delenv("SLURM_CONF", raising=False)


def write(directory: Path, text: str, name: str = "cgroup.conf") -> None:
    directory.mkdir()
    (directory / name).write_text(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", False),
        ("SignalChildrenProcesses=yes\n", True),
        ("ConstrainRAMSpace=yes\nsignalchildrenprocesses = TRUE # as before\n", True),
        ('SignalChildrenProcesses="yes"', True),
        ("SignalChildrenProcesses=no\n", False),
        ("#SignalChildrenProcesses=yes\n", False),
        ("SignalChildrenProcesses=yes\nSignalChildrenProcesses=no\n", False),
    ],
)
def test_what_is_in_the_file(tmp_path: Path, text: str, expected: bool) -> None:
    write(tmp_path / "etc", text)
    assert nodeconf.signals_children() is expected


def test_where_the_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not nodeconf.signals_children()
    write(tmp_path / "run", "SignalChildrenProcesses=yes")
    assert nodeconf.signals_children()
    write(tmp_path / "etc", "SignalChildrenProcesses=no")
    assert not nodeconf.signals_children()
    write(tmp_path / "own", "SignalChildrenProcesses=yes")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "own/slurm.conf"))
    assert nodeconf.signals_children()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", False),
        ("ProctrackType=proctrack/linuxproc\n", False),
        ("ProctrackType=proctrack/linuxproc\nPreemptType=preempt/none\n", False),
        ("ProctrackType=proctrack/linuxproc\nPreemptType=preempt/partition_prio\n", True),
        ("proctracktype = Proctrack/LinuxProc\nPREEMPTTYPE=preempt/qos # by our users' wish\n", True),
        ("ProctrackType=proctrack/cgroup\nPreemptType=preempt/qos\n", False),
        ("PreemptType=preempt/qos\n", False),
    ],
)
def test_preemption_where_parents_count(tmp_path: Path, text: str, expected: bool) -> None:
    write(tmp_path / "etc", text, "slurm.conf")
    assert nodeconf.preempts_by_parents() is expected
