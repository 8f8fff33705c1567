"""Whether this node can capture CUDA state: a small program of ours is captured, and compared (gpu/probe.c).

That tells more than any table of driver versions: what breaks differs between builds of one driver.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slurmckpt.capture.cuda import find
from slurmckpt.capture.cuda.client import CudaClient
from slurmckpt.capture.cuda.errors import Unavailable
from slurmckpt.errors import SlurmckptError

_PATIENCE = 120.0
_LOCK_SECONDS = 10.0


@dataclass
class Answer:
    """failure: why not, empty when it can. conclusive: it was tried; otherwise the GPU was not free, or something is
    missing. gpu: the name of the GPU it was tried on. seconds: by call.
    """

    failure: str = ""
    conclusive: bool = True
    gpu: str = ""
    size: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


class _NotTried(SlurmckptError):
    """The probe did not come so far that anything of it could be captured."""


async def run(client: CudaClient, probe: Path, size: int, environment: Mapping[str, str] | None = None) -> Answer:
    """Lock, checkpoint, restore, unlock and compare the probe with `size` bytes on the first GPU. Never raises for that
    it does not work.
    """
    answer = Answer(size=size)
    given = {"PATH": os.defpath, "CUDA_CACHE_DISABLE": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", **(environment or {})}
    try:
        process = await asyncio.create_subprocess_exec(
            *(str(probe), str(size)), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=given
        )
    except OSError as error:
        answer.failure, answer.conclusive = f"{probe} cannot be executed: {error.strerror}", False
        return answer
    try:
        await _cycle(client, process, answer)
    except (_NotTried, Unavailable) as error:
        answer.failure, answer.conclusive = str(error), False
    except SlurmckptError as error:
        answer.failure = str(error)
    except asyncio.TimeoutError:
        answer.failure = f"the probe did not answer within {_PATIENCE:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    return answer


async def _cycle(client: CudaClient, process: asyncio.subprocess.Process, answer: Answer) -> None:
    hello = (await _line(process)).split(" ", 2)
    if hello[0] != "ready":
        raise _NotTried(f"the probe could not use the GPU: {' '.join(hello) or 'it ended'}")
    answer.gpu = hello[-1]
    await _tell(process, "run")
    before = await _tell(process, "sum")
    pid = process.pid
    steps: tuple[tuple[str, Callable[[], Awaitable[None]]], ...] = (
        ("lock", lambda: client.lock([pid], _LOCK_SECONDS)),
        ("checkpoint", lambda: client.checkpoint([pid], _PATIENCE)),
        ("restore", lambda: client.restore([pid], _PATIENCE, [])),
        ("unlock", lambda: client.resume([pid], _PATIENCE)),
    )
    for name, step in steps:
        began = time.monotonic()
        await step()
        answer.seconds[name] = time.monotonic() - began
        if name == "checkpoint" and await asyncio.to_thread(find.holds_device, pid):
            raise SlurmckptError("the driver says that the state is saved, and the probe still has a GPU device open")
    if await _tell(process, "sum") != before:
        raise SlurmckptError("the GPU memory is not the same after the restore")
    await _tell(process, "run")


async def _tell(process: asyncio.subprocess.Process, word: str) -> str:
    assert process.stdin is not None
    process.stdin.write(f"{word}\n".encode())
    answer = await _line(process)
    if not answer or answer.startswith("error"):
        raise SlurmckptError(f"the probe failed on the GPU: {answer or 'it ended'}")
    return answer


async def _line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), _PATIENCE)).decode("utf-8", "replace").strip()
