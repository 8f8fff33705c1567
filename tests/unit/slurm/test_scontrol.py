"""The scontrol backend against recorded answers of Slurm 26.05.5 and the shapes of older releases."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from slurmckpt.errors import NoSuchJobError, SlurmError
from slurmckpt.slurm.port import JobLine, PartitionInfo
from slurmckpt.slurm.scontrol import Scontrol

F = "slurmckpt-0123456789ab"


def test_a_running_job(scontrol: Any, samples: Path) -> None:
    scontrol.answer("show job 290 --json", (samples / "job-running.json").read_text())
    job = asyncio.run(Scontrol(scontrol.program).job(290))
    assert (job.job_id, job.address, job.user_id) == (290, "290", 1000)
    assert job.state == {"RUNNING"}
    assert not job.pending
    assert (job.features, job.prefer) == ("a", "")
    assert job.nodes == ("n1",)
    assert job.node_count == 1
    assert job.partitions == {"debug"}
    assert job.restart_count == 0
    assert job.admin_comment == f"site text; slurmckpt:feature={F}"
    assert job.requeue


def test_a_job_in_requeue_waits_and_completes(scontrol: Any, samples: Path) -> None:
    scontrol.answer("show job 296 --json", (samples / "job-two-nodes-requeued.json").read_text())
    job = asyncio.run(Scontrol(scontrol.program).job(296))
    assert job.state == {"PENDING", "COMPLETING"}
    assert job.pending
    assert job.restart_count == 1


def test_an_array_task_is_found_and_named_among_the_others(scontrol: Any, samples: Path) -> None:
    """The raw id of the last task is also the id of the whole array."""
    scontrol.answer("show job 291 --json", (samples / "job-array.json").read_text())
    scontrol.answer("show job 294 --json", (samples / "job-array.json").read_text())
    scontrol.answer("update")
    port = Scontrol(scontrol.program)
    assert asyncio.run(port.job(291)).address == "291_2"
    assert asyncio.run(port.job(294)).address == "291_1"
    asyncio.run(port.set_job_features(291, "a"))
    assert scontrol.calls()[-1] == ["update", "JobId=291_2", "Features=a"]


def test_all_tasks_of_an_array(scontrol: Any, samples: Path) -> None:
    scontrol.answer("show job 291 --json", (samples / "job-array.json").read_text())
    scontrol.answer("show job 290 --json", (samples / "job-running.json").read_text())
    scontrol.answer("show job 9 --json", json.dumps({"jobs": []}))
    scontrol.answer("show job 9", errors="slurm_load_jobs error: Invalid job id specified\n", status=1)
    scontrol.answer("show job 10 --json", json.dumps({"jobs": []}))
    scontrol.answer("show job 10", errors="slurm_load_jobs error: Unable to contact slurm controller\n", status=1)
    port = Scontrol(scontrol.program)
    found = asyncio.run(port.array(291))
    assert [(job.array, job.job_id) for job in found] == [("291_1", 294), ("291_2", 291)]
    assert [(job.array, job.job_id) for job in asyncio.run(port.array(290))] == [("", 290)]
    with pytest.raises(NoSuchJobError, match="Slurm knows no job 9"):
        asyncio.run(port.array(9))
    with pytest.raises(SlurmError, match="Unable to contact slurm controller"):
        asyncio.run(port.array(10))


def test_tasks_that_wait_stand_for_none(scontrol: Any) -> None:
    """Those that have not started are one record without a task number; its address is the array's."""
    waiting = {"job_id": 8, "array_job_id": {"set": True, "number": 8}, "array_task_id": {"set": False, "number": 0}}
    scontrol.answer("show job 8 --json", json.dumps({"jobs": [waiting]}))
    (job,) = asyncio.run(Scontrol(scontrol.program).array(8))
    assert (job.array, job.array_task, job.address) == ("", None, "8")


