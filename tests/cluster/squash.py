"""squash.py SOURCE MOUNTPOINT: a directory seen through FUSE, where root has no more rights than nobody.

As on NFS with root_squash: what needs a right to a path is refused to root; what is asked of a file that is known, as its
attributes, is answered. Prints `mounted` and serves it in the background. Only what the test needs.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys
import time
from collections.abc import Callable

# include/uapi/linux/fuse.h: fuse_in_header, fuse_out_header, fuse_attr.
_REQUEST = struct.Struct("=IIQQIIII")
_ANSWER = struct.Struct("=IiQ")
_ATTRIBUTES = struct.Struct("=QQQQQQIIIIIIIIII")
_NO_TIME = bytes(16)  # nothing is remembered: each look at a path comes here
_INIT, _FORGET, _BATCH_FORGET = 26, 2, 42
_NOBODY = 65534
_FUSE = os.makedev(10, 229)
# Of fuse_setattr_in: which of its fields count.
_MODE, _SIZE, _ATIME, _MTIME, _FH, _MTIME_NOW = 1, 8, 16, 32, 64, 256
_libc = ctypes.CDLL(None, use_errno=True)


class Server:
    """root: the directory that is shown. Nodes are known by their paths; the answer to each request is its method's."""

    def __init__(self, root: bytes) -> None:
        self.paths = {1: root}
        self.files: dict[int, int] = {}
        self.answers: dict[int, Callable[[bytes, bytes], bytes]] = {
            1: lambda path, body: self.entry(_below(path, body)),
            3: self.get_attributes,
            4: self.set_attributes,
            9: self.make_directory,
            10: self.unlink,
            14: self.open,
            15: self.read,
            16: self.write,
            17: self.statfs,
            18: self.release,
            35: self.create,
            **dict.fromkeys((20, 25, 29, 30), lambda path, body: b""),  # fsync, flush, of directories, too
            27: lambda path, body: bytes(16),  # opendir
            34: self.access,
        }

    def entry(self, path: bytes) -> bytes:
        status = os.lstat(path)
        node = next((number for number, known in self.paths.items() if known == path), len(self.paths) + 1)
        self.paths[node] = path
        return struct.pack("=QQ", node, 0) + _NO_TIME + bytes(8) + _attributes(status)

    def get_attributes(self, path: bytes, body: bytes) -> bytes:
        _libc.setfsuid(0)
        return _NO_TIME + _attributes(os.lstat(path))

    def set_attributes(self, path: bytes, body: bytes) -> bytes:
        valid, _, fh, size, _, at, mt, _, an, mn, _, mode = struct.unpack_from("=IIQQQQQQIIII", body)
        if valid & _MODE:
            os.chmod(path, stat.S_IMODE(mode))
        if valid & _SIZE:
            os.truncate(self.files[fh] if valid & _FH else path, size)
        if valid & (_ATIME | _MTIME):
            now = time.time_ns() if valid & _MTIME_NOW else mt * 10**9 + mn
            os.utime(path, ns=(at * 10**9 + an if valid & _ATIME else os.stat(path).st_atime_ns, now))
        return self.get_attributes(path, b"")

    def make_directory(self, path: bytes, body: bytes) -> bytes:
        mode, umask = struct.unpack_from("=II", body)
        os.mkdir(_below(path, body[8:]), stat.S_IMODE(mode & ~umask))
        return self.entry(_below(path, body[8:]))

    def unlink(self, path: bytes, body: bytes) -> bytes:
        os.unlink(_below(path, body))
        return b""

    def open(self, path: bytes, body: bytes) -> bytes:
        return self.opened(os.open(path, struct.unpack_from("=I", body)[0] & os.O_ACCMODE))

    def opened(self, file: int) -> bytes:
        self.files[file] = file
        return struct.pack("=QQ", file, 0)

    def create(self, path: bytes, body: bytes) -> bytes:
        flags, mode, umask, _ = struct.unpack_from("=IIII", body)
        name = _below(path, body[16:])
        kept = flags & (os.O_ACCMODE | os.O_EXCL | os.O_TRUNC)
        file = os.open(name, kept | os.O_CREAT, stat.S_IMODE(mode & ~umask))
        return self.entry(name) + self.opened(file)

    def read(self, path: bytes, body: bytes) -> bytes:
        file, offset, size = struct.unpack_from("=QQI", body)
        return os.pread(file, size, offset)

    def write(self, path: bytes, body: bytes) -> bytes:
        file, offset, size = struct.unpack_from("=QQI", body)
        return struct.pack("=II", os.pwrite(file, body[40 : 40 + size], offset), 0)

    def release(self, path: bytes, body: bytes) -> bytes:
        os.close(self.files.pop(struct.unpack_from("=Q", body)[0]))
        return b""

    def statfs(self, path: bytes, body: bytes) -> bytes:
        return bytes(80)

    def access(self, path: bytes, body: bytes) -> bytes:
        # access(2) would ask for the real uid, which is root's.
        flags = struct.unpack_from("=I", body)[0]
        if not os.access(path, flags, effective_ids=True):
            raise PermissionError(errno.EACCES, "")
        return b""


def _attributes(of: os.stat_result) -> bytes:
    times = [divmod(each, 10**9) for each in (of.st_atime_ns, of.st_mtime_ns, of.st_ctime_ns)]
    seconds, rest = zip(*times, strict=True)
    owner = (of.st_mode, of.st_nlink, of.st_uid, of.st_gid, of.st_rdev, of.st_blksize, 0)
    return _ATTRIBUTES.pack(of.st_ino, of.st_size, of.st_blocks, *seconds, *rest, *owner)


def _below(path: bytes, body: bytes) -> bytes:
    return path + b"/" + body.partition(b"\0")[0]


def _serve(device: int, server: Server) -> None:
    while True:
        request = os.read(device, 1 << 18)
        length, operation, unique, node, uid, gid, *_ = _REQUEST.unpack_from(request)
        body, answer, error = request[_REQUEST.size : length], b"", 0
        if operation in (_FORGET, _BATCH_FORGET):
            continue
        try:
            _libc.setfsgid(gid if uid else _NOBODY)
            _libc.setfsuid(uid or _NOBODY)
            if operation == _INIT:
                answer = struct.pack("=IIIIHHIIHHIIII", 7, 31, 65536, 0, 12, 9, 65536, 1, *(0,) * 6).ljust(64, b"\0")
            elif operation in server.answers:
                answer = server.answers[operation](server.paths[node], body)
            else:
                error = -errno.ENOSYS
        except OSError as failure:
            error = -(failure.errno or errno.EIO)
        finally:
            _libc.setfsuid(0)
            _libc.setfsgid(0)
        os.write(device, _ANSWER.pack(_ANSWER.size + len(answer), error, unique) + answer)


def main() -> None:
    """Mount, and serve."""
    if not os.path.exists("/dev/fuse"):
        os.mknod("/dev/fuse", stat.S_IFCHR | 0o600, _FUSE)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    if _libc.mount(b"squash", sys.argv[2].encode(), b"fuse.squash", 6, options.encode()):
        sys.exit(os.strerror(ctypes.get_errno()))
    print("mounted", flush=True)
    if os.fork():
        return
    os.setsid()
    os.umask(0)
    os.setgroups([])
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    _serve(device, Server(sys.argv[1].encode()))


if __name__ == "__main__":
    main()
