"""The stand-in for srun in an image of CRIU's, without a coordinator between."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.cluster.harness import TREE, Cluster


def test_a_waiting_script_is_dumped_and_restored_with_a_new_srun(cluster: Cluster, directory: Path) -> None:
    """Variables, pids and descriptors are the old ones; srun, its pipes and its exit status the new ones."""
    harness = directory / "tests/unit/pod"
    harness.mkdir(parents=True)
    for name in ("harness.py", "launching.py", "payloads.py"):
        shutil.copy(TREE / "tests/unit/pod" / name, harness)
    shutil.copy(TREE / "tests/unit/awaiting.py", harness.parent)
    (directory / "pod").symlink_to("/usr/libexec/slurmckpt")
    inside = f"/home/alice/{directory.name}"
    script = (
        "folder=$(mktemp -d /tmp/stand-in.XXXXXX) && chmod 0755 $folder && trap 'rm -rf $folder' EXIT && "
        f"PYTHONPATH={inside} /opt/slurmckpt/bin/python {inside}/dump_stand_in.py $folder || "
        "{ code=$?; tail -n 40 $folder/images/*.log >&2; exit $code; }"
    )
    done = cluster.root("n1", script, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["good"]), done.stdout + done.stderr