def test_rules_of_a_job(scontrol: Any) -> None:
    record = {
        "job_id": 9,
        "name": "train",
        "batch_flag": False,
        "flags": ["JOB_WAS_RUNNING", "EXPEDITED_REQUEUE"],
        "preempt_time": {"set": True, "infinite": False, "number": 1795969384},
    }
    scontrol.answer("show job 9 --json", json.dumps({"jobs": [record]}))
    scontrol.answer("show job 10 --json", json.dumps({"jobs": [{"job_id": 10}]}))
    port = Scontrol(scontrol.program)
    job = asyncio.run(port.job(9))
    assert (job.name, job.batch, job.expedite, job.preempt_time) == ("train", False, True, 1795969384.0)
    # What a release does not tell is taken for the usual.
    job = asyncio.run(port.job(10))
    assert (job.name, job.batch, job.expedite, job.preempt_time) == ("", True, False, 0.0)


def test_a_line_for_each_job(scontrol: Any) -> None:
    squeue = Path(scontrol.program).with_name("squeue")
    squeue.symlink_to(scontrol.program)
    scontrol.answer(
        "--noheader",
        "290|290|N/A|RUNNING|train\n"
        "294|291|1|COMPLETED|a|b PENDING\n"
        "291|291|2|REQUEUE_HOLD|\n"
        "nonsense\n"
        "x|1|2|RUNNING|y\n",
    )
    assert asyncio.run(Scontrol(scontrol.program).job_lines()) == [
        JobLine(290, "", "RUNNING", "train"),
        JobLine(294, "291_1", "COMPLETED", "a|b PENDING"),
        JobLine(291, "291_2", "REQUEUE_HOLD", ""),
    ]


def test_partitions(scontrol: Any) -> None:
    scontrol.answer(
        "show partition",
        "PartitionName=low AllowGroups=ALL GraceTime=60 Nodes=n[1-2] PreemptMode=CANCEL State=UP\n"
        "PartitionName=new AllowGroups=ALL GraceTime=?\n"
        "No partitions in the system\n",
    )
    assert asyncio.run(Scontrol(scontrol.program).partitions()) == [
        PartitionInfo("low", "CANCEL", 60),
        PartitionInfo("new", "", 0),
    ]


def test_a_component_of_a_heterogeneous_job(scontrol: Any) -> None:
    record = {"job_id": 9, "het_job_id": {"set": True, "number": 8}, "het_job_offset": {"set": True, "number": 1}}
    scontrol.answer("show job 9 --json", json.dumps({"jobs": [record]}))
    assert asyncio.run(Scontrol(scontrol.program).job(9)).address == "8+1"


def test_shapes_of_older_releases(scontrol: Any) -> None:
    """Slurm 21.08 gave numbers bare, states as text and nothing for what is unset."""
    record = {
        "job_id": 7,
        "job_state": "RUNNING",
        "array_job_id": 0,
        "array_task_id": None,
        "features": None,
        "nodes": "n[1-2]",
        "node_count": 2,
        "partition": "debug,long",
        "requeue": 1,
        "user_id": 1000,
    }
    scontrol.answer("show job 7 --json", json.dumps({"jobs": [record]}))
    scontrol.answer("show hostnames n[1-2]", "n1\nn2\n")
    job = asyncio.run(Scontrol(scontrol.program).job(7))
    assert (job.address, job.state, job.features, job.prefer) == ("7", frozenset({"RUNNING"}), "", "")
    assert job.nodes == ("n1", "n2")
    assert job.partitions == {"debug", "long"}
    assert job.requeue
    node = {
        "name": "n1",
        "hostname": "h",
        "state": "idle",
        "state_flags": ["DRAIN"],
        "features": "a,b",
        "partitions": [],
    }
    scontrol.answer("show node --json", json.dumps({"nodes": [node]}))
    assert [(n.state, n.features, n.active_features) for n in asyncio.run(Scontrol(scontrol.program).nodes())] == [
        (frozenset({"IDLE", "DRAIN"}), ("a", "b"), ())
    ]


