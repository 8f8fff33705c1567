"""A script that waits for its srun is dumped by CRIU, killed, and brought back with a new srun in place of the old one.

dump_stand_in.py FOLDER: an empty folder that the pod can see. Run as root on a node, with the unit tests' harness beside it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import sys
from pathlib import Path

from slurmckpt.capture import criu, procfs
from slurmckpt.coordinator.task import external_key
from tests.unit.awaiting import wait_until
from tests.unit.pod.harness import (
    GID,
    POD,
    UID,
    FakeCoordinator,
    Message,
    Pod,
    Shim,
    Wire,
    inner_pid,
    open_files,
    shell,
)
from tests.unit.pod.launching import Launcher, Pipe, read_word
from tests.unit.pod.payloads import payload_header

LIBEXEC = Path("/usr/libexec/slurmckpt")
SCRIPT = """a=kept; x=$(srun sh -c 'printf value; exit 5'); echo "x=$x code=$? a=$a"; exit 3"""


def build_house(folder: Path) -> tuple[socket.socket, list[str]]:
    """A real srun, which runs its arguments, and the socket; and what pod-init has to bind."""
    real, run = folder / "bin/srun", folder / "run"
    for place in (real.parent, run):
        place.mkdir(mode=0o755)
    real.write_text('#!/bin/sh\nexec "$@"\n')
    real.chmod(0o755)
    (run / "srun").touch()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(str(run / "launch.sock"))
    (run / "launch.sock").chmod(0o666)
    listening.listen()
    binds = (f"{real}:{run}/srun", f"{run}:{LIBEXEC}/pod", f"{LIBEXEC}/srun:{real}")
    return listening, [word for bind in binds for word in ("--bind", bind)]


def wait_in_srun(listening: socket.socket, signals: Pipe, status: Pipe) -> tuple[int, int]:
    """The pid of the stand-in that waits now, and its payload."""
    listening.settimeout(20)
    wire = Wire(listening.accept()[0])
    pid: int = struct.unpack("iii", wire.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    message: Message = wire.expect("LAUNCH")
    wire.send("LAUNCHED", fds=(signals.write_end, status.read_end))
    for fd in (*message.fds[1:], signals.take_write(), status.take_read()):
        os.close(fd)
    wire.expect_end()
    wait_until(lambda: any("signalfd" in link for link in open_files(pid).values()), "the stand-in waits")
    return pid, message.fds[0]


async def dump(pod: Pod, target: criu.Target, images: Path, files: list[str], stand_in: int) -> criu.Installation:
    """The pod into `images`; a signal comes for the stand-in while it is frozen."""
    installation = criu.find("criu", "auto")
    await criu.warm_up(installation)
    images.mkdir(mode=0o700)

    async def frozen() -> list[str]:
        os.kill(stand_in, signal.SIGUSR2)
        return files

    async def dumped() -> None:
        pass

    hooks = criu.DumpHooks(starting=lambda: None, frozen=frozen, dumped=dumped)
    await criu.dump(installation, target, inner_pid(pod.leader_pid()), images, criu.Limits(60, 1 << 20), hooks)
    return installation


async def check(coordinator: FakeCoordinator, folder: Path) -> None:
    """Everything; AssertionError says what went wrong."""
    listening, binds = build_house(folder)
    shim: Shim = coordinator.started_shim(shell(SCRIPT), env={"PATH": f"{folder}/bin:/usr/bin:/bin"})
    pod = coordinator.pod(shim, *binds)
    kept = {external_key(fd): os.dup(fd) for fd in shim.fds[1:]}
    pod.lead([shim])
    signals, status = Pipe(), Pipe()
    keys = external_key(signals.read_end), external_key(status.write_end)
    stand_in, payload = wait_in_srun(listening, signals, status)
    inside, before = inner_pid(stand_in), open_files(stand_in)
    leader = inner_pid(pod.leader_pid())

    target = criu.Target(LIBEXEC / "enter", pod.pid, UID, GID)
    files = [key for key in kept if key.startswith("file[")]
    installation = await dump(pod, target, folder / "images", files, stand_in)
    assert read_word(signals.read_end) == signal.SIGUSR2, "it goes on after the dump as if nothing had been"
    os.kill(stand_in, signal.SIGUSR1)
    assert read_word(signals.read_end) == signal.SIGUSR1
    pod.wire.send("KILL")
    pod.expect("KILLED")
    assert read_word(signals.read_end) is None, "killed, so the launcher would end"

    launcher = Launcher(shim.process.pid, program=folder / "bin/srun")
    new = dict(zip(keys, (launcher.signals.write_end, launcher.status.read_end), strict=True))

    async def restored() -> None:
        pass

    inherit = {external_key(pod.status_write): pod.status_write, **kept, **new}
    await criu.restore(installation, target, folder / "images", criu.RestoreHooks(restored, inherit))
    os.close(launcher.signals.take_write())
    os.close(launcher.status.take_read())
    pod.wire.send("ADOPT", leader=leader)
    pod.wire.send("SHIM", index=0, pid=shim.pid_inside)
    pod.wire.send("GO")
    stand_in = pod.outer_pid(inside)
    after = open_files(stand_in)
    assert after.keys() == before.keys() and Path(f"/proc/{stand_in}/comm").read_text() == "srun\n"
    assert read_word(launcher.signals.read_end) == signal.SIGUSR2, "what was pending in the image comes out"

    numbers = [int(number) for number in payload_header(payload)["fds"].split(",")]
    pidfd = os.pidfd_open(stand_in)
    launcher.launch(payload, [procfs.borrow_descriptor(pidfd, number) for number in numbers])
    os.close(pidfd)
    launcher.started()
    for fd in kept.values():
        os.close(fd)
    assert shim.finish() == (3, "x=value code=5 a=kept\n", "")
    assert launcher.wire.expect("EXITED").values == {"status": str(5 << 8)}
    launcher.close()
    pod.expect("DONE")
    for pipe in (signals, status):
        pipe.close()
    listening.close()


def main() -> None:
    """Prints "good" when all was well."""
    assert POD.resolve() == LIBEXEC
    coordinator = FakeCoordinator()
    try:
        asyncio.run(check(coordinator, Path(sys.argv[1])))
    finally:
        coordinator.close()
    print("good")


if __name__ == "__main__":
    main()
