"""A terminal inside the pod: its settings, who is in its foreground, what waits in it, and a shell that lives on it."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
import time

import look  # type: ignore[import-not-found]

child, master = pty.fork()
if child == 0:
    os.execv("/bin/sh", ["sh", "-c", 'stty -echo; while read -r line; do echo "<$line> $-"; done'])
idle, other = pty.openpty()
settings = termios.tcgetattr(other)
settings[0] &= ~termios.ICRNL
settings[3] &= ~(termios.ICANON | termios.ECHO)
settings[6][termios.VMIN], settings[6][termios.VTIME] = 3, 7
termios.tcsetattr(other, termios.TCSANOW, settings)
fcntl.ioctl(idle, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 111, 5, 6))
os.write(idle, b"to be read")
os.write(other, b"to be shown")
received = b""


def answer(question: bytes) -> str:
    """What the shell says to it."""
    global received
    os.write(master, question + b"\n")
    end = time.monotonic() + 60
    while b"<" + question not in received or not received.endswith(b"\n"):
        assert time.monotonic() < end, received
        received += os.read(master, 1000)
    found, received = received, b""
    return found.decode().splitlines()[-1]


def tell() -> None:
    print("size", struct.unpack("HHHH", fcntl.ioctl(other, termios.TIOCGWINSZ, bytes(8))))
    now = termios.tcgetattr(other)
    print(
        "flags",
        [hex(each) for each in now[:4]],
        "speed",
        now[4:6],
        "min",
        now[6][termios.VMIN],
        "time",
        now[6][termios.VTIME],
    )
    print("names", os.ttyname(other), os.isatty(idle))
    os.close(os.open(os.ttyname(other), os.O_RDWR | os.O_NOCTTY))
    print("owner", os.fstat(other).st_uid == os.getuid(), oct(os.fstat(other).st_mode))
    print("foreground", os.tcgetpgrp(master) == child, "session", os.getsid(child) == child)
    print("shell", answer(b"hello"))


look.loop(tell)
print("read", os.read(other, 100), "shown", os.read(idle, 100), flush=True)
os.close(master)
_, status = os.waitpid(child, 0)
print("shell ended by", os.WTERMSIG(status) or os.WEXITSTATUS(status), flush=True)
