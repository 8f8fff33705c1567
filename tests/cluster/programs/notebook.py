"""A Jupyter kernel and its client: notebook.py CELLS SECONDS. Each cell uses what the ones before it left."""

import gc
import sys
import time
from typing import Any

from jupyter_client.manager import start_new_kernel  # type: ignore[import-not-found]

cells, pause = int(sys.argv[1]), float(sys.argv[2])
manager, client = start_new_kernel(kernel_name="python3")


def run(code: str) -> str:
    """What the cell prints, or what it raises."""
    said: list[str] = []

    def take(message: dict[str, Any]) -> None:
        if message["msg_type"] in ("stream", "error"):
            content = message["content"]
            said.append(content.get("text", "") or content.get("evalue", ""))

    client.execute_interactive(code, timeout=60, output_hook=take)
    return "".join(said).strip()


run("import hashlib; state = b'start'; history = []")
for number in range(cells):
    said = run("state = hashlib.sha256(state).digest(); history.append(state.hex()); print(len(history), history[-1])")
    print(number, said, flush=True)
    time.sleep(pause)
print("all", run("print(hashlib.sha256(''.join(history).encode()).hexdigest())"))
client.stop_channels()
manager.shutdown_kernel()
# Now, not when the interpreter has taken apart what its destructor needs (seen with Python 3.13).
globals().pop("client")
gc.collect()
