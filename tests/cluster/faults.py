"""The table of faults: what is broken where, and what must become of the job. tests/cluster/test_faults.py plays it.

docs/reliability.md shows it; tests/unit/test_reliability.py checks that it shows this one.
"""

from __future__ import annotations

from pathlib import Path

from tests.cluster.faultrows import (
    ALONE,
    CHECKPOINT,
    COLD,
    COORDINATOR,
    CRIU,
    DEAD,
    END,
    ENDED,
    ENTER,
    FINE,
    GOES_ON,
    KILLED,
    LEADER,
    LEADERLESS,
    LEFT_ALONE,
    LOST,
    NO_BATCH,
    NO_JOB,
    NO_STEP,
    OLDER,
    POD_INIT,
    RESTORE,
    RUN,
    RUNS,
    SHIM,
    SILENT,
    SKIPPED,
    START,
    TAKEN,
    UNMOVED,
    Fault,
    at_its_place,
    paused,
    signalled,
)

PROLOG = tuple(
    Fault(f"{place}-{action}", START, place, action, f"the prolog {how} {where}", RUNS, says)
    for place, where in (
        ("prolog.begin", "at its beginning"),
        ("prolog.sockets", "before it makes the sockets"),
        ("prolog.detach", "before it starts the coordinator"),
    )
    for action, how, says in (
        ("raise", "fails", (NO_STEP,)),
        ("kill", "is killed", (NO_STEP,)),
        ("hang", "hangs", (NO_STEP,)),
    )
)

OPENING = (
    Fault("coordinator-dies", START, "coordinator.begin", "kill", "the coordinator dies at once", RUNS, (DEAD,)),
    Fault("coordinator-fails", START, "coordinator.begin", "raise", "the coordinator fails at once", RUNS, (DEAD,)),
    Fault(
        "coordinator-stops", START, "coordinator.begin", "stop", "the coordinator is stopped at once", RUNS, (SILENT,)
    ),
    Fault("open-error", START, "open.begin", "error", "looking at the node fails", RUNS, (NO_JOB,)),
    Fault("open-raise", START, "open.begin", "raise", "looking at the node fails unexpectedly", RUNS, (NO_JOB,)),
    Fault("open-hang", START, "open.begin", "hang", "the coordinator's event loop hangs", RUNS, (SILENT,)),
    Fault("lease-full", START, "open.lease", "ENOSPC", "the store is full, no lease", RUNS, (NO_JOB,)),
    Fault("lease-read-only", START, "open.lease", "EROFS", "the store is read-only, no lease", RUNS, (NO_JOB,)),
    Fault("lease-hang", START, "open.lease", "hang", "the store does not answer", RUNS, (NO_JOB,)),
    Fault("lease-dies", START, "open.lease", "kill", "the coordinator dies while it takes the lease", RUNS, (DEAD,)),
)

STARTING = (
    Fault("start-raise", START, "start.begin", "raise", "starting a step fails before its pod", RUNS, (NO_BATCH,)),
    Fault("start-dies", START, "start.begin", "kill", "the coordinator dies before the pod", RUNS, (DEAD,)),
    Fault("pod-raise", START, "start.pod", "raise", "starting a step fails after its pod is built", RUNS, (NO_BATCH,)),
    Fault("pod-dies", START, "start.pod", "kill", "the coordinator dies when the pod is built", RUNS, (DEAD,)),
    Fault("tasks-die", START, "start.tasks", "kill", "the coordinator dies when the tasks are started", LEFT_ALONE),
)

