"""CRIU, driven by its RPC: one `criu swrk` for each dump or restore, inside the namespaces of the pod.

CRIU enters the pod, so it sees a plain process tree and no namespaces, and it is told where to write by path: it
resolves descriptors of its peer through the peer's pid, which means nothing in another PID namespace. Protocol:
criu.org/RPC.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurmckpt.capture import criu_rpc_pb2 as rpc
from slurmckpt.capture import tcpimages
from slurmckpt.capture.diagnosis import explain_dump, explain_restore
from slurmckpt.errors import SlurmckptError

log = logging.getLogger(__name__)

DUMP_LOG = "dump.log"
RESTORE_LOG = "restore.log"
_PATH = "/usr/local/sbin:/usr/sbin:/usr/local/bin:/usr/bin:/sbin:/bin"
_MAX_PACKET = 1 << 20
_LOG_LEVEL = 4
_LOG_TAIL = 256 * 1024
_MAX_SAID = 4096
_UNDO_SECONDS = 20.0
_BEAT_SECONDS = 2.0  # pod/guard.c gives up a coordinator that is silent ten times as long
_CAP_SYS_RESOURCE = 24


class CriuError(SlurmckptError):
    """CRIU could not do what it was asked for. The message is one sentence for a user. log: the end of CRIU's own."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


@dataclass(frozen=True)
class Installation:
    """The CRIU of this node. version: as text, e.g. `4.2.1`.

    failure_log: where CRIU's own log of the last failure is kept, for those who must know more than our one sentence.
    needs_real_id: root here lacks CAP_SYS_RESOURCE, and prlimit() on another user's process is then allowed only to a
    caller whose real uid and gid are the target's (prlimit(2), PERMISSIONS).
    """

    program: str
    version: str
    needs_real_id: bool
    failure_log: Path | None = None


@dataclass(frozen=True)
class Target:
    """The pod that CRIU enters. pod_init: pid on this node. cgroups: files to join, so that a restore is born there.

    uid, gid, groups: of the job's user.
    """

    enter: Path
    pod_init: int
    uid: int
    gid: int
    cgroups: Sequence[Path] = ()
    groups: Sequence[int] = ()


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


def find(program: str, real_id: str, failure_log: Path | None = None) -> Installation:
    """The CRIU to use. program: a path or a name; real_id: `auto` or `never` (slurmckpt.toml).

    Raises CriuError when there is none or it does not tell its version.
    """
    path = shutil.which(program, path=_PATH)
    if path is None:
        raise CriuError(f"CRIU is not installed ({program} was looked up in {_PATH})")
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CriuError(f"{path} cannot be executed: {error}") from error
    version = re.search(r"Version:\s*v?(\S+)", answer.stdout)
    if version is None:
        raise CriuError(f"{path} --version does not tell a version: {(answer.stdout + answer.stderr).strip()[:200]!r}")
    return Installation(path, version[1], real_id == "auto" and not _has_sys_resource(), failure_log)


