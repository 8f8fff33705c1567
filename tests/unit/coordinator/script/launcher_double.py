"""Stands in for the launcher: speaks on the control socket as docs/architecture.md says, and runs what it is told.

A first argument of `fails`, `silent`, `hangs`, `garbage` or `late` makes it behave worse; `late` tells of an srun
when that has ended already, and a number is told as its pid.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import socket
import struct
import sys


def main(manner: str, words: list[str]) -> None:
    options = dict(zip(words[::2], words[1::2], strict=True))
    control = socket.socket(fileno=int(options["--control"]))
    _, descriptors, _, _ = socket.recv_fds(control, 65536, 253)
    if manner == "fails":
        control.send(b"FAILED\0reason=the cgroup is gone\0")
    if manner == "garbage":
        control.send(b"STARTED\0pid=many\0")
    if manner == "hangs":
        signal.pause()
    if manner in ("fails", "garbage", "silent"):
        return
    signals, status, payload, *handed = descriptors
    argv, environment, numbers = read(payload)
    own = os.getpid()
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != own:
            os._exit(1)  # killed before that call
        run(options["--program"], argv, environment, dict(zip(numbers, handed, strict=True)))
    for descriptor in [payload, *handed]:
        os.close(descriptor)
    if manner == "late":
        ended = os.waitpid(pid, 0)[1]
        control.send(b"STARTED\0pid=%d\0" % pid)
    else:
        control.send(b"STARTED\0pid=%d\0" % (int(manner) if manner.isdigit() else pid))
        ended = attend(pid, signals)
    # Nobody may be there any more to hear either.
    with contextlib.suppress(OSError):
        os.write(status, struct.pack("=i", ended))
    with contextlib.suppress(OSError):
        control.send(b"EXITED\0status=%d\0" % ended)


def read(payload: int) -> tuple[list[bytes], dict[bytes, bytes], list[int]]:
    """argv, environment and descriptor numbers."""
    text, _, rest = os.pread(payload, os.fstat(payload).st_size, 0).partition(b"\0\0")
    header = dict(word.split(b"=", 1) for word in text.split(b"\0"))
    words, argc = rest.split(b"\0")[:-1], int(header[b"argc"])
    environment = dict(word.split(b"=", 1) for word in words[argc:])
    return words[:argc], environment, [int(number) for number in header[b"fds"].split(b",") if number]


def run(program: str, argv: list[bytes], environment: dict[bytes, bytes], descriptors: dict[int, int]) -> None:
    lifted = {number: fcntl.fcntl(descriptor, fcntl.F_DUPFD, 500) for number, descriptor in descriptors.items()}
    os.closerange(0, 500)
    for number, descriptor in lifted.items():
        os.dup2(descriptor, number)
    os.closerange(500, 1000)
    os.execve(program, argv, environment)


def attend(pid: int, signals: int) -> int:
    """Pass signals on until it ends; gives its wait status. The end of the signals is the end of the stand-in."""
    pidfd = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.register(signals, select.POLLIN)
    while pidfd not in (ready := dict(poll.poll())):
        word = os.read(signals, 4) if signals in ready else b""
        if word:
            os.kill(pid, struct.unpack("=i", word)[0])
        else:
            os.kill(pid, signal.SIGKILL)
            poll.unregister(signals)
    return os.waitpid(pid, 0)[1]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
