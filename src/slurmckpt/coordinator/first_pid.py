"""Which pid a pod begins with: another one for each, as programs name files by their pid that other jobs see, too.

Each pod has a PID namespace of its own, so nothing but this keeps the `$$` of two scripts apart. The first pids are
spread over what the kernel allows, by job, incarnation and step. Not by chance, which would let two of a hundred jobs
meet now and then: the multiples of an irrational number, less what is whole, lie as far apart as can be (three-distance
theorem). So jobs of one time, whose numbers are near each other, never have the same, and there is room between them
for the processes that follow. The node has no part in it, as each step runs on one node only.
"""

from __future__ import annotations

from math import isqrt

# RESERVED_PIDS in kernel/pid.c: where the kernel goes on when it has come to the highest pid. What is below stays free
# for good, and CRIU, whose own processes are in the pod too, gets it at a restore.
LOWEST = 300
# PID_MAX_LIMIT in include/linux/threads.h, for 64 bits. So it is set by systemd (since 243), and in each PID namespace
# since Linux 6.14.
_MOST = 4 * 2**20
# PID_MAX_DEFAULT there. The kernel itself takes 1024 for each CPU, and no less than this. So a number in between says
# nothing about other nodes, and a job is to be restored on those with fewer CPUs, too.
_LEAST = 2**15
_BITS = 64
_WHOLE = 1 << _BITS


def _fraction(square: int) -> int:
    """The square root, less what is whole; in units of 2**-64."""
    return isqrt(square << 2 * _BITS) % _WHOLE


# The golden ratio is best where one number counts. Of the roots these two leave the widest gaps beside it: at least a
# sixth of the mean, for 1 to 1000 jobs, steps and a few incarnations (a test looks).
_JOB = (isqrt(5 << 2 * _BITS) - _WHOLE) // 2
_STEP = _fraction(13)
_EPOCH = _fraction(2)


def place(job_id: int, epoch: int, step: str) -> int:
    """Where the first pid of a step lies in the range of all; in units of 2**-64. step: `batch` or a number."""
    number = 0 if step == "batch" else int(step) + 1
    return (job_id * _JOB + epoch * _EPOCH + number * _STEP) % _WHOLE


def first_pid(where: int, pid_max: int) -> int:
    """The pid of the leader of a new pod, at this place. pid_max: the first number that is too high for a pid there.

    It lies in the lower three quarters, so that pids do not soon begin anew at LOWEST.
    """
    limit = _MOST if pid_max >= _MOST else min(pid_max, _LEAST)
    return LOWEST + (where * (max(limit // 4 * 3, LOWEST + 1) - LOWEST) >> _BITS)
