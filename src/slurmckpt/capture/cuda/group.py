"""All ranks of a pod at once: lock, checkpoint, restore, unlock, and back from wherever that ends.

Every operation that fails takes back what it did. Ranks are locked and unlocked together: a rank that waits for a peer
in a kernel cannot be locked while the peer is, so locking one after the other would hang.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from slurmckpt.capture.cuda import errors
from slurmckpt.capture.cuda.driver import Driver, State
from slurmckpt.capture.cuda.errors import CudaError
from slurmckpt.errors import SlurmckptError

log = logging.getLogger(__name__)

_RELEASE_SECONDS = 30.0
_LOOK_SECONDS = 0.05
# A state that is just changing: a call of somebody who died in it is still under way.
_IN_BETWEEN = frozenset({errors.ILLEGAL_STATE, errors.NOT_READY})


class Stuck(SlurmckptError):
    """Ranks that could not be brought back to RUNNING: they have to be killed. pids: on this node."""

    def __init__(self, text: str, pids: list[int]) -> None:
        super().__init__(text)
        self.pids = pids


class Aborted(SlurmckptError):
    """abort() was called: nothing more is begun."""


class Group:
    """The ranks of one pod or several. held: those that may be other than RUNNING because of us.

    One operation at a time, but abort() and release() may be called beside one.
    """

    def __init__(self, driver: Driver, note: Callable[[set[int]], None] = lambda held: None) -> None:
        """note: told of `held` before each call that adds to it, and when ranks are held no more."""
        self._driver = driver
        self._note = note
        self.held: set[int] = set()
        self._aborted = threading.Event()

    def abort(self) -> None:
        """Let an operation under way go no further than the calls that it has made."""
        self._aborted.set()

    def with_cuda(self, pids: Iterable[int]) -> list[int]:
        """Those that have CUDA state. Raises CudaError."""
        return [pid for pid in pids if self._driver.state(pid) is not None]

    def lock(self, pids: Sequence[int], seconds: float) -> None:
        """Lock all within `seconds`, or none. Raises Busy or CudaError."""
        self._begin(pids)
        timeout_ms = max(1, int(seconds * 1000))
        failures = self._each(pids, lambda pid: self._driver.lock(pid, timeout_ms))
        if failures:
            # What somebody else had locked before is theirs to unlock.
            theirs = {pid for pid, error in failures.items() if error.code == errors.ILLEGAL_STATE}
            self.held -= theirs
            self.release([pid for pid in pids if pid not in theirs])
            other = [error for error in failures.values() if not _is_busy(error)]
            raise other[0] if other else errors.busy(sorted(failures), seconds)

    def checkpoint(self, pids: Sequence[int], one_by_one: bool = False) -> None:
        """Take the GPU state of all locked ranks into their memory, or leave none of them locked. Raises CudaError.

        one_by_one: as the driver wants it inside of a checkpoint job (610); otherwise all GPUs copy at the same time.
        """
        self._begin(pids)
        failures = self._each(pids, self._driver.checkpoint, 1 if one_by_one else len(pids))
        if failures:
            self.release(pids)
            raise next(iter(failures.values()))

    def restore(self, pids: Sequence[int], pairs: Sequence[tuple[str, str]] = (), one_by_one: bool = False) -> None:
        """Put GPU state back, of ranks that CRIU has brought back; they stay locked. Raises CudaError: they may be
        anything then, and are to be ended.
        """
        self._begin(pids)
        failures = self._each(pids, lambda pid: self._driver.restore(pid, pairs), 1 if one_by_one else len(pids))
        if failures:
            self.held -= set(pids)
            raise next(iter(failures.values()))

    def resume(self, pids: Sequence[int], pairs: Sequence[tuple[str, str]] = (), one_by_one: bool = False) -> None:
        """Put GPU state back, then let all run. pairs: as Driver.restore() takes them.

        A rank without CUDA state, or gone, is none of ours any more. Raises Stuck: the other ranks run.
        """
        self._begin(pids)
        waiting = [pid for pid in pids if self._state(pid) is State.CHECKPOINTED]
        # What fails here is tried once more by release(), which says why it failed.
        self._each(waiting, lambda pid: self._driver.restore(pid, pairs), 1 if one_by_one else len(waiting))
        self.release(pids, pairs)

    def release(self, pids: Iterable[int] | None = None, pairs: Sequence[tuple[str, str]] = ()) -> None:
        """Bring ranks back to RUNNING from whatever state they are in; all held ones when none are given.

        Raises Stuck: those that stay behind are still held.
        """
        reasons: dict[int, str] = {}
        chosen = sorted(self.held if pids is None else pids)
        failures = self._each(chosen, lambda pid: self._free(pid, pairs), heeding=False)
        for pid in chosen:
            if pid in failures:
                reasons[pid] = str(failures[pid])
            else:
                self.held.discard(pid)
        self._note(self.held)
        if reasons:
            log.error("ranks are stuck: %s", "; ".join(reasons.values()))
            raise Stuck("; ".join(reasons.values()), sorted(reasons))

    def _begin(self, pids: Iterable[int]) -> None:
        if self._aborted.is_set():
            raise Aborted("given up")
        # Before the first call: whatever becomes of it, these are to be looked after.
        self.held |= set(pids)
        self._note(self.held)

    def _free(self, pid: int, pairs: Sequence[tuple[str, str]]) -> None:
        """One rank back to RUNNING. Raises CudaError."""
        deadline = time.monotonic() + _RELEASE_SECONDS
        tried_again = False
        while True:
            try:
                state = self._driver.state(pid)
                if state is None or state is State.RUNNING:
                    return
                if state is State.LOCKED:
                    self._driver.unlock(pid)
                elif state is State.CHECKPOINTED:
                    self._driver.restore(pid, pairs)
                else:
                    raise CudaError("restore", errors.FAILED_STATE, pid)
            except CudaError as error:
                if error.code in _IN_BETWEEN and time.monotonic() < deadline:
                    time.sleep(_LOOK_SECONDS)
                elif error.code in _IN_BETWEEN or tried_again:
                    raise
                else:
                    tried_again = True

    def _state(self, pid: int) -> State | None:
        try:
            return self._driver.state(pid)
        except CudaError:
            return None

    def _each(
        self, pids: Sequence[int], action: Callable[[int], None], at_once: int | None = None, heeding: bool = True
    ) -> dict[int, CudaError]:
        """Do it to all at once; gives what failed. heeding: whether abort() counts."""
        failures: dict[int, CudaError] = {}

        def one(pid: int) -> None:
            if heeding and self._aborted.is_set():
                return
            try:
                action(pid)
            except CudaError as error:
                failures[pid] = error

        if pids:
            with ThreadPoolExecutor(max_workers=at_once or len(pids), thread_name_prefix="cuda") as pool:
                for result in [pool.submit(one, pid) for pid in pids]:
                    result.result()
        if heeding and self._aborted.is_set():
            raise Aborted("given up")
        return failures


def _is_busy(error: CudaError) -> bool:
    return error.call == "lock" and error.code == errors.NOT_READY
