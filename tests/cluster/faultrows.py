"""A row of the table of faults, and the words of which rows are made: when, what is hit, what becomes of the job."""

from __future__ import annotations

from dataclasses import dataclass

# When the fault is ordered: before the job starts, while it just runs (a command, at once), before a checkpoint is asked for, before its next incarnation
# starts, or before it ends.
START, RUN, CHECKPOINT, RESTORE, END = "start", "run", "checkpoint", "restore", "end"

# What is hit, for root's shell.
COORDINATOR = "kill -{signal} $(cut -d' ' -f1 /run/slurmckpt/{job}/coordinator.pid)"
POD_INIT = "kill -{signal} $(cut -d' ' -f1 /run/slurmckpt/{job}/pods/batch.pid)"
LEADER = "pkill -{signal} -P $(cut -d' ' -f1 /run/slurmckpt/{job}/pods/batch.pid) -f slurmckpt-leader"
SHIM = "pkill -{signal} -f slurmckpt-shim.*/job$(printf %05d {job})/"
# By the pod, whose processes have CRIU and enter as strangers among them.
CRIU = "pkill -{signal} -x criu --ns $(cut -d' ' -f1 /run/slurmckpt/{job}/pods/batch.pid) --nslist pid"
ENTER = "pkill -{signal} -f 'enter --pid '$(cut -d' ' -f1 /run/slurmckpt/{job}/pods/batch.pid)"


@dataclass(frozen=True)
class Fault:
    """One row.

    name: the test's id. place: of slurmckpt.faults, or empty for a command that is run at once. action: an order for
    that place, or a command for root's shell with {job}. what: is broken, for people. becomes: of the job, for people.
    says: patterns of the lines that slurmckpt adds to the job's output, in any order. refused: pattern of the answer to
    `slurmckpt checkpoint`; empty: it is committed. state, status, signal: Slurm's, at the end. restored_from: of the
    last incarnation. program: chain or ring (with TCP connections), by default what suits `when`. output: exact, `again`
    (what had been printed up to the checkpoint stands before it) or `part`.
    """

    name: str
    when: str
    place: str
    action: str
    what: str
    becomes: str
    says: tuple[str, ...] = ()
    refused: str = ""
    state: str = "COMPLETED"
    status: int = 0
    signal: int = 0
    restored_from: int | None = 2
    program: str = ""
    output: str = "exact"


def signalled(command: str, name: str) -> str:
    return command.replace("{signal}", name)


def at_its_place(command: str, name: str) -> str:
    return f"sh 1\n{signalled(command, name)}"


def paused(command: str) -> str:
    return f"{signalled(command, 'STOP')} && (sleep 5; {signalled(command, 'CONT')}) >/dev/null 2>&1 &"


# What becomes of the job, for people.
UNMOVED = "runs on as ever"
RUNS = "runs to its end without checkpoints"
GOES_ON = "runs on, no checkpoint is taken, the next one is"
TAKEN = "runs on, the checkpoint is taken"
LEFT_ALONE = "runs on to its end, no further checkpoints"
OLDER = "is restored from the checkpoint before"
LOST = "is killed"
FINE = "has ended as ever"
COLD = "starts from the beginning, the reason is in its output"

# What its output says, and the answer to a request.
NO_STEP = "no checkpoints for this step: .*"
NO_JOB = "no checkpoints for this job: .*"
NO_BATCH = "no checkpoints for step batch: .*"
ALONE = "the coordinator is gone, this task runs without checkpoints"
# The one when its task has connected already, the other when it has not.
DEAD = f"(?:{ALONE}|{NO_STEP})"
SILENT = "this task runs without checkpoints: the coordinator does not answer"
SKIPPED = "checkpoint skipped: .*"
ENDED = "ended before it answered"
KILLED = "the task is killed: its restore failed when it was about to run: .*"
LEADERLESS = "the task is killed: the leader of the pod was killed by signal 9"
