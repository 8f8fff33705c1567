"""A Redis server that appends every write to a file, and a client that checks every answer: redis_load.py STEPS SECONDS.

The client counts what was acknowledged; at the end everything must be there, in memory and after a restart from the file.
"""

import socket
import subprocess
import sys
import time
from pathlib import Path

PORT = 7379
KEYS = 50


class Client:
    """Speaks RESP, a command at a time."""

    def __init__(self) -> None:
        deadline = time.monotonic() + 30
        while True:
            try:
                self.socket = socket.create_connection(("127.0.0.1", PORT))
                break
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        self.stream = self.socket.makefile("rb")

    def __call__(self, *words: object) -> bytes:
        texts = [str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(texts) + b"".join(b"$%d\r\n%s\r\n" % (len(t), t) for t in texts))
        line = self.stream.readline().rstrip(b"\r\n")
        if line[:1] != b"$":
            return line
        size = int(line[1:])
        return self.stream.read(size + 2)[:-2] if size >= 0 else b"nil"


def start() -> subprocess.Popen[bytes]:
    options = f"--port {PORT} --bind 127.0.0.1 --appendonly yes --appendfsync everysec --save {''!r} --dir {Path.cwd()}"
    words = [*options.split()]
    words[words.index("''")] = ""
    return subprocess.Popen(["redis-server", *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


steps, pause = int(sys.argv[1]), float(sys.argv[2])
server = start()
redis = Client()
while (answer := redis("PING")) != b"+PONG":
    time.sleep(0.05)
counters = [0] * KEYS
for number in range(steps):
    wrong = 0
    for key in range(KEYS):
        counters[key] += number + key
        wrong += redis("INCRBY", f"counter:{key}", number + key) != b":%d" % counters[key]
        wrong += redis("APPEND", f"text:{key}", f"{number},")[:1] != b":"
        wrong += redis("GET", f"counter:{key}") != b"%d" % counters[key]
    print(number, sum(counters), wrong, flush=True)
    time.sleep(pause)
text = "".join(f"{number}," for number in range(steps)).encode()
for again in ("memory", "file"):
    lost = sum(redis("GET", f"text:{key}") != text for key in range(KEYS))
    lost += sum(redis("GET", f"counter:{key}") != b"%d" % counters[key] for key in range(KEYS))
    print(again, "lost", lost, flush=True)
    if again == "memory":
        redis("SHUTDOWN")
        server.wait()
        server = start()
        redis = Client()
        while redis("PING") != b"+PONG":
            time.sleep(0.05)
redis("SHUTDOWN")
print("end", server.wait())
