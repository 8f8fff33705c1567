"""The real cuda-bindings over a double of libcuda (a simulated device)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.doubles import simulated
from tests.unit.capture.cuda.conftest import ROOT, StartRank

_ASK = """
import json, sys
from slurmckpt.capture.cuda.driver import Bindings
from slurmckpt.errors import SlurmckptError
answers = []
try:
    driver = Bindings()
    for name, *arguments in json.loads(sys.argv[1]):
        try:
            answers.append(getattr(driver, name)(*arguments))
        except SlurmckptError as error:
            answers.append(str(error))
except SlurmckptError as error:
    answers.append(str(error))
print(json.dumps(answers))
"""


def ask(environment: dict[str, str], *calls: tuple[Any, ...]) -> list[Any]:
    """The driver's answers, from a process of its own: the bindings keep the library for good."""
    whole = os.environ | environment | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", _ASK, json.dumps(calls)]
    answer = subprocess.run(command, env=whole, stdout=subprocess.PIPE, check=True, timeout=120)
    found = json.loads(answer.stdout)
    assert isinstance(found, list)
    return found


def test_a_rank_goes_through_all_states_and_keeps_its_memory(
    hardware: simulated.Hardware, start_rank: StartRank
) -> None:
    rank = start_rank()
    rank.do("alloc 1000000 7")
    rank.do("add 3")
    before = rank.do("sha")
    pid = rank.pid
    answers = ask(
        hardware.environment,
        *(("state", pid), ("lock", pid, 1000), ("state", pid), ("checkpoint", pid), ("state", pid)),
        *(("restore", pid, []), ("state", pid), ("unlock", pid), ("state", pid), ("state", 1)),
    )
    assert answers == [0, None, 1, None, 2, None, 1, None, 0, None]
    assert rank.do("sha") == before


def test_device_memory_is_in_the_process_while_it_is_checkpointed(
    hardware: simulated.Hardware, start_rank: StartRank
) -> None:
    rank = start_rank()
    rank.do("alloc 30000000 7")
    resident = int(Path(f"/proc/{rank.pid}/statm").read_text().split()[1])
    ask(hardware.environment, ("lock", rank.pid, 1000), ("checkpoint", rank.pid))
    more = int(Path(f"/proc/{rank.pid}/statm").read_text().split()[1]) - resident
    assert more * os.sysconf("SC_PAGE_SIZE") >= 29_000_000
    rank.tell("sha")
    assert rank.silent()
    ask(hardware.environment, ("restore", rank.pid, []), ("unlock", rank.pid))
    assert len(rank.answer()) == 64


def test_a_lock_blocks_while_a_kernel_waits_for_its_peer(hardware: simulated.Hardware, start_rank: StartRank) -> None:
    first, second = start_rank(), start_rank()
    first.do("launch 1 2 0 1")
    began = time.monotonic()
    answers = ask(hardware.environment, ("lock", first.pid, 500), ("state", first.pid))
    assert "its GPU work does not end: it waits for another rank" in answers[0]
    assert answers[1] == 0 and time.monotonic() - began >= 0.5
    # With the lock given up, both go on.
    second.do("launch 1 2 1 1")
    assert first.do("sync") == second.do("sync") == "ok"


def test_gpus_are_mapped_by_their_uuids(hardware: simulated.Hardware, start_rank: StartRank) -> None:
    rank = start_rank()
    rank.do("alloc 1000 1")
    old = ask(hardware.environment, ("devices",), ("lock", rank.pid, 1000), ("checkpoint", rank.pid))[0]
    hardware.set(seed=9)
    new = ask(hardware.environment, ("devices",))[0]
    assert old == ["01" + "0" * 29 + "1", "01" + "0" * 29 + "2"] and new[0].startswith("09")
    pairs = list(zip(old, new, strict=True))
    # Every GPU must be in the map.
    answers = ask(hardware.environment, ("restore", rank.pid, pairs[:1]), ("restore", rank.pid, pairs))
    assert "GPUs of this node do not match" in answers[0] and answers[1] is None


def test_a_forked_child_has_no_cuda_state(hardware: simulated.Hardware, start_rank: StartRank) -> None:
    rank = start_rank()
    child = int(rank.do("fork"))
    try:
        assert ask(hardware.environment, ("state", child)) == [None]
    finally:
        os.kill(child, 9)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"cuda": 12040}, "it knows CUDA 12.4, and its checkpoint API came with 12.8 (driver 570)"),
        ({"init.error": 803}, "CUDA cannot be initialised: driver and library do not match (803): reboot"),
        ({"devices": 0}, "CUDA cannot be initialised: no GPU is there (100)"),
    ],
)
def test_a_driver_that_cannot_do_it(hardware: simulated.Hardware, settings: dict[str, object], reason: str) -> None:
    hardware.set(**{key.replace(".", "__"): value for key, value in settings.items()})
    assert reason in ask(hardware.environment)[0]


def test_no_driver_at_all(libraries: Path, tmp_path: Path) -> None:
    answer = ask({"LD_LIBRARY_PATH": str(tmp_path)}, ("devices",))[0]
    assert "the CUDA driver cannot be loaded" in answer and "libcuda.so.1" in answer


@pytest.mark.parametrize(
    ("code", "reason"), [(801, "UVM"), (304, "CAP_SYS_PTRACE"), (401, "already"), (77, "answers 77")]
)
def test_refusals_are_sentences(hardware: simulated.Hardware, start_rank: StartRank, code: int, reason: str) -> None:
    rank = start_rank()
    hardware.set(lock__error=code)
    answer = ask(hardware.environment, ("lock", rank.pid, 100))[0]
    assert f"process {rank.pid}: it cannot be locked: " in answer and reason in answer
