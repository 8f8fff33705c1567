"""Puts a file system that never answers over a directory until the file `answer` exists in /tmp: hang.py DIRECTORY. As root."""

import ctypes
import os
import stat
import sys
import time

directory = sys.argv[1].encode()
libc = ctypes.CDLL(None, use_errno=True)
if not os.path.exists("/dev/fuse"):
    os.mknod("/dev/fuse", 0o600 | stat.S_IFCHR, os.makedev(10, 229))
fuse = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
# Nobody ever reads from the descriptor: not even the kernel's first request gets an answer.
assert libc.mount(b"hang", directory, b"fuse", 0, options) == 0, os.strerror(ctypes.get_errno())
open("/tmp/hanging", "w").close()
while not os.path.exists("/tmp/answer"):
    time.sleep(0.1)
assert libc.umount2(directory, 2) == 0, os.strerror(ctypes.get_errno())  # MNT_DETACH
# Whoever waits gets ECONNABORTED.
os.close(fuse)
