"""Limits that CRIU would run into are lifted for a dump, noted, and set again; in another pod, too."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

from slurmckpt.capture import rlimits
from slurmckpt.capture.criu import installation
from tests.unit.capture.conftest import MakePod, Pod
from tests.unit.capture.looking import PYTHON, look, one_refusal

# As the tests' pods run as root.
REAL = (0, 0) if not installation._has_sys_resource() else None
INFINITE = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
# Hard limits beyond what there is: nobody can lift them where root lacks CAP_SYS_RESOURCE.
LIMITED = """
import resource
read, write = os.pipe()
if os.fork() == 0:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 1 << 50))
    os.write(write, b".")
    while True:
        signal.pause()
os.read(read, 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 1 << 50))
resource.setrlimit(resource.RLIMIT_AS, (1 << 40, -1))
resource.setrlimit(resource.RLIMIT_DATA, (1 << 40, 1 << 41))
resource.setrlimit(resource.RLIMIT_CPU, (1000, 2000))
ready()
"""
KINDS = (resource.RLIMIT_FSIZE, resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_CPU)


def limits_of(pod: Pod) -> list[list[tuple[int, int]]]:
    children = Path(f"/proc/{pod.leader}/task/{pod.leader}/children").read_text(encoding="ascii")
    return [[resource.prlimit(pid, kind) for kind in KINDS] for pid in (pod.leader, *map(int, children.split()))]


@pytest.mark.root
def test_they_are_lifted_and_as_before_in_the_end(make_pod: MakePod, tmp_path: Path) -> None:
    pod, lifted = make_pod(LIMITED), rlimits.Lifted(REAL)
    before = limits_of(pod)
    assert before[0] == [(8192, 1 << 50), (1 << 40, -1), (1 << 40, 1 << 41), (1000, 2000)]
    assert before[1][0] == (0, 1 << 50)
    lifted.lift(pod.init, tmp_path)
    if REAL is None:
        assert limits_of(pod) == [[INFINITE, INFINITE, INFINITE, (1000, 2000)]] * 2
    else:
        assert [[soft for soft, _ in each] for each in limits_of(pod)] == [
            [1 << 50, resource.RLIM_INFINITY, 1 << 41, 1000],
            [1 << 50, resource.RLIM_INFINITY, resource.RLIM_INFINITY, resource.RLIM_INFINITY],
        ]
    lifted.lower()
    assert limits_of(pod) == before
    lifted.lower()
    assert limits_of(pod) == before


@pytest.mark.root
def test_a_restored_pod_gets_them(make_pod: MakePod, tmp_path: Path) -> None:
    """Whose processes CRIU has given the limits of the image: none."""
    pod, lifted = make_pod(LIMITED), rlimits.Lifted(REAL)
    before = limits_of(pod)
    lifted.lift(pod.init, tmp_path)
    rlimits.apply(pod.init, rlimits.read(tmp_path), REAL)
    assert limits_of(pod) == before


@pytest.mark.root
def test_a_pod_without_such_limits_has_no_note(make_pod: MakePod, tmp_path: Path) -> None:
    """One for files that are larger than any log does not count."""
    pod = make_pod("import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 40)); ready()")
    rlimits.Lifted(REAL).lift(pod.init, tmp_path)
    assert not (tmp_path / rlimits.FILE).exists()
    assert rlimits.read(tmp_path) == {}
    assert resource.prlimit(pod.leader, resource.RLIMIT_FSIZE) == (1 << 30, 1 << 40)


@pytest.mark.parametrize(
    "note", ["", "[]", '{"1": 2}', '{"1": {"x": [1, 2]}}', '{"1": {"1": [1]}}', '{"1": {"1": [[], 1]}}']
)
def test_a_note_that_is_none(note: str, tmp_path: Path) -> None:
    (tmp_path / rlimits.FILE).write_text(note)
    with pytest.raises(ValueError):
        rlimits.read(tmp_path)


def test_what_is_read_is_what_was_noted(tmp_path: Path) -> None:
    (tmp_path / rlimits.FILE).write_text(json.dumps({"101": {"1": [5, -1]}}))
    assert rlimits.read(tmp_path) == {101: {1: (5, -1)}}


@pytest.mark.root
def test_a_file_that_may_not_be_as_large_as_the_log_is_refused(
    make_pod: MakePod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where root may not lift the hard limit; a soft one it may."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (8192, {})); ready()"
    hard, soft = make_pod(limit.format(1 << 20)), make_pod(limit.format(1 << 30))
    monkeypatch.setattr("slurmckpt.capture.inspect.inspection._lifts_limits", lambda: False)
    assert one_refusal(hard) == (
        f"process 2 {PYTHON} may write no file larger than 1.0 MB (ulimit -f), and would die of that at a checkpoint,"
        " as CRIU writes its log in the name of each process: set the soft limit only (ulimit -S -f), since root here"
        " may not lift the hard one (no CAP_SYS_RESOURCE)"
    )
    assert look(soft).refusals == []
    monkeypatch.setattr("slurmckpt.capture.inspect.inspection._lifts_limits", lambda: True)
    assert look(hard).refusals == []
