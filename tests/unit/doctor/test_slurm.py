"""Slurm's configuration, as scontrol prints it in several releases."""

from __future__ import annotations

import pytest

from slurmckpt.doctor import requeue, slurm
from slurmckpt.doctor.checks import CHECKS, Check
from slurmckpt.doctor.host import Cluster
from tests.unit.doctor.world import World

JUDGED = (
    slurm.prolog_flags,
    slurm.prolog,
    slurm.epilog,
    slurm.epilog_slurmctld,
    requeue.job_requeue,
    requeue.preempt_mode,
    requeue.requeue_delay,
    slurm.proctrack,
    slurm.mpi_default,
)


@pytest.mark.parametrize("check", JUDGED)
def test_as_the_example_has_it(world: World, check: Check) -> None:
    assert check in CHECKS.values()
    for host in (world.host(), world.login(), world.controller()):
        assert check(host).verdict == "ok"


@pytest.mark.parametrize("check", JUDGED)
def test_without_a_controller(world: World, check: Check) -> None:
    assert check(world.host(cluster=None)).verdict == "skipped"


def test_the_controller(world: World) -> None:
    silent = world.host(cluster=None, why_no_cluster="scontrol show config: Unable to contact slurm controller")
    assert slurm.controller(silent).verdict == "problem"
    assert slurm.controller(silent).text == "scontrol show config: Unable to contact slurm controller"
    assert slurm.controller(world.host()).text == "Slurm 26.05.5, cluster cluster; this is node n1 (IDLE)"
    assert slurm.controller(world.host(slurmd=None)).verdict == "warning"
    assert slurm.controller(world.login()).verdict == "ok"
    stray = world.login(slurmd=1)
    assert (slurm.controller(stray).verdict, slurm.controller(stray).remedy) == (
        "warning",
        "run doctor with --node NAME",
    )


@pytest.mark.parametrize(
    ("check", "name", "value", "verdict"),
    [
        (slurm.prolog_flags, "PrologFlags", "", "problem"),
        (slurm.prolog_flags, "PrologFlags", "NoHold", "problem"),
        (slurm.prolog_flags, "PrologFlags", "Alloc,Contain,X11", "ok"),
        (slurm.prolog_flags, "PrologFlags", "Alloc,Contain,RunInJob", "warning"),
        (requeue.job_requeue, "JobRequeue", "0", "warning"),
        (requeue.preempt_mode, "PreemptMode", "CANCEL", "warning"),
        (requeue.preempt_mode, "PreemptMode", "GANG,CANCEL", "warning"),
        (requeue.preempt_mode, "PreemptMode", "REQUEUE", "ok"),
        (slurm.proctrack, "ProctrackType", "proctrack/linuxproc", "ok"),
        (slurm.proctrack, "ProctrackType", "proctrack/pgid", "warning"),
        (slurm.mpi_default, "MpiDefault", "none", "ok"),
        (slurm.mpi_default, "MpiDefault", "pmix", "warning"),
        (slurm.mpi_default, "MpiDefault", "mpi/pmi2", "warning"),
        (slurm.prolog, "PrEpPlugins", "prep/other", "problem"),
        (slurm.prolog, "PrEpPlugins", "", "ok"),
    ],
)
def test_values(world: World, check: Check, name: str, value: str, verdict: str) -> None:
    assert check(world.configured(**{name: value})).verdict == verdict


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({}, "2"),
        ({"SchedulerParameters": ""}, "120"),
        ({"SchedulerParameters": "bf_interval=5", "AuthInfo": "cred_expire=60"}, "60"),
        ({"SchedulerParameters": "", "SLURM_VERSION": "24.11.5"}, "120"),
    ],
)
def test_the_requeue_delay_is_said(world: World, changes: dict[str, str], seconds: str) -> None:
    found = requeue.requeue_delay(world.configured(**changes))
    assert (found.verdict, found.text.startswith(f"a requeued job waits {seconds} s")) == ("ok", True)


def test_requeue_delay_is_recommended_only_where_slurm_knows_it(world: World) -> None:
    new = requeue.requeue_delay(world.configured(SchedulerParameters=""))
    old = requeue.requeue_delay(world.configured(SchedulerParameters="", SLURM_VERSION="25.05.9"))
    assert "requeue_delay=10 shortens that" in new.text
    assert "requeue_delay=10" not in old.text


def test_hooks_as_older_releases_print_them(world: World) -> None:
    host = world.without("Prolog[")
    assert slurm.prolog(host).verdict == "problem"
    config = {**world.config, "Prolog": f"{world.top}/libexec/prolog"}
    del config["Prolog[0]"]
    assert slurm.prolog(world.host(cluster=Cluster(config, None))).verdict == "ok"


def test_a_hook_that_is_not_set(world: World) -> None:
    found = slurm.epilog(world.without("Epilog["))
    assert (found.verdict, found.text, found.remedy) == (
        "problem",
        "Epilog is not set",
        f"add to slurm.conf: Epilog={world.top}/libexec/epilog",
    )
    # EpilogSlurmctld is no Epilog
    assert slurm.epilog_slurmctld(world.without("Epilog[")).verdict == "ok"


def test_hooks_of_a_directory(world: World) -> None:
    """The usual way to run several: a pattern, and a link to each."""
    pattern = {"Prolog[0]": str(world.top / "prolog.d/*")}
    host = world.configured(**pattern)
    assert slurm.prolog(host).verdict == "problem"
    ours = world.write("libexec/prolog", "", 0o755)
    world.write("prolog.d/10-health", "#!/bin/sh\n", 0o755)
    link = world.top / "prolog.d/50-slurmckpt"
    link.symlink_to(ours)
    found = slurm.prolog(host)
    assert (found.verdict, found.text) == ("ok", f"{link} runs {ours}")


def test_a_hook_of_the_site_that_calls_ours(world: World) -> None:
    script = world.write("slurm/epilog.sh", f"#!/bin/sh\n{world.top}/libexec/epilog\n", 0o755)
    found = slurm.epilog(world.configured(**{"Epilog[0]": "epilog.sh"}))
    assert (found.verdict, found.text) == ("ok", f"{script} runs {world.top}/libexec/epilog")


def test_hooks_of_other_hosts_cannot_be_seen(world: World) -> None:
    changed = {"Prolog[0]": "/etc/prolog.d/*", "EpilogSlurmctld[0]": "/etc/ours"}
    cluster = Cluster(world.config | changed, None, "no node")
    assert slurm.prolog(world.login(cluster=cluster)).verdict == "skipped"
    assert slurm.prolog(world.host(cluster=cluster)).verdict == "problem"
    assert slurm.epilog_slurmctld(world.host(cluster=cluster)).verdict == "skipped"
    assert slurm.epilog_slurmctld(world.controller(cluster=cluster)).verdict == "problem"
