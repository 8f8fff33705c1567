"""The prolog of a job that asked for checkpoints: make the job's directory and sockets, start its coordinator, return.

The sockets listen before this returns, so a task that starts at once waits for its coordinator instead of missing it.
The heavy modules are imported by the coordinator only.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import socket
import sys

from slurmckpt import config, faults, logs
from slurmckpt.config import Settings
from slurmckpt.coordinator import pointer, shm, sockets, spec
from slurmckpt.coordinator.proc import PID_FILE, note
from slurmckpt.coordinator.spec import JobSpec
from slurmckpt.coordinator.waitingprolog import WaitingProlog
from slurmckpt.errors import ConfigError, SlurmckptError
from slurmckpt.hooks import epilog

log = logging.getLogger(__name__)

# For the lease. hand-over gives the whole prolog 7 s.
_PATIENCE_SECONDS = 4.0


def main() -> int:
    """Always 0: a prolog that fails drains its node."""
    settings, declined = _settings()
    logs.start(settings.log.path, settings.log.level, "prolog")
    try:
        _start(settings, declined)
    except (SlurmckptError, OSError) as error:
        log.error("job %s: no coordinator: %s", os.environ.get("SLURM_JOB_ID", "?"), error)
    except Exception:
        log.exception("job %s: no coordinator", os.environ.get("SLURM_JOB_ID", "?"))
    return 0


def _settings() -> tuple[Settings, str]:
    """The site's settings; or the defaults, and the reason why every job is declined."""
    try:
        return config.load(), ""
    except ConfigError as error:
        return Settings(), str(error)


def _start(settings: Settings, declined: str) -> None:
    faults.at("prolog.begin")
    job = spec.from_environment(os.environ)
    if job.interval(settings).kind == "off" and not declined:
        return
    directory = settings.paths.run / str(job.job.job_id)
    if directory.exists():
        log.warning("job %d: %s is left from an earlier run of it; it is removed", job.job.job_id, directory)
        epilog.clean(settings, job.job.job_id)
    settings.paths.run.mkdir(mode=0o755, parents=True, exist_ok=True)
    directory.mkdir(mode=0o711)
    pointer.leave(directory)
    spec.save(job, directory / "spec.json")
    if not declined:
        try:
            # Here, not in the coordinator: the tasks' mount namespace may be made before the coordinator gets to it.
            shm.mount(directory / "shm")
        except SlurmckptError as error:
            declined = str(error)
    faults.at("prolog.sockets")
    task_socket, control_socket = sockets.bind(directory)
    faults.at("prolog.detach")
    _detach(job, settings, declined, task_socket, control_socket)


def _detach(
    job: JobSpec, settings: Settings, declined: str, task_socket: socket.socket, control_socket: socket.socket
) -> None:
    """Go on as the coordinator in a process of its own session; the prolog's process returns.

    Twice forked, so that it is no child of slurmd's; descriptors that the prolog inherited are given up, or slurmd
    would wait for their end.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    waiting = WaitingProlog() if job.restart_count else None
    if (child := os.fork()) != 0:
        os.waitpid(child, 0)
        if waiting is not None:
            waiting.wait(_PATIENCE_SECONDS)
        return
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    status = 1
    try:
        # Files that Python still holds are closed while their numbers are theirs, and not when others have them.
        logs.stop()
        gc.collect()
        kept = {task_socket.fileno(), control_socket.fileno()}
        _forget_the_prolog(kept if waiting is None else kept | {waiting.writer})
        logs.start(settings.log.path, settings.log.level, f"coordinator job={job.job.job_id}")
        # Before anything that could hang, for an epilog that gets no answer.
        note(settings.paths.run / str(job.job.job_id) / PID_FILE, os.getpid())
        from slurmckpt.coordinator import daemon

        daemon.run(job, settings, declined, task_socket, control_socket, waiting)
        status = 0
    except BaseException:
        logging.getLogger(__name__).exception("the coordinator failed")
    finally:
        os._exit(status)


def _forget_the_prolog(keep: set[int]) -> None:
    os.chdir("/")
    os.umask(0o022)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor > 2 and descriptor not in keep:
            with contextlib.suppress(OSError):
                os.close(descriptor)
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    if null > 2:
        os.close(null)
    wanted = ("SLURM_CONF", "SLURM_CLUSTER_NAME", "LANG")
    environment = {name: os.environ[name] for name in wanted if name in os.environ}
    os.environ.clear()
    os.environ.update(environment, PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", LANG="C.UTF-8")


if __name__ == "__main__":
    sys.exit(main())
