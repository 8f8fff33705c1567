"""The requeue hook: which constraint a job gets, and that nothing makes it fail or leaves a job worse off."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from slurmckpt.errors import SlurmError
from slurmckpt.hooks import requeue
from slurmckpt.slurm.port import JobInfo, NodeInfo, SlurmPort

F = "slurmckpt-0123456789ab"
OLD = "slurmckpt-ffffffffffff"

JOB = JobInfo(
    job_id=12,
    address="12",
    state=frozenset({"PENDING", "COMPLETING"}),
    user_id=1000,
    features="a",
    prefer="",
    nodes=("n1",),
    node_count=1,
    partition="debug",
    restart_count=1,
    admin_comment=f"site text slurmckpt:feature={F}",
    requeue=True,
)


def node(name: str, *features: str, state: str = "IDLE", partition: str = "debug") -> NodeInfo:
    return NodeInfo(name, name, frozenset(state.split("+")), features, features, frozenset({partition}))


NODES = [node("n1", "a", F, state="DOWN+NOT_RESPONDING"), node("n2", "a", F), node("n3", "a")]


class Slurm:
    """A controller with one job: the constraints that it refuses are named."""

    def __init__(self, job: JobInfo, nodes: Sequence[NodeInfo] = NODES, refused: Sequence[str] = ()) -> None:
        self.current = job
        self.cluster = list(nodes)
        self.refused = refused
        self.plugins = ""
        self.updates: list[tuple[str, str | None]] = []

    async def job(self, job_id: int) -> JobInfo:
        if job_id != self.current.job_id:
            raise SlurmError(f"Slurm knows no job {job_id}")
        return self.current

    async def node(self, name: str) -> NodeInfo:
        raise AssertionError("not asked for by the hook")

    async def nodes(self) -> list[NodeInfo]:
        return self.cluster

    async def set_job_features(self, job_id: int, text: str, prefer: str | None = None) -> None:
        self.updates.append((text, prefer))
        if text not in self.refused:
            self.current = replace(self.current, features=text)
        if prefer is not None and prefer not in self.refused:
            self.current = replace(self.current, prefer=prefer)
        if text in self.refused or prefer in self.refused:
            raise SlurmError("scontrol update: Invalid feature specification")

    async def requeue(self, job_id: int) -> None:
        raise AssertionError("the hook requeues nothing")

    async def grace_time(self, partition: str) -> float:
        raise AssertionError("not asked for by the hook")

    async def set_admin_comment(self, job_id: int, text: str) -> None:
        raise AssertionError("the hook leaves the AdminComment alone")

    async def set_node_features(self, name: str, available: Sequence[str], active: Sequence[str]) -> None:
        raise AssertionError("the hook changes no node")

    async def version(self) -> tuple[int, int, int]:
        return (26, 5, 5)

    async def config(self) -> dict[str, str]:
        return {"NodeFeaturesPlugins": self.plugins}


def handle(slurm: Slurm, count: int = 1, enabled: bool = True) -> None:
    asyncio.run(requeue.handle(cast(SlurmPort, slurm), 12, count, enabled))


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="slurmckpt")


def test_the_feature_is_added(caplog: pytest.LogCaptureFixture) -> None:
    slurm = Slurm(JOB)
    handle(slurm)
    assert slurm.updates == [(f"a&({F})", None)]
    assert caplog.messages == [f"job 12: constraint 'a' -> 'a&({F})': nodes with {F} of its checkpoint: n2"]


def test_a_job_without_constraint() -> None:
    slurm = Slurm(replace(JOB, features=""))
    handle(slurm)
    assert slurm.current.features == f"({F})"


def test_a_newer_checkpoint_takes_the_place_of_an_older_one() -> None:
    slurm = Slurm(replace(JOB, features=f"({OLD})&(a|b)"))
    handle(slurm)
    assert slurm.current.features == f"({F})&(a|b)"


def test_nothing_to_change_is_said_and_not_done(caplog: pytest.LogCaptureFixture) -> None:
    slurm = Slurm(replace(JOB, features=f"a&({F})"))
    handle(slurm)
    assert slurm.updates == []
    assert caplog.messages == [f"job 12: constraint 'a&({F})' kept: nodes with {F} of its checkpoint: n2"]


@pytest.mark.parametrize("state", ["COMPLETED+COMPLETING", "CANCELLED+COMPLETING", "RUNNING", "TIMEOUT+COMPLETING"])
def test_a_job_that_has_ended_is_left_alone(state: str, caplog: pytest.LogCaptureFixture) -> None:
    slurm = Slurm(replace(JOB, state=frozenset(state.split("+"))))
    handle(slurm)
    assert slurm.updates == []
    assert caplog.messages == []


@pytest.mark.parametrize("state", ["PENDING+COMPLETING", "PENDING", "PENDING+COMPLETING+REQUEUE_HOLD"])
def test_every_state_of_a_requeue(state: str) -> None:
    slurm = Slurm(replace(JOB, state=frozenset(state.split("+"))))
    handle(slurm)
    assert slurm.current.features == f"a&({F})"


@pytest.mark.parametrize(
    "nodes",
    [
        [node("n1", "a", F, state="DOWN")],
        [node("n2", "a", F, state="IDLE+DRAIN")],
        [node("n2", "a", F, partition="other")],
        [node("n2", "a", OLD)],
        [],
        # it has the feature, but not what the user asked for: the job would wait for ever
        [node("n2", F)],
    ],
)
def test_no_node_fits(nodes: list[NodeInfo], caplog: pytest.LogCaptureFixture) -> None:
    slurm = Slurm(replace(JOB, features=f"a&({OLD})"), nodes)
    handle(slurm)
    assert slurm.current.features == "a"
    why = f"no node with {F} of its checkpoint can be used, it may have to start cold"
    assert caplog.messages == [f"job 12: constraint 'a&({OLD})' -> 'a': {why}"]


def test_a_feature_that_is_not_active_does_not_count() -> None:
    slurm = Slurm(JOB, [replace(node("n2", "a", F), active_features=("a",))])
    handle(slurm)
    assert slurm.current.features == "a"


def test_as_many_nodes_as_the_job_needs(caplog: pytest.LogCaptureFixture) -> None:
    """While a job ends, Slurm counts its nodes down, so the hook's environment says how many it had."""
    slurm = Slurm(replace(JOB, node_count=1))
    handle(slurm, count=2)
    assert slurm.current.features == "a"
    assert "1 of 2 needed nodes" in caplog.text
    slurm.cluster.append(node("n4", "a", F))
    handle(slurm, count=2)
    assert slurm.current.features == f"a&({F})"