RUNNING = (
    Fault("coordinator-killed", RUN, "", signalled(COORDINATOR, "KILL"), "the coordinator is killed", LEFT_ALONE),
    Fault("coordinator-stopped", RUN, "", signalled(COORDINATOR, "STOP"), "the coordinator is stopped", LEFT_ALONE),
    Fault(
        "shim-killed",
        RUN,
        "",
        signalled(SHIM, "KILL"),
        "the task shim is killed",
        LOST,
        state="FAILED",
        signal=9,
        output="part",
    ),
    Fault(
        "leader-killed",
        RUN,
        "",
        signalled(LEADER, "KILL"),
        "the leader is killed",
        LOST,
        (LEADERLESS,),
        state="FAILED",
        signal=9,
        output="part",
    ),
    Fault(
        "pod-init-killed",
        RUN,
        "",
        signalled(POD_INIT, "KILL"),
        "pod init is killed",
        LOST,
        state="FAILED",
        signal=9,
        output="part",
    ),
    Fault("leader-stopped", RUN, "", paused(LEADER), "the leader is stopped for 5 s", UNMOVED),
    Fault("pod-init-stopped", RUN, "", paused(POD_INIT), "pod init is stopped for 5 s", UNMOVED),
    Fault("shim-stopped", RUN, "", paused(SHIM), "the task shim is stopped for 5 s", UNMOVED),
)

# The coordinator lives on: all these are played in one job, one after the other.
SURVIVED = (
    Fault("prepare-raise", CHECKPOINT, "capture.prepare", "raise", "preparing fails unexpectedly", GOES_ON),
    Fault("prepare-full", CHECKPOINT, "capture.prepare", "ENOSPC", "the staging disk is full", GOES_ON),
    Fault("stopping-raise", CHECKPOINT, "capture.stopping", "raise", "a failure while CRIU stops the ranks", GOES_ON),
    Fault("stopped-raise", CHECKPOINT, "capture.stopped", "raise", "a failure when all pods stand still", GOES_ON),
    Fault("measure-raise", CHECKPOINT, "capture.measure", "raise", "draining output fails", GOES_ON),
    Fault("measure-error", CHECKPOINT, "capture.measure", "EIO", "measuring output files fails", GOES_ON),
    Fault("files-full", CHECKPOINT, "capture.files", "ENOSPC", "the staging disk is full for files", GOES_ON),
    Fault("written-raise", CHECKPOINT, "capture.written", "raise", "a failure when the images are written", GOES_ON),
    Fault("written-full", CHECKPOINT, "capture.written", "ENOSPC", "the staging disk is full at the end", GOES_ON),
    Fault("resumed-raise", CHECKPOINT, "capture.resumed", "raise", "a failure right after the freeze", GOES_ON),
    Fault("outputs-full", CHECKPOINT, "capture.outputs", "ENOSPC", "the staging disk is full for output", GOES_ON),
    Fault("commit-raise", CHECKPOINT, "commit.begin", "raise", "committing fails unexpectedly", GOES_ON),
    Fault("copy-full", CHECKPOINT, "commit.copy", "ENOSPC", "the store is full", GOES_ON),
    Fault("fsync-error", CHECKPOINT, "commit.fsync", "EIO", "the store cannot make a file durable", GOES_ON),
    Fault("sign-read-only", CHECKPOINT, "commit.sign", "EROFS", "the store turns read-only", GOES_ON),
    Fault("rename-error", CHECKPOINT, "commit.rename", "EIO", "the store fails at the rename that publishes", GOES_ON),
)

