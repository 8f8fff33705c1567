"""All ranks at once: a state machine of the driver as documented, in which any call may fail at any time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmckpt.capture.cuda import errors
from slurmckpt.capture.cuda.driver import State
from slurmckpt.capture.cuda.errors import Busy, CudaError
from slurmckpt.capture.cuda.group import Aborted, Group, Stuck
from slurmckpt.errors import SlurmckptError

RANKS = [11, 12, 13]


class ModelDriver:
    """The driver's states as cuda.h documents them. gone: processes that are there no more.

    faults: (call, pid) to what happens at it: a code, `die` (the rank), `late` (done, and an error all the same).
    """

    def __init__(self, faults: dict[tuple[str, int], list[int | str]] | None = None) -> None:
        self.states = dict.fromkeys(RANKS, State.RUNNING)
        self.gone: set[int] = set()
        self.faults = faults or {}
        self.calls: list[tuple[str, int]] = []
        self.at: Callable[[str, int], None] = lambda call, pid: None
        self._lock = threading.Lock()

    def devices(self) -> list[str]:
        return []

    def state(self, pid: int) -> State | None:
        return None if pid in self.gone else self.states[pid]

    def lock(self, pid: int, timeout_ms: int) -> None:
        self._go("lock", pid, State.RUNNING, State.LOCKED)

    def checkpoint(self, pid: int) -> None:
        self._go("checkpoint", pid, State.LOCKED, State.CHECKPOINTED)

    def restore(self, pid: int, pairs: Sequence[tuple[str, str]]) -> None:
        self._go("restore", pid, State.CHECKPOINTED, State.LOCKED)

    def unlock(self, pid: int) -> None:
        self._go("unlock", pid, State.LOCKED, State.RUNNING)

    def _go(self, call: str, pid: int, before: State, after: State) -> None:
        self.at(call, pid)
        with self._lock:
            self.calls.append((call, pid))
            waiting = self.faults.get((call, pid), [])
            fault = waiting.pop(0) if waiting else 0
            if fault == "die":
                self.gone.add(pid)
            if pid in self.gone:
                raise CudaError(call, errors.NOT_INITIALIZED, pid)
            if isinstance(fault, int) and fault:
                raise CudaError(call, fault, pid)
            if self.states[pid] is not before:
                raise CudaError(call, errors.ILLEGAL_STATE, pid)
            self.states[pid] = after
            if fault == "late":
                raise CudaError(call, 304, pid)

    def all_run(self) -> bool:
        return all(state is State.RUNNING for pid, state in self.states.items() if pid not in self.gone)


def cycle(group: Group) -> None:
    group.lock(RANKS, 1.0)
    group.checkpoint(RANKS)
    group.resume(RANKS)


def test_a_whole_cycle() -> None:
    driver = ModelDriver()
    group = Group(driver)
    group.lock(RANKS, 1.0)
    assert set(driver.states.values()) == {State.LOCKED}
    group.checkpoint(RANKS)
    assert set(driver.states.values()) == {State.CHECKPOINTED}
    group.resume(RANKS)
    assert driver.all_run() and not group.held
    calls = [call for call, _ in driver.calls]
    # Every rank is done with one step before any begins with the next.
    assert calls == [call for call in ("lock", "checkpoint", "restore", "unlock") for _ in RANKS]


def test_each_step_is_taken_by_all_ranks_at_the_same_time() -> None:
    """A rank that is locked later may be waited for; and copies of all GPUs go on beside each other."""
    driver = ModelDriver()
    meeting = threading.Barrier(len(RANKS))

    def at(call: str, pid: int) -> None:
        meeting.wait(30)

    driver.at = at
    cycle(Group(driver))
    assert driver.all_run()


def test_inside_of_a_checkpoint_job_one_rank_is_copied_after_the_other() -> None:
    driver = ModelDriver()
    copying: set[int] = set()
    most = 0

    def at(call: str, pid: int) -> None:
        nonlocal most
        if call in ("checkpoint", "restore"):
            copying.add(pid)
            most = max(most, len(copying))
            time.sleep(0.01)
            copying.discard(pid)

    driver.at = at
    group = Group(driver)
    group.lock(RANKS, 1.0)
    group.checkpoint(RANKS, one_by_one=True)
    group.resume(RANKS, one_by_one=True)
    assert driver.all_run() and most == 1


def test_a_rank_that_does_not_come_to_rest_unlocks_all() -> None:
    driver = ModelDriver({("lock", 12): [errors.NOT_READY]})
    group = Group(driver)
    with pytest.raises(Busy, match="the GPU work of process 12 did not end within 1 s") as caught:
        group.lock(RANKS, 1.0)
    assert caught.value.pids == [12]
    assert driver.all_run() and not group.held


def test_what_somebody_else_has_locked_is_not_unlocked() -> None:
    driver = ModelDriver()
    driver.states[12] = State.LOCKED
    group = Group(driver)
    with pytest.raises(CudaError, match="process 12: it cannot be locked: it is locked or checkpointed already"):
        group.lock(RANKS, 1.0)
    assert driver.states == {11: State.RUNNING, 12: State.LOCKED, 13: State.RUNNING}
    assert not group.held


def test_a_rank_that_cannot_be_restored_is_named_and_the_others_run() -> None:
    driver = ModelDriver({("restore", 13): [errors.OUT_OF_MEMORY] * 9})
    group = Group(driver)
    group.lock(RANKS, 1.0)
    group.checkpoint(RANKS)
    with pytest.raises(Stuck, match=r"process 13: .* has not enough free memory") as caught:
        group.resume(RANKS)
    assert caught.value.pids == [13] and group.held == {13}
    assert driver.states == {11: State.RUNNING, 12: State.RUNNING, 13: State.CHECKPOINTED}


def test_ranks_that_cuda_lost_are_stuck() -> None:
    driver = ModelDriver()
    group = Group(driver)
    group.lock(RANKS, 1.0)
    driver.states[11] = State.FAILED
    with pytest.raises(Stuck):
        group.resume(RANKS)
    assert driver.states[12] is State.RUNNING and driver.states[13] is State.RUNNING


CALLS = ("lock", "checkpoint", "restore", "unlock")
FAULTS = st.sampled_from([errors.NOT_READY, 801, 401, 304, 2, 999, "die", "late"])


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.tuples(st.sampled_from(CALLS), st.sampled_from(RANKS)), st.lists(FAULTS, max_size=2)))
def test_no_rank_is_left_behind_whatever_fails(faults: dict[tuple[str, int], list[int | str]]) -> None:
    """Two faults in a row at any calls of any ranks, deaths among them: all that live run, or are named as stuck."""
    driver = ModelDriver(faults)
    group = Group(driver)
    stuck: set[int] = set()
    try:
        cycle(group)
    except Stuck as error:
        stuck = set(error.pids)
    except SlurmckptError:
        pass
    left = {pid for pid, state in driver.states.items() if state is not State.RUNNING and pid not in driver.gone}
    assert left <= stuck
    assert group.held <= stuck
    # Once the faults are over, all come back.
    driver.faults = {}
    group.release()
    assert driver.all_run() and not group.held


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(CALLS), st.sampled_from(RANKS))
def test_giving_up_in_any_call_releases_all(call: str, pid: int) -> None:
    """As when the coordinator has died: release() comes beside the operation, and once more after it."""
    driver = ModelDriver()
    group = Group(driver)
    driver.at = lambda now, at: group.abort() if (now, at) == (call, pid) else None
    with pytest.raises(Aborted):
        cycle(group)
        group.lock(RANKS, 1.0)  # what comes after an abort in the last step
    group.release()
    assert driver.all_run() and not group.held
