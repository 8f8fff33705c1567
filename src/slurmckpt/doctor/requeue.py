"""Slurm's rules for requeues, of the whole site: what brings a job back, and what does not (docs/requeue.md)."""

from __future__ import annotations

from slurmckpt.doctor.finding import Finding, ok, skipped, warning
from slurmckpt.doctor.host import Cluster, Host
from slurmckpt.doctor.slurm import silent
from slurmckpt.slurm.port import PartitionInfo

_REQUEUE_DELAY_SINCE = (25, 11)


def job_requeue(host: Host) -> Finding:
    """JobRequeue=1: jobs come back without asking for it."""
    if (cluster := host.cluster) is None:
        return silent()
    value = cluster.config.get("JobRequeue", "")
    if value == "1":
        return ok("1: a job is requeued when its node fails, unless it says --no-requeue")
    return warning(
        f"{value or 'not set'}: a job is lost with its node, unless it says --requeue", "set JobRequeue=1 in slurm.conf"
    )


def preempt_mode(host: Host) -> Finding:
    """Neither the site nor a partition says CANCEL: that ends preempted jobs, whatever they asked for."""
    if (cluster := host.cluster) is None:
        return silent()
    words = [word.upper() for word in cluster.words("PreemptMode")]
    shown = ",".join(words) or "not set"
    named = [partition.name for partition in cluster.partitions if partition.preempt_mode.upper() == "CANCEL"]
    remedy = "set PreemptMode=REQUEUE"
    if "CANCEL" in words:
        return warning(f"{shown}: preempted jobs do not come back, not even with --requeue", remedy)
    if _preempts(cluster) and named:
        return warning(f"{shown}, but CANCEL in {', '.join(named)}: jobs preempted there do not come back", remedy)
    return ok(f"{shown} (a QOS may have another)" if _preempts(cluster) else f"{shown}: no job is preempted")


def grace_time(host: Host) -> Finding:
    """What a preempted job has for a last checkpoint. Said, not judged."""
    if (cluster := host.cluster) is None:
        return silent()
    found = [partition for partition in cluster.partitions if _is_requeued(cluster, partition)]
    if not _preempts(cluster) or not found:
        return skipped("no partition's jobs are preempted and requeued")
    kill_wait = cluster.config.get("KillWait", "").split(" ")[0] or "30"
    graces = ", ".join(f"{partition.name} {partition.grace_time} s" for partition in found)
    if not any(partition.grace_time for partition in found):
        return ok(
            f"{graces}: a preempted job is ended at once (SIGTERM, SIGKILL {kill_wait} s later), "
            "and does again what it did since its last checkpoint"
        )
    return ok(f"{graces}: from SIGTERM to the end of a preempted job, then {kill_wait} s more (KillWait) to SIGKILL")


def max_batch_requeue(host: Host) -> Finding:
    """How often a job comes back before Slurm holds it. Not every requeue counts."""
    if (cluster := host.cluster) is None:
        return silent()
    value = cluster.config.get("MaxBatchRequeue", "")
    what = "failed launch, or end in the grace time of a preemption"
    if value == "0":
        return warning(
            f"0: a job is held after its first {what}, and none goes on beyond its time limit",
            "set MaxBatchRequeue to 5, its default, or more",
        )
    return ok(
        f"{value or 'not set'}: so often a job goes on beyond its time limit; after as many failed launches, or ends in"
        " the grace time of a preemption, Slurm holds it (JobHoldMaxRequeue)"
    )


def job_file_append(host: Host) -> Finding:
    """Said, not judged: output is put back exactly in both modes."""
    if (cluster := host.cluster) is None:
        return silent()
    value = cluster.config.get("JobFileAppend", "")
    kept = "keeps" if value == "1" else "truncates"
    return ok(
        f"{value or 'not set'}: Slurm {kept} a requeued job's output; slurmckpt puts it back exactly in either mode"
    )


def requeue_exit(host: Host) -> Finding:
    """Exit codes with which a job asks to be run again."""
    if (cluster := host.cluster) is None:
        return silent()
    set_here = {name: value for name in ("RequeueExit", "RequeueExitHold") if (value := cluster.config.get(name, ""))}
    if not set_here:
        return ok("not set")
    shown = ", ".join(f"{name}={value}" for name, value in set_here.items())
    return ok(f"{shown}: such a job goes on once from its last checkpoint, and after the same end from its beginning")


def requeue_delay(host: Host) -> Finding:
    """How long a requeued job waits. Said, not judged."""
    if (cluster := host.cluster) is None:
        return silent()
    for word in cluster.words("SchedulerParameters"):
        if word.startswith("requeue_delay="):
            return ok(f"a requeued job waits {word.partition('=')[2]} s before it may start")
    seconds = next((w.partition("=")[2] for w in cluster.words("AuthInfo") if w.startswith("cred_expire=")), "120")
    text = f"a requeued job waits {seconds} s before it may start"
    if (_release(cluster) or (0, 0)) >= _REQUEUE_DELAY_SINCE:
        return ok(f"{text}; SchedulerParameters=requeue_delay=10 shortens that")
    return ok(f"{text}; that follows AuthInfo=cred_expire before Slurm 25.11")


def _release(cluster: Cluster) -> tuple[int, int] | None:
    numbers = cluster.config.get("SLURM_VERSION", "").split(".")[:2]
    return (int(numbers[0]), int(numbers[1])) if len(numbers) == 2 and all(map(str.isdigit, numbers)) else None


def _preempts(cluster: Cluster) -> bool:
    return cluster.config.get("PreemptType", "").removeprefix("preempt/") not in ("", "none")


def _is_requeued(cluster: Cluster, partition: PartitionInfo) -> bool:
    mode = partition.preempt_mode or cluster.config.get("PreemptMode", "")
    return "REQUEUE" in mode.upper().split(",")
