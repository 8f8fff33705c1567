"""What the tests of the plugin share: how the double of Slurm runs it, what it says, and a task with a shim."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

JOB = 1234
NOBODY = 65534
TASK = ["--", "/bin/echo", "hello world"]
UNWRAPPED = ["argv|/bin/echo|hello world"]
GIVEN = "opt=checkpoint-interval=10m"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="the shim and the coordinator must be root's")
SHIM = """
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>

int main(int argc, char *argv[])
{
	struct timeval timeout;
	socklen_t size = sizeof(timeout);

	for (int i = 0; i < argc; i++)
		printf("[%s]", argv[i]);
	if (getsockopt(atoi(argv[2]), SOL_SOCKET, SO_SNDTIMEO, &timeout, &size) == 0)
		printf(" timeout %ld", (long)timeout.tv_sec);
	return 7;
}
"""


def task_words(folder: Path, step: int = 0, **items: int) -> list[str]:
    numbers = {"job": JOB, "step": step, "task": 0, "gtask": 0, "ntasks": 1, "nnodes": 1, "uid": NOBODY, "gid": NOBODY}
    return [f"arg=run={folder}", f"arg=libexec={folder}"] + [f"{k}={v}" for k, v in (numbers | items).items()]


def argv(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stdout.splitlines() if line.startswith("argv")]


def run(
    host: Path, plugin: Path, context: str, *words: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(host), str(plugin), context, *words], capture_output=True, text=True, timeout=60, env=env or {}
    )
    assert done.returncode == 0, done.stderr
    return done


def lines(done: subprocess.CompletedProcess[str], kind: str) -> list[str]:
    return [line[len(kind) + 1 :] for line in done.stdout.splitlines() if line.startswith(kind + " ")]
