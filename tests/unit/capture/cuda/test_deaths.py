"""Each participant of a capture of GPU state dies in each state of it, on a simulated device: no rank stays locked."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import psutil
import pytest

from tests.doubles import simulated
from tests.unit.capture.cuda.conftest import ROOT, Rank, StartRank

SECONDS = 60.0

# As coordinator/gpus.py does it: whatever happens, resume() comes last. It says where it is, and goes on at a line. In
# "restored" ranks have their GPUs and are locked, as those that CRIU has brought back until all of them are there.
_COORDINATOR = """
import asyncio, os, sys
from slurmckpt.capture.cuda.client import CudaClient
from slurmckpt.errors import SlurmckptError

async def say(state):
    print(state, flush=True)
    loop = asyncio.get_running_loop()
    # Not in a thread: who is interrupted would wait for that.
    told = loop.create_future()
    loop.add_reader(0, told.set_result, None)
    try:
        await told
    finally:
        loop.remove_reader(0)
    os.read(0, 1)

async def main():
    cuda = CudaClient({"SIMULATED_GPU": os.environ["SIMULATED_GPU"]})
    pids = [int(word) for word in sys.argv[1:] if word.isdecimal()]
    await cuda.devices()
    await say("open")
    for cycle in "12":
        try:
            await cuda.lock(pids, 5.0)
            await say("locked")
            await cuda.checkpoint(pids, 60)
            await say("checkpointed")
            if "restored" in sys.argv:
                await cuda.restore(pids, 60, [])
                await say("restored")
        except SlurmckptError as error:
            print("error", error, flush=True)
        try:
            await cuda.resume(pids, 60)
        except SlurmckptError as error:
            print("error", error, flush=True)
        await say("over")
    await cuda.close()

asyncio.run(main())
"""

CALLS = ("lock", "checkpoint", "restore", "unlock")
# In a call of the driver, before the rank has done its part and after it; and between the calls.
STATES = (*(f"{when} {call}" for call in CALLS for when in ("before", "after")), "locked", "checkpointed", "restored")


class Cast:
    """Everybody who takes part: two ranks, the coordinator, the agent that calls the driver, the agent's keeper."""

    def __init__(self, hardware: simulated.Hardware, ranks: Sequence[Rank], coordinator: subprocess.Popen[str]) -> None:
        self.hardware = hardware
        self.ranks = list(ranks)
        self.coordinator = coordinator
        self.agent = self.keeper = psutil.Process()
        self.told: list[str] = []

    def line(self) -> str:
        """What the coordinator says next; empty when it is gone."""
        assert self.coordinator.stdout is not None
        self.told.append(self.coordinator.stdout.readline().strip())
        return self.told[-1]

    def find_agent(self) -> None:
        """Who they are at this moment: another agent has another keeper."""
        (self.keeper,) = psutil.Process(self.coordinator.pid).children()
        (self.agent,) = self.keeper.children()

    def go_on(self) -> None:
        assert self.coordinator.stdin is not None
        self.coordinator.stdin.write("\n")
        self.coordinator.stdin.flush()

    def bring_into(self, state: str) -> None:
        when, _, call = state.rpartition(" ")
        if when:
            self.hardware.set(**{f"{call}__{when}": "wait"})
        self.go_on()
        if not when:
            while self.line() != state:
                self.go_on()
            return
        # What comes before that call goes through.
        for _ in range(("lock", "checkpoint").index(call) if call in ("lock", "checkpoint") else 2):
            assert self.line() in ("locked", "checkpointed")
            self.go_on()
        mark = self.hardware.directory / f"{call}.{when}"
        await_that(mark.exists, f"the driver comes to {state}")

    def let_calls_through(self) -> None:
        self.hardware.set(**{f"{call}__{when}": None for call in CALLS for when in ("before", "after")})

    def play_to_the_end(self) -> None:
        """Whatever the coordinator says, until it has gone through both cycles, and ends."""
        while (said := self.line()) or self.coordinator.poll() is None:
            if said and not said.startswith("error"):
                with suppress(BrokenPipeError):
                    self.go_on()
        assert self.coordinator.wait(SECONDS) == 0


def has_ended(process: psutil.Process) -> bool:
    """Whether it is gone, or is not waited for by its parent."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def await_that(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"it did not come: {what}"
        time.sleep(0.01)


def kill_coordinator(cast: Cast) -> None:
    cast.coordinator.kill()


def kill_agent(cast: Cast) -> None:
    cast.agent.kill()


def kill_keeper(cast: Cast) -> None:
    cast.keeper.kill()


def at_once(*kills: Callable[[Cast], None]) -> Callable[[Cast], None]:
    """None of them may act on the other's death."""

    def kill(cast: Cast) -> None:
        living = [cast.keeper, cast.agent, psutil.Process(cast.coordinator.pid)]
        for one in living:
            one.suspend()
        for each in kills:
            each(cast)
        for one in living:
            with suppress(psutil.NoSuchProcess):
                one.resume()

    return kill


