"""What Slurm's job states mean for a job's checkpoints.

Names as in job_state_string() of Slurm's slurm_protocol_defs.c.
"""

from __future__ import annotations

from collections.abc import Set

# The job's owner has what he wanted, and Slurm does not run the job again by itself: images have served their time.
_OVER = frozenset({"COMPLETED", "CANCELLED"})
# Ended, and whoever may can bring it back with `scontrol requeue`, for as long as Slurm knows it.
_ENDED = _OVER | {"FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY"}
_COMING_BACK = frozenset({"REQUEUED", "PENDING", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})


def coming_back(state: Set[str]) -> bool:
    """Whether the job waits to be started again. state: base state and flags, or the one word of squeue's %T."""
    return bool(state & _COMING_BACK)


def over(state: Set[str]) -> bool:
    """Whether the job has ended as its owner wished. False for a state that is not known."""
    return bool(state & _OVER) and not coming_back(state)


def undecided(state: Set[str]) -> bool:
    """Whether the job is ending in failure and may still come back: RequeueExit counts when its nodes are done."""
    return "COMPLETING" in state and not over(state) and not coming_back(state)


def ended(state: Set[str]) -> bool:
    """Whether the job has ended, and all its nodes with it. False for a state that is not known."""
    return bool(state & _ENDED) and not coming_back(state) and "COMPLETING" not in state
