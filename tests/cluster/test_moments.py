"""Jobs that are in the middle of something whenever a checkpoint comes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.harness import Cluster, events, finish, move, restored_from, wait_for

CHECKPOINTS = 12
# Beside it, a shell that starts short commands in every way that it has.
SCRIPT = """
python3 churn.py & churn=$!
while [ ! -e go ]; do
  a=$(echo one | cat); b=`true | cat`; (true) & { seq 20 | sort -r | head -3; } >/dev/null & read c <<<"$a"
  [ "$a$b$c" = oneone ] || echo "wrong: $a $b $c"
  wait $!; cat <(echo two) <(echo three) >/dev/null
done
wait $churn && echo end
"""


@pytest.mark.long
def test_a_job_that_starts_processes_all_the_time(cluster: Cluster, directory: Path) -> None:
    """Every checkpoint is taken, and none says that it was not. What comes and goes is in nobody's way at the restore."""
    job = cluster.submit(SCRIPT, "--checkpoint-interval=infinite", directory=directory)
    job.wait_output(r"^3$")
    taken = [job.checkpoint() for _ in range(CHECKPOINTS)]
    assert events(job) == []
    before = job.output().count("\n")
    move(job, job.node())
    assert restored_from(job) == taken[-1]
    wait_for("more rounds", lambda: job.output().count("\n") > before + 3)
    assert finish(job) == "COMPLETED", job.output()[-2000:]
    lines = job.output().splitlines()
    assert lines == [*map(str, range(len(lines) - 1)), "end"]