def kill_rank(cast: Cast) -> None:
    cast.ranks.pop(0).kill()


def kill_all_ranks(cast: Cast) -> None:
    """As when their pod ends."""
    while cast.ranks:
        kill_rank(cast)


# Coordinator, agent and keeper at once are not among them: nobody is left then (docs/gpu.md).
PARTICIPANTS: dict[str, Callable[[Cast], None]] = {
    "coordinator": kill_coordinator,
    "agent": kill_agent,
    "keeper": kill_keeper,
    "coordinator and agent": at_once(kill_coordinator, kill_agent),
    "coordinator and keeper": at_once(kill_coordinator, kill_keeper),
    "agent and keeper": at_once(kill_agent, kill_keeper),
    "one rank": kill_rank,
    "all ranks": kill_all_ranks,
}


@contextmanager
def performance(hardware: simulated.Hardware, start_rank: StartRank, state: str) -> Iterator[Cast]:
    ranks = [start_rank(device) for device in range(2)]
    for rank in ranks:
        rank.do(f"alloc 100000 {rank.pid % 200}")
    environment = os.environ | hardware.environment | {"PYTHONPATH": str(ROOT / "src")}
    coordinator = subprocess.Popen(
        [sys.executable, "-c", _COORDINATOR, state, *(str(rank.pid) for rank in ranks)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    cast = Cast(hardware, ranks, coordinator)
    try:
        assert cast.line() == "open"
        cast.find_agent()
        yield cast
    finally:
        coordinator.kill()
        coordinator.communicate()
        for one in (cast.agent, cast.keeper):
            with suppress(psutil.NoSuchProcess):
                assert one.pid != os.getpid()
                one.kill()


def check_ranks(cast: Cast, before: dict[int, str]) -> None:
    """They run, with what they had."""
    for rank in cast.ranks:
        rank.tell("sha")
    for rank in cast.ranks:
        assert rank.answer(90.0) == before[rank.pid]


@pytest.mark.parametrize(("state", "who"), list(itertools.product(STATES, PARTICIPANTS)))
def test_who_dies_in_which_state(hardware: simulated.Hardware, start_rank: StartRank, state: str, who: str) -> None:
    with performance(hardware, start_rank, state) as cast:
        before = {rank.pid: rank.do("sha") for rank in cast.ranks}
        cast.bring_into(state)
        PARTICIPANTS[who](cast)
        cast.let_calls_through()
        if "coordinator" in who:
            check_ranks(cast, before)
            # And nobody stays behind.
            await_that(lambda: has_ended(cast.agent), "the agent ends")
            return
        if state in ("locked", "checkpointed", "restored"):
            cast.go_on()
        cast.play_to_the_end()
        check_ranks(cast, before)
        errors = [said for said in cast.told if said.startswith("error")]
        assert errors or who == "keeper"
        # The next cycle, with whoever is left, goes through.
        second = cast.told[cast.told.index("over") + 1 :]
        if who in ("agent", "keeper", "agent and keeper"):
            assert [said for said in second if said] == [
                "locked",
                "checkpointed",
                *(["restored"] * (state == "restored")),
                "over",
            ]
        if who == "keeper":
            assert not errors


# Only silence counts, after 20 s: one such state says enough. SIGINT ends the coordinator in an orderly way.
@pytest.mark.parametrize(
    ("state", "how"),
    [
        ("checkpointed", signal.SIGSTOP),
        ("locked", signal.SIGINT),
        ("after checkpoint", signal.SIGINT),
        ("checkpointed", signal.SIGINT),
    ],
)
def test_the_coordinator_stops_or_ends_in_a_state(
    hardware: simulated.Hardware, start_rank: StartRank, state: str, how: signal.Signals
) -> None:
    with performance(hardware, start_rank, state) as cast:
        before = {rank.pid: rank.do("sha") for rank in cast.ranks}
        cast.bring_into(state)
        cast.coordinator.send_signal(how)
        cast.let_calls_through()
        check_ranks(cast, before)


def test_a_lock_that_succeeds_after_the_coordinator_has_died_is_undone(
    hardware: simulated.Hardware, start_rank: StartRank
) -> None:
    """Rank 0 cannot be locked before its peer comes; that one is locked, and comes as soon as it is released."""
    with performance(hardware, start_rank, "lock") as cast:
        first, second = cast.ranks
        before = {rank.pid: rank.do("sha") for rank in cast.ranks}
        first.do("launch 1 2 0 1")
        hardware.at_pid("lock", "after", "wait", second.pid)
        cast.go_on()
        await_that((hardware.directory / "lock.after").exists, "the second rank is locked")
        cast.coordinator.kill()
        second.tell("launch 1 2 1 1")
        hardware.set(**{f"lock__after__{second.pid}": None})
        assert second.answer(90.0) == "ok"
        assert [rank.do("sync") for rank in cast.ranks] == ["ok", "ok"]
        await_that(lambda: not (cast.agent.is_running() and cast.agent.status() != "zombie"), "the agent ends")
        check_ranks(cast, before)
