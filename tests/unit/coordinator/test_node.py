"""What a checkpoint's fingerprint takes from the files of its ranks."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from slurmckpt.capture.inspect.used import UsedFile
from slurmckpt.coordinator import node


def test_what_lies_in_the_jobs_dev_shm_is_not_wanted_on_a_node_beforehand(tmp_path: Path) -> None:
    """It comes with the checkpoint: the library of the gate, and whatever a job has put there itself."""
    here = cast(Any, SimpleNamespace(fingerprint={"driver": "1"}))
    spec = cast(Any, SimpleNamespace(options=SimpleNamespace(model=None)))
    paths = ["/usr/lib/libown.so", "/dev/shm/libgate.so"]
    for path in paths:
        (tmp_path / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(sys.executable, tmp_path / path[1:])
    used = [
        UsedFile(path, "8:1", (tmp_path / path[1:]).stat().st_ino, str(tmp_path), executable=True) for path in paths
    ]
    found = " ".join(node.job_fingerprint(here, spec, used))
    assert "libown.so" in found and "libgate.so" not in found
