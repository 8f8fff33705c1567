"""The process that calls the CUDA driver for a coordinator: `python -m slurmckpt.capture.cuda.agent FD PID`.

A process of its own, for three reasons. It is initialised once (cuInit takes seconds on a large node) and holds what
the driver opens, so the coordinator does not. A call that hangs in the driver hangs here. And it is the watchdog of the
ranks: when the coordinator has died, or its event loop is silent for 20 s, it brings every rank back that is locked or
checkpointed, and ends. When this process dies, the coordinator starts another one that does the same.

FD is a stream socket. Requests and answers are JSON, one a line: {"id": 1, "verb": "lock", "pids": [...], ...} and
{"id": 1, "result": ...} or {"id": 1, "error": {"kind": ..., "text": ..., "pids": [...]}}. A line {"verb": "beat"} shows
that the coordinator lives. PID: of the coordinator, for the case that both die (keeper.py).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from slurmckpt.capture.cuda.driver import Bindings, Driver
from slurmckpt.capture.cuda.errors import Busy, CudaError, Unavailable
from slurmckpt.capture.cuda.group import Group, Stuck
from slurmckpt.capture.cuda.keeper import Held, keep
from slurmckpt.capture.cuda.usage import used_bytes
from slurmckpt.errors import SlurmckptError

log = logging.getLogger(__name__)

# The coordinator beats every 2 s (client.py); pod/guard.h gives up a silent one after the same time.
SILENCE_SECONDS = 20.0
# How long an operation under way may take to end, once nobody waits for it any more.
_LAST_SECONDS = 600.0
_MAX_LINE = 1 << 20


class Agent:
    """Serves one coordinator. load: gives the driver, raises Unavailable. note: told which ranks are held."""

    def __init__(
        self,
        channel: socket.socket,
        load: Callable[[], Driver] = Bindings,
        note: Callable[[set[int]], None] = lambda held: None,
    ) -> None:
        self._channel = channel
        self._note = note
        self._load = load
        self._driver: Driver | None = None
        self._group: Group | None = None
        self._busy: threading.Thread | None = None

    def run(self) -> None:
        """Until the coordinator is gone, and everything is released."""
        try:
            for line in self._lines():
                request = json.loads(line)
                if request["verb"] != "beat":
                    # One at a time: the coordinator waits for the answer before it asks again.
                    self._busy = threading.Thread(target=self._answer, args=(request,), daemon=True)
                    self._busy.start()
        finally:
            self._end()

    def _lines(self) -> Any:
        """The lines that come, until the end or until nothing comes any more."""
        pending = b""
        while len(pending) < _MAX_LINE:
            ready, _, _ = select.select([self._channel], [], [], SILENCE_SECONDS)
            try:
                chunk = self._channel.recv(1 << 16) if ready else b""
            except OSError:
                chunk = b""
            if not chunk:
                if not ready:
                    log.warning("the coordinator is silent: GPU ranks are released")
                return
            *lines, pending = (pending + chunk).split(b"\n")
            yield from lines

    def _end(self) -> None:
        group = self._group
        if group is None:
            return
        group.abort()
        # What is released is held no more, but a lock under way may succeed after that.
        held = set(group.held)
        # At once, as the call under way may hang for ever; and again after it, as it may have done its work.
        for wait in (True, False):
            with contextlib.suppress(SlurmckptError):
                group.release(held)
            if wait and self._busy is not None:
                self._busy.join(_LAST_SECONDS)

    def _answer(self, request: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"id": request.get("id")}
        try:
            answer["result"] = self._do(request)
        except Exception as error:  # whatever it is, the coordinator waits for an answer
            if not isinstance(error, SlurmckptError):
                log.exception("CUDA agent")
            answer["error"] = {"kind": _kind(error), "text": str(error), "pids": list(getattr(error, "pids", []))}
        with contextlib.suppress(OSError):
            self._channel.sendall(json.dumps(answer).encode() + b"\n")

    def _do(self, request: dict[str, Any]) -> object:
        if self._driver is None:
            self._driver = self._load()
            self._group = Group(self._driver, self._note)
        group = self._group
        assert group is not None
        verb, pids = request["verb"], [int(pid) for pid in request.get("pids", [])]
        pairs: Sequence[tuple[str, str]] = [(old, new) for old, new in request.get("pairs", [])]
        one_by_one = bool(request.get("one_by_one", False))
        if verb == "devices":
            return self._driver.devices()
        if verb == "find":
            return group.with_cuda(pids)
        if verb == "used":
            return used_bytes(pids)
        if verb == "lock":
            group.lock(pids, float(request["seconds"]))
        elif verb == "checkpoint":
            group.checkpoint(pids, one_by_one)
        elif verb == "restore":
            group.restore(pids, pairs, one_by_one)
        elif verb == "resume":
            group.resume(pids, pairs, one_by_one)
        elif verb == "release":
            group.release(pids, pairs)
        elif verb == "state":
            found = self._driver.state(pids[0])
            return None if found is None else found.name
        else:
            raise SlurmckptError(f"the CUDA agent does not know {verb!r}")
        return None


def _kind(error: Exception) -> str:
    for kind, name in ((Unavailable, "unavailable"), (Busy, "busy"), (Stuck, "stuck"), (CudaError, "cuda")):
        if isinstance(error, kind):
            return name
    return "other"


def main() -> None:
    """Serve the coordinator on the other end of the socket that the first argument names; the second one is its pid."""
    # Only the end of the coordinator ends this process: a stop of the job's processes must not leave ranks locked.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    channel = socket.socket(fileno=int(sys.argv[1]))

    def serve(held: Held) -> None:
        Agent(channel, note=held.write).run()

    def release(pids: list[int]) -> None:
        Group(Bindings()).release(pids)

    keep(int(sys.argv[2]), channel, serve, release)


if __name__ == "__main__":
    main()
