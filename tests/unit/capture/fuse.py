"""A FUSE file system with one file, hello. fuse.py MOUNTPOINT: prints `mounted` and serves it until it is killed."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys

TEXT = b"hello world\n" * 500
# include/uapi/linux/fuse.h: fuse_in_header, fuse_out_header, fuse_attr; the numbers of what is answered below.
_REQUEST = struct.Struct("=IIQQIIII")
_ANSWER = struct.Struct("=IiQ")
_ATTRIBUTES = struct.Struct("=QQQQQQIIIIIIIIII")
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _STATFS, _RELEASE, _FLUSH, _INIT = 1, 2, 3, 14, 15, 17, 18, 25, 26
_OPENDIR, _RELEASEDIR, _FSYNCDIR, _BATCH_FORGET = 27, 29, 30, 42
_ROOT, _HELLO = 1, 2
_FOREVER = 3600
_FUSE = os.makedev(10, 229)


def _attributes(node: int) -> bytes:
    mode, size = (stat.S_IFREG | 0o644, len(TEXT)) if node == _HELLO else (stat.S_IFDIR | 0o755, 0)
    return _ATTRIBUTES.pack(node, size, 1, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def _answer(operation: int, node: int, body: bytes) -> tuple[bytes, int]:
    if operation == _INIT:
        return struct.pack("=IIIIHHIIHHIIII", 7, 31, 65536, 0, 12, 9, 65536, 1, *(0,) * 6).ljust(64, b"\0"), 0
    if operation == _GETATTR:
        return struct.pack("=QII", _FOREVER, 0, 0) + _attributes(node), 0
    if operation == _LOOKUP:
        if body.rstrip(b"\0") != b"hello":
            return b"", -2  # ENOENT
        return struct.pack("=QQQQII", _HELLO, 0, _FOREVER, _FOREVER, 0, 0) + _attributes(_HELLO), 0
    if operation in (_OPEN, _OPENDIR):
        return struct.pack("=QII", 1, 0, 0), 0
    if operation == _READ:
        _, offset, size = struct.unpack_from("=QQI", body)
        return TEXT[offset : offset + size], 0
    if operation == _STATFS:
        return bytes(80), 0
    if operation in (_RELEASE, _FLUSH, _RELEASEDIR, _FSYNCDIR):
        return b"", 0
    return b"", -38  # ENOSYS


def main() -> None:
    """Mount, and serve."""
    if not os.path.exists("/dev/fuse"):
        os.mknod("/dev/fuse", stat.S_IFCHR | 0o600, _FUSE)
    device = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    if libc.mount(b"hello", sys.argv[1].encode(), b"fuse.hello", 6, options.encode()) != 0:
        sys.exit(os.strerror(ctypes.get_errno()))
    print("mounted", flush=True)
    while True:
        request = os.read(device, 1 << 17)
        _, operation, unique, node, *_ = _REQUEST.unpack_from(request)
        if operation not in (_FORGET, _BATCH_FORGET):
            body, error = _answer(operation, node, request[_REQUEST.size :])
            os.write(device, _ANSWER.pack(_ANSWER.size + len(body), error, unique) + body)


if __name__ == "__main__":
    main()