def test_an_unknown_job(scontrol: Any, samples: Path) -> None:
    """With --json scontrol says it with an empty list and exit status 0, without it in words."""
    scontrol.answer("show job 99999 --json", (samples / "job-unknown.json").read_text())
    scontrol.answer("show job 99999", errors="slurm_load_jobs error: Invalid job id specified\n", status=1)
    with pytest.raises(NoSuchJobError, match="no job 99999"):
        asyncio.run(Scontrol(scontrol.program).job(99999))


def test_a_controller_that_cannot_be_reached_knows_no_job_less(scontrol: Any, samples: Path) -> None:
    """Its --json is that of an unknown job; who took it for one would remove the images of jobs that run."""
    scontrol.answer("show job 40 --json", (samples / "job-unknown.json").read_text())
    words = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    scontrol.answer("show job 40", errors=f"{words}\n", status=1)
    with pytest.raises(SlurmError, match="Unable to contact slurm controller") as caught:
        asyncio.run(Scontrol(scontrol.program).job(40))
    assert not isinstance(caught.value, NoSuchJobError)


def test_nodes(scontrol: Any, samples: Path) -> None:
    text = (samples / "nodes.json").read_text()
    scontrol.answer("show node n1 --json", text)
    scontrol.answer("show node nope --json", '{"nodes": []}')
    scontrol.answer("show node --json", text)
    port = Scontrol(scontrol.program)
    nodes = {node.name: node for node in asyncio.run(port.nodes())}
    assert nodes["n1"].features == nodes["n1"].active_features == ("a", "b", F)
    assert nodes["n1"].partitions == {"debug"}
    assert nodes["n1"].usable
    assert nodes["n2"].state >= {"DOWN"}
    assert not nodes["n2"].usable
    assert nodes["n3"].state >= {"IDLE", "DRAIN"}
    assert not nodes["n3"].usable
    assert asyncio.run(port.node("n1")) == nodes["n1"]
    with pytest.raises(SlurmError, match="no node nope"):
        asyncio.run(port.node("nope"))


def test_updates_are_single_arguments(scontrol: Any, samples: Path) -> None:
    scontrol.answer("show job 290 --json", (samples / "job-running.json").read_text())
    scontrol.answer("update")
    port = Scontrol(scontrol.program)
    asyncio.run(port.set_job_features(290, "", "(a|b)"))
    asyncio.run(port.set_admin_comment(290, "a 'b' $(c)\nd=e"))
    asyncio.run(port.set_node_features("n1", ["a", F], [F]))
    assert [call for call in scontrol.calls() if call[0] == "update"] == [
        ["update", "JobId=290", "Features=", "Prefer=(a|b)"],
        ["update", "JobId=290", "AdminComment=a 'b' $(c)\nd=e"],
        ["update", "NodeName=n1", f"AvailableFeatures=a,{F}", f"ActiveFeatures={F}"],
    ]
    with pytest.raises(SlurmError, match="NUL"):
        asyncio.run(port.set_admin_comment(290, "a\0b"))


def test_slurms_own_message_is_the_error(scontrol: Any) -> None:
    scontrol.answer("show", errors="slurm_load_jobs error: Unable to contact slurm controller\nmore\n", status=1)
    with pytest.raises(SlurmError) as caught:
        asyncio.run(Scontrol(scontrol.program).job(1))
    assert str(caught.value) == "scontrol show job: slurm_load_jobs error: Unable to contact slurm controller"


def test_an_answer_that_is_no_json(scontrol: Any) -> None:
    scontrol.answer("show job 1", "JobId=1")
    scontrol.answer("show job 2", "[]")
    scontrol.answer("show job 3", "{}")
    port = Scontrol(scontrol.program)
    for job_id, said in ((1, "no JSON"), (2, "not an object"), (3, "no list 'jobs'")):
        with pytest.raises(SlurmError, match=said):
            asyncio.run(port.job(job_id))


def test_a_controller_that_does_not_answer(scontrol: Any) -> None:
    scontrol.answer("show", seconds=60)
    start = time.monotonic()
    with pytest.raises(SlurmError, match=r"did not answer within 0\.2 s"):
        asyncio.run(Scontrol(scontrol.program, timeout=0.2).job(1))
    assert time.monotonic() - start < 20