def test_any_partition_of_several() -> None:
    slurm = Slurm(replace(JOB, partition="short,long"), [node("n2", "a", F, partition="long")])
    handle(slurm)
    assert slurm.current.features == f"a&({F})"


def test_no_checkpoint_yet(caplog: pytest.LogCaptureFixture) -> None:
    slurm = Slurm(replace(JOB, admin_comment="site text", features=f"a&({OLD})"))
    handle(slurm)
    assert slurm.updates == [("a", None)]
    assert "no checkpoint of it is recorded" in caplog.text


def test_turned_off() -> None:
    slurm = Slurm(replace(JOB, features=f"a&({OLD})", prefer="b"))
    handle(slurm, enabled=False)
    assert slurm.updates == [("a", "b")]
    slurm = Slurm(JOB)
    handle(slurm, enabled=False)
    assert slurm.updates == []


def test_a_preference_is_combined_too() -> None:
    slurm = Slurm(replace(JOB, features="", prefer="a|b"))
    handle(slurm)
    assert slurm.updates == [(f"({F})", f"({F})&(a|b)")]
    handle(slurm)
    assert len(slurm.updates) == 1
    slurm.cluster.clear()
    handle(slurm)
    assert slurm.updates[1:] == [("", "a|b")]


def test_no_exact_combination(caplog: pytest.LogCaptureFixture) -> None:
    nodes = [node("n1", "a", F), node("n2", "a", F)]
    slurm = Slurm(replace(JOB, features="[a*1&b*1]"), nodes)
    handle(slurm)
    assert slurm.updates == []
    assert caplog.messages == [
        f"job 12: constraint '[a*1&b*1]' kept: {F} of its checkpoint cannot be added exactly: "
        "the constraint '[a*1&b*1]' counts nodes"
    ]


