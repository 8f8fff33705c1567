"""The double of NCCL from Python: a simulated device. Ranks are processes that are forked, as many as wanted."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

DOUBLE = Path(__file__).resolve().parents[2] / "doubles" / "libnccl"
PATIENCE = 60.0
SUM = 0
FLOAT64 = 8
NOT_READY = 600


class UniqueId(ctypes.Structure):
    """ncclUniqueId."""

    _fields_ = [("internal", ctypes.c_char * 128)]


class Nccl:
    """The library, loaded into this process."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.double_stream_create.restype = ctypes.c_void_p
        self.library.double_capture_end.restype = ctypes.c_void_p

    def unique_id(self) -> bytes:
        made = UniqueId()
        assert self.library.ncclGetUniqueId(ctypes.byref(made)) == 0
        return bytes(made)

    def init(self, ranks: int, unique: bytes, rank: int) -> Communicator:
        made = ctypes.c_void_p()
        given = UniqueId.from_buffer_copy(unique)
        assert self.library.ncclCommInitRank(ctypes.byref(made), ranks, given, rank) == 0
        return Communicator(self.library, made)

    def group_start(self) -> None:
        assert self.library.ncclGroupStart() == 0

    def group_end(self) -> None:
        assert self.library.ncclGroupEnd() == 0

    def synchronize(self, stream: int | None = None) -> None:
        self.library.double_stream_synchronize(ctypes.c_void_p(stream))


class Buffer:
    """Numbers on the simulated device."""

    def __init__(self, values: Sequence[float]) -> None:
        self.array = (ctypes.c_double * len(values))(*values)

    @property
    def values(self) -> list[float]:
        return list(self.array)


class Communicator:
    """One rank's."""

    def __init__(self, library: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
        self._library, self._handle = library, handle

    def all_reduce(self, buffer: Buffer, stream: int | None = None, operation: int = SUM) -> None:
        count = ctypes.c_size_t(len(buffer.array))
        code = self._library.ncclAllReduce(
            buffer.array, buffer.array, count, FLOAT64, operation, self._handle, ctypes.c_void_p(stream)
        )
        assert code == 0, code

    def collective(self, name: str, send: Buffer, receive: Buffer, count: int, *more: int) -> None:
        """ncclBroadcast and others that take numbers between the type and the communicator."""
        function = getattr(self._library, name)
        code = function(send.array, receive.array, ctypes.c_size_t(count), FLOAT64, *more, self._handle, None)
        assert code == 0, code

    def send(self, buffer: Buffer, peer: int, stream: int | None = None) -> None:
        count = ctypes.c_size_t(len(buffer.array))
        assert self._library.ncclSend(buffer.array, count, FLOAT64, peer, self._handle, ctypes.c_void_p(stream)) == 0

    def receive(self, buffer: Buffer, peer: int, stream: int | None = None) -> None:
        count = ctypes.c_size_t(len(buffer.array))
        assert self._library.ncclRecv(buffer.array, count, FLOAT64, peer, self._handle, ctypes.c_void_p(stream)) == 0

    def split(self, color: int, key: int) -> Communicator | None:
        made = ctypes.c_void_p()
        assert self._library.ncclCommSplit(self._handle, color, key, ctypes.byref(made), None) == 0
        return Communicator(self._library, made) if made else None

    def destroy(self) -> None:
        assert self._library.ncclCommDestroy(self._handle) == 0


Main = Callable[[Nccl, int], object]


class Rank:
    """A process. It answers to L<milliseconds> (lock) and U (unlock), as CUDA's checkpoint interface would for it."""

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid = pid
        self._control = control

    def lock(self, milliseconds: int) -> int:
        return self._ask(f"L{milliseconds}")

    def unlock(self) -> None:
        assert self._ask("U") == 0

    def result(self) -> str:
        """What its main function returned. Fails with its traceback."""
        self._control.settimeout(PATIENCE)
        self._control.send(b"R")
        answer = self._control.recv(1 << 16).decode()
        self._control.send(b"Q")
        _, status = os.waitpid(self.pid, 0)
        assert status == 0 and answer.startswith("="), answer
        return answer[1:]

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self._control.close()

    def _ask(self, question: str) -> int:
        self._control.settimeout(PATIENCE)
        self._control.send(question.encode())
        return int(self._control.recv(64))


class Ranks:
    """All ranks of one job. A context manager: at its end all are gone."""

    def __init__(self, library: Path, count: int, main: Main, environment: Mapping[str, str]) -> None:
        self.each: list[Rank] = []
        # Where communicators meet: ranks that are killed leave their files behind.
        self._worlds = tempfile.TemporaryDirectory(prefix="nccl-double-", dir="/dev/shm")
        for rank in range(count):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            pid = os.fork()
            if pid == 0:
                ours.close()
                for other in self.each:
                    other._control.close()
                os.environ.update({**environment, "NCCL_DOUBLE_WORLDS": self._worlds.name})
                _serve(library, rank, main, theirs)
            theirs.close()
            self.each.append(Rank(pid, ours))

    def results(self) -> list[str]:
        return [rank.result() for rank in self.each]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for rank in self.each:
            rank.kill()
        self._worlds.cleanup()


def _serve(library: Path, rank: int, main: Main, control: socket.socket) -> None:
    """In the child; never returns. The main function runs in a thread of its own."""
    nccl = Nccl(library)
    outcome: list[str] = []

    def run() -> None:
        try:
            outcome.append(f"={main(nccl, rank)}")
        except BaseException:
            outcome.append(traceback.format_exc())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while question := control.recv(64).decode():
        if question == "Q":
            break
        if question == "R":
            thread.join(PATIENCE)
            control.send((outcome or ["still running"])[0].encode()[: 1 << 15])
        elif question == "U":
            nccl.library.double_unlock()
            control.send(b"0")
        else:
            control.send(str(nccl.library.double_lock(int(question[1:]))).encode())
    os._exit(0)