async def warm_up(installation: Installation) -> None:
    """Let CRIU examine the kernel once, as root: those with another real uid need the /run/criu.kdat that it leaves."""
    process = await asyncio.create_subprocess_exec(
        installation.program, "check", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    await process.wait()


async def dump(
    installation: Installation, target: Target, leader: int, images: Path, limits: Limits, hooks: DumpHooks
) -> None:
    """Write the images of the tree under `leader` (its pid inside the pod) to `images`; the tree runs on afterwards.

    Raises CriuError with the reason, or what a hook raised. In both cases the processes run.
    """
    request = rpc.criu_req(
        type=rpc.DUMP,
        opts=rpc.criu_opts(
            images_dir_fd=-1,
            images_dir=str(images),
            log_file=DUMP_LOG,
            log_level=_LOG_LEVEL,
            pid=leader,
            leave_running=True,
            tcp_established=True,
            network_lock=rpc.SKIP,
            manage_cgroups=False,
            file_locks=True,
            link_remap=True,
            ghost_limit=limits.ghost_limit,
            timeout=limits.timeout,
            notify_scripts=True,
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
        async with _swrk(installation, target, {}) as worker:
            # CRIU's own timeout ends with the stopping of the tasks; the ranks must not stand still for ever after it.
            answer = await asyncio.wait_for(_converse(worker.channel, request, notified), limits.timeout)
    except asyncio.TimeoutError as error:
        _keep(installation, images / DUMP_LOG)
        reason = f"the dump did not end within {limits.timeout} s (capture.timeout)"
        raise CriuError(reason, _log(images / DUMP_LOG)) from error
    if answer is None or not answer.success:
        _keep(installation, images / DUMP_LOG)
        reason = _complaint(answer, worker)
        text = _log(images / DUMP_LOG)
        raise CriuError(explain_dump(text, hooks.names) or f"CRIU refused the dump: {reason}", text)


async def restore(installation: Installation, target: Target, images: Path, hooks: RestoreHooks) -> None:
    """Bring the tree of `images` back inside the pod and let it run.

    hooks.inherit maps CRIU keys (`pipe:[N]`, `file[M:I]`) to descriptors of this process. Raises CriuError or what a
    hook raised.
    """
    opts = rpc.criu_opts(
        images_dir_fd=-1,
        images_dir=str(images),
        log_file=RESTORE_LOG,
        log_level=_LOG_LEVEL,
        tcp_established=True,
        network_lock=rpc.SKIP,
        manage_cgroups=False,
        file_locks=True,
        notify_scripts=True,
    )
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

    async with _swrk(installation, target, hooks.inherit, restores=True) as worker:
        answer = await _converse(worker.channel, rpc.criu_req(type=rpc.RESTORE, opts=opts), notified)
    if answer is None and all_done:
        # It was killed when nothing was left to do but to let the processes go, and that the kernel has done.
        log.warning("CRIU ended without its last word; the processes are restored and run")
        return
    if answer is None or not answer.success:
        _keep(installation, images / RESTORE_LOG)
        reason = _complaint(answer, worker)
        text = _log(images / RESTORE_LOG)
        raise CriuError(explain_restore(text, hooks.names) or f"CRIU refused the restore: {reason}", text)


@dataclass
class _Worker:
    """One `criu swrk`. channel: connected to it. said: what it and `enter` wrote to stderr, once they have ended."""

    channel: socket.socket
    said: str = ""


def _complaint(answer: rpc.criu_resp | None, worker: _Worker) -> str:
    """CRIU's own words, or those of `enter` when CRIU was not even started, or was killed."""
    return ((answer.cr_errmsg.strip() if answer else "") or worker.said or "it ended without an answer")[:300]


@contextlib.asynccontextmanager
async def _swrk(
    installation: Installation, target: Target, inherit: Mapping[str, int], restores: bool = False
) -> AsyncIterator[_Worker]:
    """A connected `criu swrk` in the pod. It ends when its socket is closed, and a dump under way is undone then.

    `enter` sees to it that it ends, too, when this process dies, stops or hangs (pod/guard.h).
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    beat, heart = os.pipe()
    os.set_blocking(heart, False)
    # From outside CRIU takes the IPC namespace for the tree's own, and dumps what is in it.
    command = [str(target.enter), "--pid", str(target.pod_init), "--keep-ipc"]
    for path in target.cgroups:
        command += ["--cgroup", str(path)]
    if installation.needs_real_id:
        command += ["--real-id", f"{target.uid}:{target.gid}"]
    command += ["--guard", f"{theirs.fileno()}:{beat}", *(["--restores"] if restores else [])]
    command += ["--", installation.program, "swrk", str(theirs.fileno())]
    # An empty directory of the installation: CRIU's own CUDA plugin must not interfere.
    environment = {"PATH": _PATH, "CRIU_LIBS_DIR": str(target.enter.parent / "criu-plugins")}
    try:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno(), beat, *sorted(set(inherit.values()))],
                env=environment,
            )
        except OSError as error:
            raise CriuError(f"{command[0]} cannot be executed: {error.strerror}") from error
        theirs.close()
        worker = _Worker(ours)
        assert process.stderr is not None
        listening = asyncio.create_task(_last_words(process.stderr))
        beating = asyncio.create_task(_beat(heart))
        try:
            yield worker
        finally:
            ours.close()
            await _end(process)
            beating.cancel()
            worker.said = await listening
    finally:
        ours.close()
        theirs.close()
        os.close(beat)
        os.close(heart)


async def _beat(heart: int) -> None:
    """Show `enter` that the event loop turns."""
    while True:
        # A full pipe has enough of it; one without a reader needs none.
        with contextlib.suppress(OSError):
            os.write(heart, b".")
        await asyncio.sleep(_BEAT_SECONDS)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Wait until a CRIU whose socket is closed has undone what it did; end one that hangs, so that its ranks run."""
    for urge in (signal.SIGTERM, signal.SIGKILL):
        try:
            await asyncio.wait_for(process.wait(), _UNDO_SECONDS)
            return
        except asyncio.TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                # At SIGTERM `enter` ends CRIU, by force if need be, and mends what it leaves. It may have been stopped.
                process.send_signal(urge)
                process.send_signal(signal.SIGCONT)
    try:
        await asyncio.wait_for(process.wait(), _UNDO_SECONDS)
    except asyncio.TimeoutError:
        log.error("enter (process %d) does not end", process.pid)


async def _last_words(stream: asyncio.StreamReader) -> str:
    """The end of what comes, read as it comes: a full pipe would stop the writer."""
    said = b""
    while chunk := await stream.read(_MAX_SAID):
        said = (said + chunk)[-_MAX_SAID:]
    return said.decode("utf-8", "replace").strip()


async def _converse(
    channel: socket.socket, request: rpc.criu_req, notified: Callable[[str], Awaitable[rpc.criu_req]]
) -> rpc.criu_resp | None:
    """Send the request, answer notifications, give the final response; None when CRIU ends without one.

    A failing hook is answered with "no", and its error is raised at the end.
    """
    loop = asyncio.get_running_loop()
    failure: BaseException | None = None
    question = request
    while True:
        try:
            await loop.sock_sendall(channel, question.SerializeToString())
            packet = await loop.sock_recv(channel, _MAX_PACKET)
        except ConnectionError:
            packet = b""
        response = rpc.criu_resp.FromString(packet) if packet else None
        if response is None or response.type != rpc.NOTIFY:
            if failure is not None:
                raise failure
            return response
        try:
            question = await notified(response.notify.script)
        except (Exception, asyncio.CancelledError) as error:
            failure = error
            question = rpc.criu_req(type=rpc.NOTIFY, notify_success=False)


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


def _has_sys_resource() -> bool:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_SYS_RESOURCE & 1)
    return True