# Each takes a coordinator, or a pod, with it.
CAPTURE = (
    Fault(
        "copy-hang",
        CHECKPOINT,
        "commit.copy",
        "hang",
        "the store does not answer",
        LEFT_ALONE,
        (SKIPPED,),
        "not answered",
    ),
    *(
        Fault(f"{name}-dies", CHECKPOINT, place, "kill", f"the coordinator dies {where}", LEFT_ALONE, refused=ENDED)
        for name, place, where in (
            ("stopping", "capture.stopping", "while CRIU stops the ranks"),
            ("stopped", "capture.stopped", "when all pods stand still"),
            ("measure", "capture.measure", "while it drains output"),
            ("written", "capture.written", "when the images are written"),
            ("resumed", "capture.resumed", "right after the freeze"),
            ("copy", "commit.copy", "while it writes to the store"),
            ("rename", "commit.rename", "before the rename that publishes"),
            ("renamed", "commit.renamed", "after the rename that publishes"),
        )
    ),
    Fault(
        "stopped-stop",
        CHECKPOINT,
        "capture.stopped",
        "stop",
        "the coordinator is stopped in a freeze",
        LEFT_ALONE,
        refused=".",
    ),
    Fault(
        "written-hang",
        CHECKPOINT,
        "capture.written",
        "hang",
        "the coordinator hangs in a freeze",
        LEFT_ALONE,
        refused=".",
    ),
    Fault(
        "criu-killed",
        CHECKPOINT,
        "capture.stopped",
        at_its_place(CRIU, "KILL"),
        "CRIU is killed when it has stopped the ranks",
        GOES_ON,
        (SKIPPED,),
        "CRIU",
    ),
    Fault(
        "criu-killed-late",
        CHECKPOINT,
        "capture.written",
        at_its_place(CRIU, "KILL"),
        "CRIU is killed when it has written the images",
        GOES_ON,
        (SKIPPED,),
        "CRIU",
        program="chain",
    ),
    Fault(
        "criu-killed-late-tcp",
        CHECKPOINT,
        "capture.written",
        at_its_place(CRIU, "KILL"),
        "CRIU is killed when it has written the images, of ranks with TCP connections",
        LOST,
        (),
        # The command runs as a step of the job, which Slurm ends with it: it may not come to its answer.
        "CRIU was killed and a process of the pod cannot be brought back|pod init .* does not answer|STEP .* FAILED",
        state="FAILED",
        signal=9,
        output="part",
    ),
    Fault(
        "criu-stopped",
        CHECKPOINT,
        "capture.written",
        at_its_place(CRIU, "STOP"),
        "CRIU is stopped in a freeze",
        GOES_ON,
        (SKIPPED,),
        "did not end within",
    ),
    Fault("prune-error", CHECKPOINT, "retain.prune", "EIO", "old checkpoints cannot be removed", TAKEN),
    Fault(
        "enter-killed", CHECKPOINT, "capture.stopped", at_its_place(ENTER, "KILL"), "enter is killed in a freeze", TAKEN
    ),
    Fault(
        "enter-stopped",
        CHECKPOINT,
        "capture.written",
        at_its_place(ENTER, "STOP"),
        "enter is stopped in a freeze",
        TAKEN,
    ),
)


def _restores(place: str, where: str, output: str) -> tuple[Fault, ...]:
    """Failing there costs the checkpoint, dying the whole restore."""
    dies, becomes = (
        f"the coordinator dies {where}",
        f"{COLD}{', what it had printed stands before' * (output != 'exact')}",
    )
    return (
        Fault(f"{place}-fails", RESTORE, place, "error 1", f"a restore fails {where}", OLDER, restored_from=1),
        Fault(f"{place}-dies", RESTORE, place, "kill", dies, becomes, (ALONE,), restored_from=None, output=output),
    )


RESTORING = (
    Fault("fetch-error", RESTORE, "restore.fetch", "EIO 2", "the store cannot be read", OLDER, restored_from=1),
    Fault(
        "fetch-hang",
        RESTORE,
        "restore.fetch",
        "hang",
        "the store does not answer",
        COLD,
        ("no checkpoints for step batch: the store has not answered .*",),
        restored_from=None,
    ),
    Fault(
        "fetch-dies",
        RESTORE,
        "restore.fetch",
        "kill",
        "the coordinator dies while it reads the store",
        RUNS,
        (ALONE,),
        restored_from=None,
    ),
    *_restores("restore.pod", "before its pod is built", "exact"),
    *_restores("restore.put_back", "before output is put back", "exact"),
    *_restores("restore.criu", "before CRIU is started", "again"),
    *_restores("restore.connected", "when the sockets are made", "again"),
    *_restores("restore.restored", "when the processes are made", "again"),
    Fault(
        "restore.adopted-fails",
        RESTORE,
        "restore.adopted",
        "error",
        "a restore fails when pod init has the shims",
        LOST,
        (KILLED,),
        state="FAILED",
        signal=9,
        restored_from=None,
        output="part",
    ),
    Fault(
        "restore.adopted-dies",
        RESTORE,
        "restore.adopted",
        "kill",
        "the coordinator dies when pod init has the shims",
        LEFT_ALONE,
        restored_from=None,
    ),
    Fault(
        "restore.resumed-dies",
        RESTORE,
        "restore.resumed",
        "kill",
        "the coordinator dies when the restored ranks run",
        LEFT_ALONE,
        restored_from=None,
    ),
    Fault(
        "restore-criu-killed",
        RESTORE,
        "restore.connected",
        at_its_place(CRIU, "KILL"),
        "CRIU is killed when the sockets are made",
        OLDER,
        restored_from=1,
    ),
    Fault(
        "restore-criu-killed-late",
        RESTORE,
        "restore.restored",
        at_its_place(CRIU, "KILL"),
        "CRIU is killed when the processes are made",
        "is restored",
    ),
    Fault(
        "restore-stops",
        RESTORE,
        "restore.restored",
        "stop",
        "the coordinator is stopped in a restore",
        f"{COLD}, what it had printed stands before",
        (SILENT,),
        restored_from=None,
        output="again",
    ),
)

