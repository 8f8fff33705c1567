"""The gate's C core, called from Python: each Process here is one rank's gate on a shared region."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

GATE = Path(__file__).resolve().parents[3] / "gate"


class _Gate(ctypes.Structure):
    # struct gate; opaque, and larger than it is.
    _fields_ = [("bytes", ctypes.c_char * 256)]


class _Group(ctypes.Structure):
    _fields_ = [("entered", ctypes.c_void_p), ("transfers", ctypes.c_void_p)]


class Core:
    """The library."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path), use_errno=True)
        pointer, word, big, text = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_char_p
        signatures = {
            "gate_attach": ([pointer, text, word], ctypes.c_int),
            "gate_detach": ([pointer], None),
            "gate_join": ([pointer, big, word, word], pointer),
            "gate_join_try": ([pointer, pointer], ctypes.c_bool),
            "gate_join_retry": ([pointer, pointer], ctypes.c_bool),
            "gate_admit": ([pointer, pointer], None),
            "gate_leave": ([pointer, pointer], None),
            "gate_try": ([pointer, pointer, pointer, word], ctypes.c_bool),
            "gate_retry": ([pointer, pointer, pointer, word], ctypes.c_bool),
            "gate_enter": ([pointer, pointer, pointer, word], None),
            "gate_exit": ([pointer], None),
            "gate_collective": ([pointer, pointer, text, big], None),
            "gate_transfer": ([pointer, pointer, pointer, text, big], None),
            "gate_peer": ([pointer, pointer, ctypes.c_int, word, ctypes.c_bool], None),
            "gate_captured": ([pointer], None),
        }
        for name, (arguments, result) in signatures.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, result
        self.library = library
        # Strings that stay, as NCCL's.
        self.names = {name: ctypes.c_char_p(name.encode()) for name in ("AllReduce", "Broadcast", "Send", "Recv")}


class Process:
    """One process with a gate."""

    def __init__(self, core: Core, path: Path, pid: int) -> None:
        self._library, self._names = core.library, core.names
        self._gate = _Gate()
        if self._library.gate_attach(ctypes.byref(self._gate), os.fsencode(path), pid) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def join(self, communicator: int, ranks: int, rank: int) -> int:
        """A handle for the communicator; 0 when there is no place."""
        return self._library.gate_join(ctypes.byref(self._gate), communicator, ranks, rank) or 0

    def try_join(self, handle: int) -> bool:
        return bool(self._library.gate_join_try(ctypes.byref(self._gate), handle))

    def retry_join(self, handle: int) -> bool:
        """After try_join was false."""
        return bool(self._library.gate_join_retry(ctypes.byref(self._gate), handle))

    def admit(self, handle: int) -> None:
        """Waits while the gate holds it."""
        self._library.gate_admit(ctypes.byref(self._gate), handle)

    def leave(self, handle: int) -> None:
        self._library.gate_leave(ctypes.byref(self._gate), handle)

    def close(self) -> None:
        self._library.gate_detach(ctypes.byref(self._gate))

    def thread(self, number: int) -> Thread:
        return Thread(self._library, self._names, self._gate, number)


class Thread:
    """One thread of it: what NCCL's calls do at the gate."""

    def __init__(self, library: ctypes.CDLL, names: dict[str, ctypes.c_char_p], gate: _Gate, number: int) -> None:
        self._library, self._names, self._gate, self._number = library, names, gate, number
        self._group = _Group()

    def try_enter(self, handle: int) -> bool:
        return bool(self._library.gate_try(ctypes.byref(self._gate), ctypes.byref(self._group), handle, self._number))

    def retry(self, handle: int) -> bool:
        """After try_enter was false."""
        return bool(self._library.gate_retry(ctypes.byref(self._gate), ctypes.byref(self._group), handle, self._number))

    def enter(self, handle: int) -> None:
        """Waits while the gate holds it."""
        self._library.gate_enter(ctypes.byref(self._gate), ctypes.byref(self._group), handle, self._number)

    def exit(self) -> None:
        self._library.gate_exit(ctypes.byref(self._group))

    def collective(self, handle: int, elements: int = 1) -> None:
        self._library.gate_collective(ctypes.byref(self._gate), handle, self._names["AllReduce"], elements)

    def transfer(self, handle: int, sends: bool, elements: int = 1) -> None:
        name = self._names["Send" if sends else "Recv"]
        self._library.gate_transfer(ctypes.byref(self._gate), ctypes.byref(self._group), handle, name, elements)

    def peer(self, handle: int, sends: bool, peer: int, in_group: bool = True) -> None:
        self._library.gate_peer(ctypes.byref(self._gate), handle, 0 if sends else 1, peer, in_group)

    def captured(self, handle: int) -> None:
        self._library.gate_captured(handle)
