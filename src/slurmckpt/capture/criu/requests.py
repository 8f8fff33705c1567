"""What CRIU is asked for: to dump a pod, to restore one; and what becomes of its own log when it cannot."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurmckpt.capture import criu_rpc_pb2 as rpc
from slurmckpt.capture import tcpimages
from slurmckpt.capture.criu.installation import CriuDied, CriuError, CriuMoment, Installation
from slurmckpt.capture.criu.swrk import Target, Worker, converse, swrk
from slurmckpt.capture.diagnosis import explain_dump, explain_restore, is_moment

log = logging.getLogger(__name__)

_DUMP_LOG = "dump.log"
_RESTORE_LOG = "restore.log"
_LOG_LEVEL = 4
_LOG_TAIL = 256 * 1024


@dataclass(frozen=True)
class Limits:
    """timeout: seconds until CRIU gives up a dump. ghost_limit: bytes of the largest deleted file that it carries."""

    timeout: int
    ghost_limit: int


@dataclass
class DumpHooks:
    """What the caller does while the pod is frozen.

    starting: CRIU is about to stop the processes. frozen: all processes stopped, nothing dumped yet; returns the
    external keys of this pod. dumped: the image is written, the processes are still stopped. Whatever they raise aborts
    the dump, and the processes go on. names: what its processes are called in messages, by their pid in the pod.
    """

    starting: Callable[[], None]
    frozen: Callable[[], Awaitable[Sequence[str]]]
    dumped: Callable[[], Awaitable[None]]
    names: Mapping[int, str] = field(default_factory=dict)


async def _nothing() -> None:
    pass


@dataclass
class RestoreHooks:
    """What the caller does before the processes run.

    connected: all sockets exist, and send nothing yet (TCP_REPAIR); what it raises aborts the restore and ends them.
    restored: the processes exist and have not run yet. CRIU lets them run whatever the answer is (it ignores that of
    `pre-resume`, cr-restore.c): what raises there must have killed them before. names: what its processes are called in
    messages, by their pid in the pod.
    """

    restored: Callable[[], Awaitable[None]]
    inherit: Mapping[str, int] = field(default_factory=dict)
    connected: Callable[[], Awaitable[None]] = _nothing
    names: Mapping[int, str] = field(default_factory=dict)


def _options(images: Path, log: str, **more: Any) -> rpc.criu_opts:
    """What a dump and its restore have in common, and more."""
    return rpc.criu_opts(
        images_dir_fd=-1,
        images_dir=str(images),
        log_file=log,
        log_level=_LOG_LEVEL,
        tcp_established=True,
        network_lock=rpc.SKIP,
        manage_cgroups=False,
        file_locks=True,
        notify_scripts=True,
        **more,
    )


async def dump(
    installation: Installation, target: Target, leader: int, images: Path, limits: Limits, hooks: DumpHooks
) -> None:
    """Write the images of the tree under `leader` (its pid inside the pod) to `images`; the tree runs on afterwards.

    Raises CriuError with the reason, or what a hook raised. In both cases the processes run.
    """
    request = rpc.criu_req(
        type=rpc.DUMP,
        opts=_options(
            images,
            _DUMP_LOG,
            pid=leader,
            leave_running=True,
            link_remap=True,
            ghost_limit=limits.ghost_limit,
            timeout=limits.timeout,
        ),
    )

    async def notified(script: str) -> rpc.criu_req:
        answer = rpc.criu_req(type=rpc.NOTIFY, notify_success=True)
        if script == "pre-dump":
            hooks.starting()
        elif script == "query-ext-files":
            answer.opts.images_dir_fd = -1
            answer.opts.external.extend(await hooks.frozen())
        elif script == "post-dump":
            await hooks.dumped()
        return answer

    try:
        async with swrk(installation, target, {}) as worker:
            # CRIU's own timeout ends with the stopping of the tasks; the ranks must not stand still for ever after it.
            answer = await asyncio.wait_for(converse(worker.channel, request, notified), limits.timeout)
    except asyncio.TimeoutError as error:
        _keep(installation, images / _DUMP_LOG)
        reason = f"the dump did not end within {limits.timeout} s (capture.timeout)"
        raise CriuError(reason, _log(images / _DUMP_LOG)) from error
    if answer is None or not answer.success:
        _keep(installation, images / _DUMP_LOG)
        reason = _complaint(answer, worker)
        text = _log(images / _DUMP_LOG)
        kind = CriuDied if answer is None else CriuMoment if is_moment(text) else CriuError
        raise kind(explain_dump(text, hooks.names) or f"CRIU refused the dump: {reason}", text)


async def restore(installation: Installation, target: Target, images: Path, hooks: RestoreHooks) -> None:
    """Bring the tree of `images` back inside the pod and let it run.

    hooks.inherit maps CRIU keys (`pipe:[N]`, `file[M:I]`) to descriptors of this process. Raises CriuError or what a
    hook raised.
    """
    opts = _options(images, _RESTORE_LOG)
    # The image holds the IPC namespace as one that CRIU is not in; what it holds goes into that of pod init.
    opts.join_ns.add(ns="ipc", ns_file="1")
    for key, descriptor in hooks.inherit.items():
        opts.inherit_fd.add(key=key, fd=descriptor)

    try:
        await asyncio.to_thread(tcpimages.silence, images)
    except (OSError, tcpimages.ImageError) as error:
        raise CriuError(f"the images of the TCP connections cannot be prepared: {error}") from error

    all_done = False

    async def notified(script: str) -> rpc.criu_req:
        nonlocal all_done
        if script == "post-restore":
            await hooks.connected()
        elif script == "pre-resume":
            await hooks.restored()
            all_done = True
        return rpc.criu_req(type=rpc.NOTIFY, notify_success=True)

    async with swrk(installation, target, hooks.inherit, restores=True) as worker:
        answer = await converse(worker.channel, rpc.criu_req(type=rpc.RESTORE, opts=opts), notified)
    if answer is None and all_done:
        # It was killed when nothing was left to do but to let the processes go, and that the kernel has done.
        log.warning("CRIU ended without its last word; the processes are restored and run")
        return
    if answer is None or not answer.success:
        _keep(installation, images / _RESTORE_LOG)
        reason = _complaint(answer, worker)
        text = _log(images / _RESTORE_LOG)
        raise CriuError(explain_restore(text, hooks.names) or f"CRIU refused the restore: {reason}", text)


def _complaint(answer: rpc.criu_resp | None, worker: Worker) -> str:
    """CRIU's own words, or those of `enter` when CRIU was not even started, or was killed."""
    return ((answer.cr_errmsg.strip() if answer else "") or worker.said or "it ended without an answer")[:300]


def _log(path: Path) -> str:
    """The end of a CRIU log, or nothing."""
    try:
        with path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - _LOG_TAIL))
            return log.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _keep(installation: Installation, log: Path) -> None:
    if installation.failure_log is not None:
        with contextlib.suppress(OSError), log.open("rb") as source:
            # Only for root: it names files and commands of the job's user.
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(installation.failure_log, flags, 0o600), "wb") as copy:
                os.fchmod(copy.fileno(), 0o600)
                shutil.copyfileobj(source, copy)