ENDING = (
    Fault("stop-raise", END, "stop.begin", "raise", "the coordinator's end fails", FINE),
    Fault("stop-dies", END, "stop.begin", "kill", "the coordinator dies at its end", FINE),
    Fault("stop-hangs", END, "stop.begin", "hang", "the coordinator hangs at its end", FINE),
    Fault("stop-stops", END, "stop.begin", "stop", "the coordinator is stopped at its end", FINE),
    Fault("pods-die", END, "stop.pods", "kill", "the coordinator dies when its pods are gone", FINE),
    Fault("settle-raise", END, "settle.begin", "raise", "tidying the store fails", FINE),
    Fault("settle-dies", END, "settle.begin", "kill", "the coordinator dies before it tidies the store", FINE),
    Fault("remove-error", END, "settle.remove", "EIO", "images cannot be removed", FINE),
    Fault("remove-hang", END, "settle.remove", "hang", "the store does not answer at the end", FINE),
    Fault("epilog-raise", END, "epilog.begin", "raise", "the epilog fails", FINE),
    Fault("epilog-dies", END, "epilog.begin", "kill", "the epilog is killed", FINE),
    Fault("epilog-hangs", END, "epilog.begin", "hang", "the epilog hangs", FINE),
)

FAULTS = (*PROLOG, *OPENING, *STARTING, *RUNNING, *SURVIVED, *CAPTURE, *RESTORING, *ENDING)

# Marked `soak`, and left out of `make test-all`: each is the sibling of one that this plays.
THOROUGH = frozenset(
    {
        *("prolog.begin-kill", "prolog.begin-hang", "prolog.sockets-kill", "prolog.sockets-hang", "prolog.detach-kill"),
        *("coordinator-fails", "open-raise", "open-hang", "lease-read-only", "start-raise", "pod-dies"),
        *("leader-stopped", "shim-stopped", "enter-stopped", "copy-hang", "written-hang"),
        *("stopping-dies", "measure-dies", "resumed-dies", "copy-dies", "renamed-dies"),
        *("fetch-dies", "restore.pod-dies", "restore.put_back-fails", "restore.put_back-dies", "restore.criu-fails"),
        *("restore.criu-dies", "restore.connected-dies", "restore-criu-killed", "restore-stops"),
        *("stop-raise", "stop-stops", "pods-die", "settle-raise", "remove-error", "epilog-dies", "epilog-hangs"),
    }
)

BEGIN, FINISH = "<!-- faults: begin -->\n", "<!-- faults: end -->\n"


def table() -> str:
    """The rows as docs/reliability.md shows them."""
    lines = ["| what is broken | the job | test |", "|---|---|---|"]
    for fault in FAULTS:
        mark = " (soak)" if fault.name in THOROUGH else ""
        lines.append(f"| {fault.what} | {fault.becomes} | `{fault.name}`{mark} |")
    return "\n".join(lines) + "\n"


def with_table(document: str) -> str:
    """The document with the table of now between its marks."""
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(FINISH)
    return before + BEGIN + table() + FINISH + after


if __name__ == "__main__":
    path = Path(__file__).resolve().parents[2] / "docs/reliability.md"
    path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
