"""What a job asked for: from slurmd's environment, and to a file and back."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmckpt.config import RECOVER_EVENTS, Recover, Schedule, Settings
from slurmckpt.coordinator import spec
from slurmckpt.coordinator.spec import OPTION_PREFIX, JobSpec, Options, SpecError
from slurmckpt.identity import JobIdentity
from slurmckpt.units import Interval

ME = pwd.getpwuid(os.getuid())
BASE = {"SLURM_JOB_ID": "4711", "SLURM_JOB_UID": str(ME.pw_uid)}


def found(options: Mapping[str, str] | None = None, environment: Mapping[str, str] | None = None) -> JobSpec:
    given = {OPTION_PREFIX + name: value for name, value in (options or {}).items()}
    return spec.from_environment({**BASE, **given, **(environment or {})})


def test_a_job_of_slurmds_prolog() -> None:
    environment = {
        "SLURM_JOB_GID": "4242",
        "SLURM_CLUSTER_NAME": "linux",
        "SLURMD_NODENAME": "n3",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_RESTART_COUNT": "5",
    }
    job = found(environment=environment)
    assert job.job == JobIdentity("linux", ME.pw_name, ME.pw_uid, 4242, 4711)
    assert (job.node, job.node_count, job.restart_count) == ("n3", 2, 5)
    assert job.options == Options()


def test_what_older_releases_leave_out() -> None:
    job = found()
    assert job.job == JobIdentity("cluster", ME.pw_name, ME.pw_uid, ME.pw_gid, 4711)
    assert (job.node, job.node_count, job.restart_count) == (os.uname().nodename, 1, 0)


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({"SLURM_NNODES": "3"}, 3),
        ({"SLURM_JOB_NUM_NODES": "2", "SLURM_NNODES": "3"}, 2),
        ({"SLURM_JOB_NODELIST": "n1"}, 1),
        ({"SLURM_JOB_NODELIST": "n[1-4]"}, 2),
        ({"SLURM_JOB_NODELIST": "n1,n7"}, 2),
    ],
)
def test_node_count(environment: dict[str, str], count: int) -> None:
    assert found(environment=environment).node_count == count


def test_every_option() -> None:
    options = found(
        {
            "interval": "1h30m",
            "dir": "/scratch/jane",
            "keep": "1000",
            "recover": "nodefail,crash",
            "model": "llama-3/7b",
            "pre": "sync; echo 'é'",
            "post": "true",
            "restored": "hostname >where",
            "fresh": "(null)",
        }
    ).options
    assert options == Options(
        interval=Interval("fixed", 5400.0),
        directory=Path("/scratch/jane"),
        keep=1000,
        recover=frozenset({"nodefail", "crash"}),
        model="llama-3/7b",
        pre="sync; echo 'é'",
        post="true",
        restored="hostname >where",
        fresh=True,
    )


@pytest.mark.parametrize("value", ["(null)", ""])
def test_a_flag_has_no_value(value: str) -> None:
    assert found({"fresh": value}).options == Options(fresh=True)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"interval": "soon"}, "interval 'soon' is not understood"),
        ({"interval": "0s"}, "interval '0s' is 0 s; accepted: 1 s to"),
        ({"dir": "relative"}, "--checkpoint-dir='relative': an absolute path"),
        ({"dir": ""}, "--checkpoint-dir='': an absolute path"),
        ({"dir": "/a\nb"}, "without control characters"),
        ({"dir": "/" + "x" * 4095}, "an absolute path"),
        ({"keep": "0"}, "--checkpoint-keep='0': a number from 1 to 1000"),
        ({"keep": "010"}, "--checkpoint-keep='010'"),
        ({"keep": "1001"}, "--checkpoint-keep='1001'"),
        ({"keep": "-1"}, "--checkpoint-keep='-1'"),
        ({"keep": "٣"}, "--checkpoint-keep='٣'"),
        ({"keep": "9" * 5000}, "--checkpoint-keep='9999"),
        ({"recover": "nodefail,"}, "a list of crash, hang, nodefail, preempt, timelimit is needed"),
        ({"recover": ""}, "--checkpoint-recover=''"),
        ({"recover": "Crash"}, "--checkpoint-recover='Crash'"),
        ({"model": ""}, "--checkpoint-model='': 1 to 255 printable characters"),
        ({"model": "a b"}, "--checkpoint-model='a b'"),
        ({"model": "x" * 256}, "--checkpoint-model='xxx"),
        ({"pre": "  "}, "--checkpoint-pre='  ': a command of 1 to 1000 bytes without control characters is needed"),
        ({"post": "x" * 1001}, "--checkpoint-post='xxx"),
        ({"restored": "a\nb"}, "--checkpoint-restored='a\\nb'"),
        ({"model": "modèle"}, "--checkpoint-model='modèle'"),
    ],
)
def test_a_wrong_option_is_one_line(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(SpecError) as raised:
        found(options)
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 400


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({"SLURM_JOB_ID": ""}, "the prolog's environment has no SLURM_JOB_ID"),
        ({"SLURM_JOB_UID": ""}, "the prolog's environment has no SLURM_JOB_UID"),
        ({"SLURM_JOB_UID": "x"}, "invalid literal for int()"),
        ({"SLURM_JOB_UID": "4294967290"}, "user id 4294967290 has no account on this node"),
        ({"SLURM_JOB_ID": "0"}, "job id 0 is not accepted"),
        ({"SLURM_CLUSTER_NAME": "../other"}, "cluster '../other' is not accepted"),
    ],
)
def test_an_environment_that_describes_no_job(environment: dict[str, str], complaint: str) -> None:
    with pytest.raises(SpecError) as raised:
        found(environment=environment)
    assert complaint in str(raised.value)


SITE_OFF = Settings()
SITE_HOURLY = Settings(schedule=Schedule(interval=Interval("fixed", 3600.0)))


@pytest.mark.parametrize(
    ("options", "settings", "interval"),
    [
        ({"interval": "90s"}, SITE_HOURLY, Interval("fixed", 90.0)),
        ({"interval": "off"}, SITE_HOURLY, Interval("off")),
        ({"interval": "infinite"}, SITE_OFF, Interval("manual")),
        ({}, SITE_OFF, Interval("off")),
        ({}, SITE_HOURLY, Interval("fixed", 3600.0)),
        ({"keep": "3"}, SITE_OFF, Interval("fixed", 600.0)),
        ({"fresh": "(null)"}, SITE_OFF, Interval("fixed", 600.0)),
        ({"keep": "3"}, SITE_HOURLY, Interval("fixed", 3600.0)),
    ],
)
def test_the_interval_that_counts(options: dict[str, str], settings: Settings, interval: Interval) -> None:
    assert found(options).interval(settings) == interval


NAME = st.from_regex(r"[a-z][a-z0-9_.-]{0,20}", fullmatch=True)
ID = st.integers(1, 2**32 - 2)
INTERVAL = st.one_of(
    st.integers(1, 3650 * 86400).map(lambda seconds: Interval("fixed", float(seconds))),
    st.sampled_from([Interval("auto"), Interval("off"), Interval("manual")]),
)
OPTIONS = st.builds(
    Options,
    interval=st.none() | INTERVAL,
    directory=st.none() | NAME.map(lambda name: Path("/") / name),
    keep=st.none() | st.integers(1, 1000),
    recover=st.none() | st.frozensets(st.sampled_from(RECOVER_EVENTS), min_size=1),
    model=st.none() | NAME,
    fresh=st.booleans(),
)
SPEC = st.builds(
    JobSpec,
    job=st.builds(JobIdentity, NAME, NAME, ID, ID, ID),
    node=NAME,
    node_count=st.integers(1, 1000),
    restart_count=st.integers(0, 1000),
    options=OPTIONS,
)


@given(SPEC)
def test_what_is_saved_is_loaded(tmp_path_factory: pytest.TempPathFactory, job: JobSpec) -> None:
    path = tmp_path_factory.getbasetemp() / "spec.json"
    spec.save(job, path)
    assert spec.load(path) == job
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.pop("node"),
        lambda document: document["options"].pop("keep"),
        lambda document: document["job"].update(user="../root"),
        lambda document: document["job"].update(job_id="7"),
        lambda document: document["job"].update(extra=1),
        lambda document: document["options"].update(interval="soon"),
        lambda document: document.update(options=None),
    ],
)
def test_a_file_that_is_no_spec(tmp_path: Path, change: object) -> None:
    path = tmp_path / "spec.json"
    spec.save(found({"keep": "3"}), path)
    document = json.loads(path.read_text())
    assert callable(change)
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(SpecError, match="is not a job's specification"):
        spec.load(path)


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_a_broken_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "spec.json").write_text(content)
    with pytest.raises(SpecError, match="is not a job's specification"):
        spec.load(tmp_path / "spec.json")
    with pytest.raises(SpecError, match="No such file"):
        spec.load(tmp_path / "other.json")


def test_a_job_recovers_from_its_own_list_or_that_of_the_site() -> None:
    settings = Settings(recover=Recover(events=frozenset({"nodefail"})))
    spec = found({"recover": "crash,hang"})
    assert spec.recover(settings) == {"crash", "hang"}
    assert found().recover(settings) == {"nodefail"}


@pytest.mark.parametrize(
    ("nodes", "leads"),
    [
        ("", True),
        ("n1", True),
        ("n[1-4]", True),
        ("n[1,3],m2", True),
        ("n1,n2", True),
        ("n[01-4]", False),
        ("n[2-3],n1", False),
        ("m[1-2],n1", False),
        ("n", False),
        ("n[", False),
    ],
)
def test_whether_its_script_runs_here(nodes: str, leads: bool) -> None:
    assert found(environment={"SLURM_JOB_NODELIST": nodes, "SLURMD_NODENAME": "n1"}).leads is leads


@pytest.mark.parametrize(
    ("nodes", "first"), [("r[1-2]c[03-4]-ib,x", "r1c03-ib"), ("a-1,b", "a-1"), ("[7-9]", "7"), (",a", "")]
)
def test_the_first_of_a_list_of_nodes(nodes: str, first: str) -> None:
    assert found(environment={"SLURM_JOB_NODELIST": nodes, "SLURMD_NODENAME": first or "z"}).leads
