"""The CUDA agent (agent.py), from asyncio: started when it is first needed, and replaced when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from slurmckpt.capture.cuda.errors import Busy, Unavailable
from slurmckpt.capture.cuda.group import Stuck
from slurmckpt.capture.cuda.mapping import Pairs
from slurmckpt.errors import SlurmckptError

log = logging.getLogger(__name__)

_BEAT_SECONDS = 2.0
# cuInit on a node with eight GPUs and no persistence mode takes seconds.
_START_SECONDS = 120.0
# What a call may take longer than its own limit.
_GRACE_SECONDS = 30.0
# A release tries each rank for 30 s (group.py).
_RELEASE_SECONDS = 120.0
# How many agents may die of the same release before it is given up.
_AGENTS = 3
# The pids of a large pod are one line.
_MAX_LINE = 1 << 20
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")


class Lost(SlurmckptError):
    """The agent died, or did not answer in time. What it held was released by another one."""


class CudaClient:
    """The CUDA driver of this node, for one coordinator. environment: for the agent, beside what it gets anyway."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._beating: asyncio.Task[None] | None = None
        self._numbers = itertools.count(1)
        self._one_at_a_time = asyncio.Lock()
        self._held: set[int] = set()

    async def devices(self) -> list[str]:
        """The UUIDs of the node's GPUs, in PCI order. Raises Unavailable where there is no driver that can do it."""
        found: list[str] = await self._ask("devices", [], _START_SECONDS)
        return found

    async def find(self, pids: Sequence[int]) -> list[int]:
        """Those of these processes that have CUDA state."""
        found: list[int] = await self._ask("find", pids, _START_SECONDS)
        return found

    async def used(self, pids: Sequence[int]) -> int | None:
        """Bytes of GPU memory of these processes; None when nobody knows."""
        found: int | None = await self._ask("used", pids, _START_SECONDS)
        return found

    async def lock(self, pids: Sequence[int], seconds: float) -> None:
        """Lock all, or none: raises Busy when some are not at rest within `seconds`, or another SlurmckptError."""
        await self._ask("lock", pids, seconds + _GRACE_SECONDS, seconds=float(seconds))

    async def checkpoint(self, pids: Sequence[int], seconds: float, one_by_one: bool = False) -> None:
        """All locked ones to host memory, within `seconds`. When it raises, all run on."""
        await self._ask("checkpoint", pids, seconds, one_by_one=one_by_one)

    async def restore(self, pids: Sequence[int], seconds: float, pairs: Pairs, one_by_one: bool = False) -> None:
        """All checkpointed ones back to their GPUs within `seconds`; they stay locked until resume()."""
        await self._ask("restore", pids, seconds, pairs=pairs, one_by_one=one_by_one)

    async def resume(
        self, pids: Sequence[int], seconds: float, pairs: Pairs | None = None, one_by_one: bool = False
    ) -> None:
        """All back to their GPUs, and running, within `seconds`. Raises Stuck: which ones are not; the others run."""
        await self._ask("resume", pids, seconds, pairs=pairs or [], one_by_one=one_by_one)

    async def state(self, pid: int, seconds: float = _START_SECONDS) -> str | None:
        """RUNNING, LOCKED, CHECKPOINTED or FAILED; None for a process without CUDA state."""
        found: str | None = await self._ask("state", [pid], seconds)
        return found

    async def close(self) -> None:
        """Let the agent release what it may still hold, and end."""
        async with self._one_at_a_time:
            process = self._process
            self._let_go()
            if process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    await asyncio.to_thread(process.wait, _RELEASE_SECONDS)

    async def _ask(self, verb: str, pids: Sequence[int], limit: float, **arguments: object) -> Any:
        """One request. Whatever becomes of the caller, its answer is waited for: an operation is not left half-way."""
        return await asyncio.shield(asyncio.ensure_future(self._in_turn(verb, list(pids), limit, arguments)))

    async def _in_turn(self, verb: str, pids: list[int], limit: float, arguments: dict[str, object]) -> Any:
        async with self._one_at_a_time:
            if not self._held and self._process is not None and self._process.poll() is not None:
                log.warning("the keeper of the CUDA agent has died: both are replaced")
                self._kill()
            if verb in ("lock", "checkpoint", "restore", "resume"):
                self._held |= set(pids)
            try:
                result = await self._exchange({"verb": verb, "pids": pids, **arguments}, limit)
            except Lost as error:
                patience = arguments.get("seconds", 0.0)
                await self._replace(error, patience if isinstance(patience, float) else 0.0)
                raise
            except Stuck:
                raise
            except SlurmckptError:
                self._held -= set(pids)
                raise
            if verb == "resume":
                self._held -= set(pids)
            return result

    async def _replace(self, error: Lost, lock_seconds: float) -> None:
        """Another agent takes over what the dead one held. Raises Stuck or Lost."""
        if not self._held:
            return
        log.warning("%s; another one releases %d ranks", error, len(self._held))
        await self._release()
        if lock_seconds:
            # A lock that was under way may still succeed in the rank, with nobody there to hear of it.
            await asyncio.sleep(lock_seconds)
            await self._release()
        self._held.clear()

    async def _release(self) -> None:
        for left in reversed(range(_AGENTS)):
            try:
                await self._exchange({"verb": "release", "pids": sorted(self._held)}, _RELEASE_SECONDS)
                return
            except Lost:
                if not left:
                    raise

    async def _exchange(self, request: dict[str, object], seconds: float) -> Any:
        try:
            answer = await asyncio.wait_for(self._converse(request), seconds + (0 if self._process else _START_SECONDS))
        except asyncio.TimeoutError as error:
            self._kill()
            raise Lost(f"the CUDA driver did not answer within {seconds:g} s ({request['verb']})") from error
        except (OSError, EOFError, ValueError) as error:
            self._kill()
            raise Lost(f"the process that talks to the CUDA driver has died ({request['verb']})") from error
        if "error" in answer:
            raise _error(answer["error"])
        return answer["result"]

    async def _converse(self, request: dict[str, object]) -> dict[str, Any]:
        if self._process is None:
            await self._start()
        assert self._reader is not None and self._writer is not None
        number = next(self._numbers)
        self._writer.write(json.dumps({"id": number, **request}).encode() + b"\n")
        await self._writer.drain()
        while True:
            line = await self._reader.readline()
            if not line.endswith(b"\n"):
                raise EOFError
            answer: dict[str, Any] = json.loads(line)
            if answer["id"] == number:
                return answer

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
            # Not one of asyncio's, which are killed when their event loop is closed: it must outlive this process.
            self._process = await asyncio.to_thread(
                subprocess.Popen,
                [sys.executable, "-m", "slurmckpt.capture.cuda.agent", str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=environment | self._environment,
                cwd="/",
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._reader, self._writer = await asyncio.open_connection(sock=ours, limit=_MAX_LINE)
        self._beating = asyncio.create_task(self._beat(self._writer))

    async def _beat(self, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while True:
                await asyncio.sleep(_BEAT_SECONDS)
                writer.write(b'{"verb": "beat"}\n')
                await writer.drain()

    def _let_go(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
        if self._writer is not None:
            self._writer.close()
        self._process = self._reader = self._writer = self._beating = None

    def _kill(self) -> None:
        process = self._process
        self._let_go()
        if process is not None:
            # With its keeper: what they held is this process's to see to.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            # Nobody waits for it here, but it must be waited for.
            asyncio.get_running_loop().run_in_executor(None, process.wait)


def _error(error: dict[str, Any]) -> SlurmckptError:
    kind, text, pids = error["kind"], str(error["text"]), [int(pid) for pid in error["pids"]]
    if kind == "unavailable":
        return Unavailable(text)
    if kind == "busy":
        return Busy(text, pids)
    return Stuck(text, pids) if kind == "stuck" else SlurmckptError(text)