def test_slurm_is_not_installed() -> None:
    with pytest.raises(SlurmError, match=r"/nowhere/scontrol cannot be run: No such file"):
        asyncio.run(Scontrol("/nowhere/scontrol").job(1))


def test_the_environment_is_clean(scontrol: Any, samples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scontrol.answer("show job 290 --json", (samples / "job-running.json").read_text())
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/slurm.conf")
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setenv("SLURM_CLUSTERS", "elsewhere")
    asyncio.run(Scontrol(scontrol.program).job(290))
    environment = scontrol.environments()[0]
    assert environment.pop("PATH").endswith("/usr/bin:/sbin:/bin")
    assert {name: value for name, value in environment.items() if name != "LC_CTYPE"} == {
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "LC_ALL": "C.UTF-8",
    }


def test_the_controllers_configuration(scontrol: Any, samples: Path) -> None:
    scontrol.answer("show config", (samples / "config.txt").read_text())
    port = Scontrol(scontrol.program)
    settings = asyncio.run(port.config())
    assert settings["ClusterName"] == "fp"
    assert settings["NodeFeaturesPlugins"] == ""
    assert settings["EpilogSlurmctld[0]"] == "/home/epilogctld"
    assert asyncio.run(port.version()) == (26, 5, 5)


def test_a_controller_without_a_version(scontrol: Any) -> None:
    scontrol.answer("show config", "SLURM_VERSION = tomorrow\n")
    with pytest.raises(SlurmError, match="tomorrow"):
        asyncio.run(Scontrol(scontrol.program).version())


def test_when_a_job_ends(scontrol: Any) -> None:
    wrapped = {"set": True, "infinite": False}
    record = {
        "job_id": 7,
        "start_time": wrapped | {"number": 1795969674},
        "end_time": wrapped | {"number": 1795969734},
        "preempt_time": wrapped | {"number": 1795969689},
        "time_limit": wrapped | {"number": 1},
    }
    endless = {"job_id": 8, "time_limit": {"set": False, "infinite": True, "number": 0}}
    scontrol.answer("show job 7 --json", json.dumps({"jobs": [record]}))
    scontrol.answer("show job 8 --json", json.dumps({"jobs": [endless]}))
    job = asyncio.run(Scontrol(scontrol.program).job(7))
    assert (job.start_time, job.end_time, job.preempt_time, job.time_limit) == (1795969674, 1795969734, 1795969689, 1)
    job = asyncio.run(Scontrol(scontrol.program).job(8))
    assert (job.start_time, job.end_time, job.preempt_time, job.time_limit) == (0, 0, 0, None)


def test_one_task_of_an_array_is_requeued(scontrol: Any, samples: Path) -> None:
    """The raw id of the last task is also the id of the whole array."""
    scontrol.answer("show job 291 --json", (samples / "job-array.json").read_text())
    scontrol.answer("requeue 291_2")
    asyncio.run(Scontrol(scontrol.program).requeue(291))
    assert scontrol.calls()[-1] == ["requeue", "291_2"]


def test_a_requeue_that_slurm_refuses(scontrol: Any, samples: Path) -> None:
    scontrol.answer("show job 290 --json", (samples / "job-running.json").read_text())
    scontrol.answer("requeue", errors="Requested operation is presently disabled for job 290\n", status=1)
    with pytest.raises(SlurmError, match="presently disabled"):
        asyncio.run(Scontrol(scontrol.program).requeue(290))


def test_the_grace_time_of_a_partition(scontrol: Any) -> None:
    partitions = [{"name": "debug", "grace_time": 20}, {"name": "older", "grace_time": {"set": True, "number": 5}}]
    scontrol.answer("show partition", json.dumps({"partitions": partitions}))
    port = Scontrol(scontrol.program)
    assert asyncio.run(port.grace_time("debug")) == 20
    assert asyncio.run(port.grace_time("older")) == 5
    with pytest.raises(SlurmError, match="no partition nope"):
        asyncio.run(port.grace_time("nope"))
