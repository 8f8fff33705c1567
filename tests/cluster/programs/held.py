"""Holds kernel objects of many kinds, prints `ready`, and when the file `go` appears what has become of each.

Lines are `NAME VALUE`. x86_64: system calls that Python does not have go by their numbers.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Callable

libc = ctypes.CDLL(None, use_errno=True)
CHECKS: dict[str, Callable[[], object]] = {}


def call(number: int, *arguments: object) -> int:
    """A system call; raises OSError."""
    values = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    found = int(libc.syscall(number, *values))
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found


def fork(child: Callable[[], object]) -> int:
    """A child process that runs `child` and ends."""
    pid = os.fork()
    if pid == 0:
        child()
        os._exit(0)
    return pid


def filtered_mkdir() -> int:
    """The filter of this process makes mkdir(2) fail with 77."""
    try:
        os.mkdir("forbidden")
    except OSError as error:
        return error.errno or 0
    return 0


def install_filter() -> None:
    """seccomp(2) with: load the number; if it is mkdir, errno 77; else allow."""
    steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 83), (6, 0, 0, 0x50000 | 77), (6, 0, 0, 0x7FFF0000)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    libc.prctl(38, 1, 0, 0, 0)
    libc.prctl(22, 2, ctypes.create_string_buffer(struct.pack("=HxxxxxxQ", len(steps), ctypes.addressof(program))))


def created(descriptor: int) -> bool:
    """Whether a file that is created now is told by this watch."""
    name = f"created-{descriptor}-{time.monotonic_ns()}"
    open(f"watched/{name}", "w", encoding="ascii").close()
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            if name.encode() in os.read(descriptor, 65536):
                return True
        except BlockingIOError:
            time.sleep(0.01)
    return False


def killed(pidfd: int, pid: int) -> int:
    """The wait status of a child that is killed through its pidfd."""
    signal.pidfd_send_signal(pidfd, signal.SIGTERM)
    return os.waitpid(pid, 0)[1]


def error_of(action: Callable[[], object]) -> str:
    """The name of the error that it raises."""
    try:
        action()
    except OSError as error:
        return os.strerror(error.errno or 0)
    return "none"


def hold() -> None:
    """Make everything, each with its check."""
    os.mkdir("watched")
    shutil.copy("/usr/bin/sleep", "program")
    program = subprocess.Popen(["./program", "1000"])
    while os.readlink(f"/proc/{program.pid}/exe") != os.path.abspath("program"):
        time.sleep(0.01)
    os.unlink("program")
    CHECKS["deleted-program"] = program.poll

    nameless = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(nameless, b"nameless")
    CHECKS["nameless-file"] = lambda: os.pread(nameless, 100, 0)
    path = os.open("/etc/passwd", os.O_PATH)
    CHECKS["path-only"] = lambda: os.fstat(path).st_ino == os.stat("/etc/passwd").st_ino
    namespace = os.open("/proc/self/ns/net", os.O_RDONLY)
    CHECKS["namespace"] = lambda: os.fstat(namespace).st_ino == os.stat("/proc/self/ns/net").st_ino
    own = os.open("/proc/self/comm", os.O_RDONLY)
    CHECKS["own-proc-file"] = lambda: os.pread(own, 100, 0)
    dead = subprocess.Popen(["sleep", "1000"])
    of_dead = os.open(f"/proc/{dead.pid}/status", os.O_RDONLY)
    dead_pidfd = os.pidfd_open(dead.pid)
    dead.kill()
    dead.wait()
    CHECKS["proc-file-of-a-dead"] = lambda: error_of(lambda: os.read(of_dead, 10))
    CHECKS["pidfd-of-a-dead"] = lambda: error_of(lambda: signal.pidfd_send_signal(dead_pidfd, 0))
    child = fork(signal.pause)
    pidfd = os.pidfd_open(child)
    CHECKS["pidfd"] = lambda: killed(pidfd, child)

    inotify = libc.inotify_init1(os.O_NONBLOCK)
    libc.inotify_add_watch(inotify, b"watched", 0x100)  # IN_CREATE
    CHECKS["inotify"] = lambda: created(inotify)
    fanotify = call(300, 0xC00 | 2, 0)  # FAN_REPORT_DFID_NAME | FAN_NONBLOCK
    call(301, fanotify, 1, ctypes.c_ulong(0x40000100), -100, b"watched")  # FAN_MARK_ADD, FAN_CREATE
    CHECKS["fanotify"] = lambda: created(fanotify)

    context = ctypes.c_ulong(0)
    call(206, 16, ctypes.byref(context))  # io_setup
    CHECKS["aio"] = lambda: call(207, context.value)
    key = call(248, b"user", b"slurmckpt", b"secret", 6, -3)  # add_key, to the session's keyring
    CHECKS["key"] = lambda: error_of(lambda: call(250, 11, key, None, 0))

    high = os.dup2(0, 500)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    CHECKS["above-the-limit"] = lambda: os.fstat(high).st_rdev == os.stat("/dev/null").st_rdev

    install_filter()
    CHECKS["seccomp-filter"] = filtered_mkdir


hold()
print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
for name, check in CHECKS.items():
    try:
        print(name, check(), flush=True)
    except OSError as error:
        print(name, "failed:", error, flush=True)
