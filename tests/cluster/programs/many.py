"""Hold very many descriptors of all kinds; spoil the files when there is `spoil`; compare everything when there is `go`.

many.py COUNT
"""

import os
import sys
import time

count = int(sys.argv[1])
files: list[int] = []
positions: list[int] = []
pipes: list[tuple[int, int]] = []
events: list[int] = []
os.makedirs("many", exist_ok=True)
for number in range(count // 5):
    descriptor = os.open(f"many/{number}", os.O_RDWR | os.O_CREAT)
    os.write(descriptor, b"%d" % number * 3)
    os.lseek(descriptor, number % 3, os.SEEK_SET)
    files.append(descriptor)
    positions.append(os.open(f"many/{number}", os.O_RDONLY))
# CRIU captures no more pipes.
for number in range(1000):
    reading, writing = os.pipe()
    os.write(writing, b"%d" % number)
    pipes.append((reading, writing))
while len(files) + len(positions) + 2 * len(pipes) + len(events) < count - 10:
    events.append(os.eventfd(len(events), os.EFD_NONBLOCK))
print("ready", flush=True)
spoilt = False
while not os.path.exists("go"):
    if os.path.exists("spoil") and not spoilt:
        spoilt = True
        for descriptor in files:
            os.pwrite(descriptor, b"spoilt", 0)
        print("spoilt", flush=True)
    time.sleep(0.05)
exact = not spoilt
for number, (descriptor, other) in enumerate(zip(files, positions, strict=True)):
    exact &= os.pread(other, 100, 0) == b"%d" % number * 3 and os.lseek(descriptor, 0, os.SEEK_CUR) == number % 3
for number, (reading, _) in enumerate(pipes):
    exact &= os.read(reading, 100) == b"%d" % number
for number, event in enumerate(events):
    exact &= number == 0 or os.eventfd_read(event) == number
print(count, "exact" if exact and len(os.listdir("/proc/self/fd")) > count - 20 else "differs", flush=True)