def test_changeable_features() -> None:
    slurm = Slurm(replace(JOB, features="a|(b&c)"), [node("n2", F)])
    slurm.plugins = "node_features/helpers"
    handle(slurm)
    assert slurm.updates == []
    # what the node can become is for Slurm to decide
    slurm = Slurm(replace(JOB, features="a|b"), [node("n2", F)])
    slurm.plugins = "node_features/helpers"
    handle(slurm)
    assert slurm.current.features == f"({F})&(a|b)"


def test_a_refused_change_leaves_the_users_constraint(caplog: pytest.LogCaptureFixture) -> None:
    slurm = Slurm(replace(JOB, features=f"a&({OLD})"), refused=[f"a&({F})"])
    handle(slurm)
    assert slurm.current.features == "a"
    assert "it has its own constraint 'a'" in caplog.text
    assert len(caplog.messages) == 1


def test_half_a_change_is_undone() -> None:
    slurm = Slurm(replace(JOB, prefer="b"), refused=[f"b&({F})"])
    handle(slurm)
    assert (slurm.current.features, slurm.current.prefer) == ("a", "b")


def test_refused_twice(caplog: pytest.LogCaptureFixture) -> None:
    slurm = Slurm(JOB, refused=[f"a&({F})", "a"])
    handle(slurm)
    assert slurm.current.features == "a"
    assert "was refused too" in caplog.text


def test_a_refused_removal(caplog: pytest.LogCaptureFixture) -> None:
    slurm = Slurm(replace(JOB, features=f"a&({OLD})", admin_comment=""), refused=["a"])
    handle(slurm)
    assert len(slurm.updates) == 1
    assert f"'a&({OLD})' stays" in caplog.text


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    """Where main() logs. It is the entry of a process of its own: what it does to logging is taken back."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield tmp_path / "slurmckpt.log"
    for handler in set(root.handlers) - set(before):
        handler.close()
    root.handlers[:] = before
    root.setLevel(level)


def run_main(log: Path, environment: dict[str, str]) -> str:
    """The one line that main() logs."""
    settings = log.with_suffix(".toml")
    settings.write_text(f'[log]\npath = "{log}"\n')
    assert requeue.main(environment, settings) == 0
    (line,) = log.read_text().splitlines()
    return line


@pytest.mark.parametrize("job_id", ["", "12; id", "-1", "١٢", "99999999999", "x"])
def test_main_survives_any_environment(job_id: str, log: Path) -> None:
    assert "is not a job id" in run_main(log, {"SLURM_JOB_ID": job_id})


def test_main_survives_a_missing_slurm(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurmckpt.slurm.scontrol._SYSTEM_PATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "job 12: its constraint is left alone: scontrol cannot be run" in run_main(log, {"SLURM_JOB_ID": "12"})


def test_main_survives_a_controller_that_does_not_answer(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(port: object, job_id: int, count: int, enabled: bool) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(requeue, "handle", never)
    monkeypatch.setattr(requeue, "_TIMEOUT", 0.05)
    assert "job 12: gave up after 0.05 s" in run_main(log, {"SLURM_JOB_ID": "12"})


def test_main_survives_what_nobody_thought_of(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr(requeue, "Scontrol", broken)
    assert run_main(log, {"SLURM_JOB_ID": "12"}).endswith("job 12: ZeroDivisionError: by\\nzero")


def test_main_hands_on_what_slurmctld_says(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(JOB, [*NODES, node("n4", "a", F)])
    monkeypatch.setattr(requeue, "Scontrol", lambda: slurm)
    line = run_main(log, {"SLURM_JOB_ID": "12", "SLURM_JOB_NUM_NODES": "3"})
    assert "2 of 3 needed nodes" in line
    assert slurm.updates == []


def test_main_survives_a_broken_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(requeue, "_log_to", lambda settings: None)  # the default is this machine's own log
    monkeypatch.setattr(requeue.log, "warning", lambda text, *values: said.append(text % values))
    file = tmp_path / "slurmckpt.toml"
    file.write_text("nonsense = 1\n")
    assert requeue.main({}, file) == 0
    assert len(said) == 1
    assert "unknown key nonsense" in said[0]
    assert said[0].endswith("the defaults are used")


def test_main_without_a_writable_log(log: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "slurmckpt.toml"
    file.write_text(f'[log]\npath = "{tmp_path}/no/such/place.log"\n')
    assert requeue.main({"SLURM_JOB_ID": "x"}, file) == 0
    assert "SLURM_JOB_ID 'x' is not a job id" in capfd.readouterr().err
