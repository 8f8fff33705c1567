"""What is asked of the CUDA agent, and of the next one when that dies: told by agents that only play one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from slurmckpt.capture.cuda import client
from slurmckpt.capture.cuda.client import CudaClient, Lost
from slurmckpt.capture.cuda.keeper import Held, keep
from tests.unit.awaiting import until, wait_until

# For each request the next word of `plan`, whichever agent gets it: answer, die, or wait until there is a file `go`.
AGENT = """#!{python} -S
import json, os, socket, sys, threading, time
os.chdir("{place}")
channel = socket.socket(fileno=int(sys.argv[3]))
def serve(number, plan):
    while plan == "wait" and not os.path.exists("go"):
        time.sleep(0.01)
    if plan == "die":
        os._exit(1)
    channel.sendall(json.dumps(dict(id=number, result=None)).encode() + b"\\n")
for line in channel.makefile():
    request = json.loads(line)
    plans = open("plan").read().split()
    with open("log", "a") as log:
        print(request["verb"], time.monotonic(), file=log)
    if request["verb"] != "beat":
        plan = plans[sum(not line.startswith("beat") for line in open("log")) - 1]
        threading.Thread(target=serve, args=(request["id"], plan), daemon=True).start()
"""
# Seconds in which what must not happen does not.
NEVER = 0.3


class Play:
    """Where the agents find their plan, and write down what they are asked."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = place
        agent = place / "agent"
        agent.write_text(AGENT.format(python=sys.executable, place=place))
        agent.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(agent))

    def plan(self, *words: str) -> None:
        (self.place / "plan").write_text(" ".join(words))

    def log(self) -> list[tuple[str, float]]:
        """Verbs, and when they came (seconds)."""
        file = self.place / "log"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(verb, float(when)) for verb, when in (line.split() for line in lines)]

    def asked(self) -> Sequence[str]:
        """The verbs, without signs of life."""
        return [verb for verb, _ in self.log() if verb != "beat"]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    return Play(tmp_path, monkeypatch)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 120))


def test_a_lock_of_a_dead_agent_is_undone_once_more_when_its_time_is_over(play: Play) -> None:
    """It may have been granted after the first release, with nobody there to hear of it."""
    play.plan("die", "answer", "answer")

    async def work() -> None:
        cuda = CudaClient()
        with pytest.raises(Lost, match=r"\(lock\)"):
            await cuda.lock([1], 1.0)
        await cuda.close()

    run(work())
    assert play.asked() == ["lock", "release", "release"]
    first, second = [when for verb, when in play.log() if verb == "release"]
    assert second - first >= 1.0


@pytest.mark.parametrize(("deaths", "said"), [(2, r"\(checkpoint\)"), (3, r"\(release\)")])
def test_agents_may_die_of_a_release_twice(play: Play, deaths: int, said: str) -> None:
    play.plan("die", *["die"] * deaths, "answer")

    async def work() -> None:
        cuda = CudaClient()
        with pytest.raises(Lost, match=said):
            await cuda.checkpoint([1], 60.0)
        await cuda.close()

    run(work())
    assert play.asked() == ["checkpoint", "release", "release", "release"]


def test_an_operation_that_nobody_waits_for_any_more_is_waited_for(play: Play) -> None:
    """The next one is asked only after its end."""
    play.plan("wait", "answer")

    async def work() -> None:
        cuda = CudaClient()
        asking = asyncio.create_task(cuda.lock([1], 60.0))
        await until(lambda: play.asked() == ["lock"])
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        resuming = asyncio.create_task(cuda.resume([1], 60.0))
        await asyncio.sleep(NEVER)
        assert play.asked() == ["lock"]
        (play.place / "go").touch()
        await resuming
        assert play.asked() == ["lock", "resume"]
        await cuda.close()

    run(work())


def test_an_agent_hears_that_its_coordinator_lives(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that it would take it for dead after 20 s, and give the ranks back their GPUs in the middle of a dump."""
    monkeypatch.setattr(client, "_BEAT_SECONDS", 0.05)
    play.plan("answer")

    async def work() -> None:
        cuda = CudaClient()
        await cuda.lock([1], 60.0)
        await until(lambda: [verb for verb, _ in play.log()].count("beat") >= 3)
        await cuda.close()

    run(work())


def test_a_keeper_leaves_the_ranks_to_a_coordinator_that_lives(tmp_path: Path) -> None:
    """Their agent has died. It releases them only when the coordinator has ended as well."""
    ours, theirs = os.pipe()
    coordinator = os.fork()
    if coordinator == 0:
        os.close(theirs)
        os.read(ours, 1)
        os._exit(0)
    agent, released = tmp_path / "agent", tmp_path / "released"
    keeper = os.fork()
    if keeper == 0:
        _keep(coordinator, theirs, agent, released)
    try:
        wait_until(agent.exists, "the agent holds the ranks, and dies")
        time.sleep(NEVER)
        assert not released.exists()
        os.close(theirs)
        os.waitpid(coordinator, 0)
        wait_until(released.exists, "the ranks are released")
        assert json.loads(released.read_text()) == [7, 8]
    finally:
        os.kill(keeper, signal.SIGKILL)
        os.waitpid(keeper, 0)


def _keep(coordinator: int, pipe: int, agent: Path, released: Path) -> None:
    """In a child; never returns."""

    def serve(held: Held) -> None:
        held.write({7, 8})
        agent.touch()
        os._exit(1)

    def release(pids: list[int]) -> None:
        draft = released.with_suffix(".new")
        draft.write_text(json.dumps(pids))
        draft.rename(released)

    try:
        os.close(pipe)
        keep(coordinator, socket.socket(), serve, release)
    finally:
        os._exit(0)
