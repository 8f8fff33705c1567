"""Faults that somebody might put into the gate or into the capture of CUDA state, each of which a test must notice.

A mutant is one replacement in one file. tests/mutants/run.py makes each in a copy of the tree and runs the tests
that are named; tests/unit/test_mutants.py sees to it that the texts still are in the sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GATE = (
    "tests/unit/gate/test_boundary.py",
    "tests/unit/gate/test_deaths.py",
    "tests/unit/gate/test_layout.py",
    "tests/unit/gate/test_report.py",
    "tests/unit/gate/test_quiesce.py",
    "tests/unit/gate/test_random_programs.py",
)
PLUGIN = (
    "tests/unit/gate/test_plugin.py",
    "tests/unit/gate/test_chain.py",
    "tests/unit/gate/test_processes.py",
    "tests/unit/gate/test_double_programs.py",
)
CUDA = (
    "tests/unit/capture/cuda/test_group.py",
    "tests/unit/capture/cuda/test_client.py",
    "tests/unit/capture/cuda/test_replaced.py",
    "tests/unit/capture/cuda/test_deaths.py",
)
GPUS = ("tests/unit/coordinator/test_gpus.py",)


@dataclass(frozen=True)
class Mutant:
    """before: what stands in `file`, exactly once; after: what takes its place. tests: those that must notice.

    unnoticed: what is known of one that none of them notices yet.
    """

    name: str
    file: str
    before: str
    after: str
    tests: Sequence[str]
    unnoticed: str = ""


_BOUNDARY = "src/slurmckpt/capture/gate/boundary.py"
_JUDGE = "src/slurmckpt/capture/gate/judge.py"
_GROUP = "src/slurmckpt/capture/cuda/group.py"
_AGENT = "src/slurmckpt/capture/cuda/agent.py"
_KEEPER = "src/slurmckpt/capture/cuda/keeper.py"
_CLIENT = "src/slurmckpt/capture/cuda/client.py"
_QUIESCE = "src/slurmckpt/coordinator/quiesce.py"
_GPUS = "src/slurmckpt/coordinator/gpus.py"

MUTANTS = (
    # The way through the gate.
    Mutant("lags-never", "gate/lag.c", "  return lags;\n", "  return lags && false;\n", GATE),
    Mutant(
        "no-recheck-inside",
        "gate/enter.c",
        "  bool passes = may_pass(gate, own, thread);\n",
        "  bool passes = may_pass(gate, own, thread) || true;\n",
        GATE,
    ),
    Mutant(
        "nothing-expires",
        "gate/enter.c",
        "    atomic_store(&header->expired, sign.epoch);\n",
        "    atomic_store(&header->expired, sign.epoch - 1);\n",
        GATE,
    ),
    Mutant("leave-is-never-used-up", "gate/enter.c", "    atomic_store(&shared->taken, ", "    (void)(", GATE),
    Mutant(
        "the-held-stay-counted",
        "gate/enter.c",
        "    atomic_fetch_sub(&own->shared->held, 1);\n",
        "    atomic_fetch_sub(&own->shared->held, 0);\n",
        GATE,
    ),
    Mutant(
        "the-held-stay-inside",
        "gate/enter.c",
        "    atomic_fetch_add(&shared->exits, 1);\n",
        "    atomic_fetch_add(&shared->exits, 0);\n",
        GATE,
    ),
    Mutant(
        "joins-always",
        "gate/enter.c",
        "(thread == JOINING && gate_lags_in_joining(gate, own))",
        "thread == JOINING",
        GATE,
    ),
    Mutant(
        "joins-never",
        "gate/enter.c",
        "(thread == JOINING && gate_lags_in_joining(gate, own))",
        "(thread == JOINING && gate_lags_in_joining(gate, own) && false)",
        GATE,
    ),
    Mutant(
        "peers-not-known-yet",
        "gate/lag.c",
        "(atomic_load(&other->deferred) != 0 && atomic_load(&other->entries) != atomic_load(&other->exits))",
        "false",
        GATE,
    ),
    Mutant(
        "no-transfers",
        "gate/lag.c",
        " || behind_in_transfers(gate, thread, wide);",
        " || (false && behind_in_transfers(gate, thread, wide));",
        GATE,
    ),
    Mutant(
        "always-wide", "gate/lag.c", "  return wide || user == thread", "  return true || wide || user == thread", GATE
    ),
    Mutant(
        "never-wide",
        "gate/lag.c",
        "  return wide || user == thread",
        "  return (wide && false) || user == thread",
        GATE,
    ),
    Mutant(
        "the-left-are-forgotten",
        "gate/lag.c",
        "(state == GATE_PRESENT || state == GATE_LEFT)",
        "(state == GATE_PRESENT)",
        GATE,
    ),
    Mutant(
        "births-are-equal",
        "gate/members.c",
        "fetch_add(&gate->region->header.births, 1) + 1",
        "fetch_add(&gate->region->header.births, 0) + 1",
        GATE,
    ),
    Mutant("no-funeral", "gate/members.c", "  if (!gate->joined)\n", "  if (gate->pid == 0)\n", GATE),
    Mutant(
        "what-is-used-is-freed",
        "gate/members.c",
        "  if (!is_used) {\n",
        "  if (!is_used || true) {\n    *(struct gate_member *volatile *)&own->shared = NULL;\n",
        GATE,
    ),
    Mutant(
        "dropped-sends-stay",
        "gate/enter.c",
        "    forget_dropped(own);\n",
        "    own->known = own->called, forget_dropped(own);\n",
        GATE,
    ),
    # The coordinator's side.
    Mutant("one-snapshot", _BOUNDARY, "if stands and verdict.is_boundary", "if verdict.is_boundary", GATE),
    Mutant(
        "nobody-is-let-through",
        _BOUNDARY,
        "            self._release_one(snapshot, verdict)\n",
        "            pass\n",
        GATE,
    ),
    Mutant("leave-stays", _BOUNDARY, "            if not leave:\n", "            if True:\n", GATE),
    Mutant(
        "old-leave-stays",
        _BOUNDARY,
        "            if member.granted != member.taken:\n",
        "            if False:\n",
        GATE,
    ),
    Mutant("wide-stays", _BOUNDARY, "        self._region.write(layout.WIDE_AT, 0)\n", "", GATE),
    Mutant("given-up-and-closed", _BOUNDARY, "        self.open()\n        reason =", "        reason =", GATE),
    Mutant("an-error-leaves-it-closed", _BOUNDARY, "        closing.open()\n        raise\n", "        raise\n", GATE),
    Mutant("released-and-closed", _BOUNDARY, "        self._closing.open()\n", "        pass\n", GATE),
    Mutant(
        "opened-from-inside",
        _BOUNDARY,
        "header.closed and header.epoch == epoch and header.expired != epoch",
        "header.closed and header.epoch == epoch",
        GATE,
    ),
    Mutant(
        "it-holds-for-ever",
        _BOUNDARY,
        "return _is_closed(snapshot.header, self.epoch) and judge(snapshot, self._alive).is_boundary",
        "return judge(snapshot, self._alive).is_boundary",
        GATE,
    ),
    Mutant("no-signs-of-life", _BOUNDARY, "                self._closing.beat()\n", "                pass\n", GATE),
    Mutant("inside-does-not-count", _JUDGE, "        if member.is_inside:\n", "        if False:\n", GATE),
    Mutant("not-launched-yet", _JUDGE, "        elif member.deferred:\n", "        elif False:\n", GATE),
    Mutant("sends-do-not-count", _JUDGE, "            if sent > their_received:\n", "            if False:\n", GATE),
    Mutant("receives-do-not-count", _JUDGE, "            if received > their_sent:\n", "            if False:\n", GATE),
    Mutant("members-may-be-missing", _JUDGE, "    if len(members) < ranks:\n", "    if False:\n", GATE),
    Mutant(
        "who-joins-does-not-count", _JUDGE, "    if member.is_inside or not member.held:\n", "    if False:\n", GATE
    ),
    Mutant(
        "the-dead-join",
        _JUDGE,
        "member.state is State.JOINING and alive(member.pid)",
        "member.state is State.JOINING",
        GATE,
    ),
    Mutant("pods-that-could-stand-stay", _QUIESCE, "    if missed:\n        quiesced.release()\n", "", GATE),
    Mutant(
        "the-cancelled-leave-them",
        _QUIESCE,
        "    except BaseException:\n        quiesced.release()\n        raise\n",
        "    except BaseException:\n        raise\n",
        GATE,
    ),
    Mutant("not-asked-again", _QUIESCE, "        if not holds:\n", "        if False:\n", GATE),
    Mutant(
        "not-released",
        _QUIESCE,
        "        finally:\n            quiesced.release()\n",
        "        finally:\n            pass\n",
        GATE,
    ),
    # The plugin.
    Mutant(
        "children-are-ranks",
        "gate/plugin.c",
        "  pthread_atfork(NULL, NULL, become_passive);\n",
        "  (void)become_passive;\n",
        PLUGIN,
    ),
    Mutant("captured-counts", "gate/plugin.c", "    if (event->coll_api.captured)\n", "    if (false)\n", PLUGIN),
    Mutant(
        "a-send-ends-its-group",
        "gate/plugin.c",
        "    *handle = &own_group;\n",
        "    *handle = &own_event;\n",
        PLUGIN,
    ),
    Mutant("held-in-the-middle", "gate/plugin.c", "    gate_exit(&thread.group);\n", "", PLUGIN),
    # All ranks at once.
    Mutant(
        "a-missed-lock-stays",
        _GROUP,
        "            self.release([pid for pid in pids if pid not in theirs])\n",
        "",
        CUDA,
    ),
    Mutant(
        "others-locks-are-ours",
        _GROUP,
        "theirs = {pid for pid, error in failures.items() if error.code == errors.ILLEGAL_STATE}",
        "theirs = set[int]()",
        CUDA,
    ),
    Mutant(
        "a-failed-checkpoint-stays",
        _GROUP,
        "        if failures:\n            self.release(pids)\n",
        "        if failures:\n",
        CUDA,
    ),
    Mutant("held-too-late", _GROUP, "        self.held |= set(pids)\n", "", CUDA),
    Mutant("release-heeds", _GROUP, "self._free(pid, pairs), heeding=False)", "self._free(pid, pairs))", CUDA),
    Mutant("one-after-the-other", _GROUP, "max_workers=at_once or len(pids)", "max_workers=1", CUDA),
    Mutant("stuck-stays-silent", _GROUP, "        if reasons:\n", "        if False:\n", CUDA),
    # Who looks after them.
    Mutant(
        "the-agent-just-ends",
        _AGENT,
        "        finally:\n            self._end()\n",
        "        finally:\n            pass\n",
        CUDA,
    ),
    Mutant("silence-is-no-death", _AGENT, "self._channel], [], [], SILENCE_SECONDS)", "self._channel], [], [])", CUDA),
    Mutant(
        "only-before-the-call", _AGENT, "        for wait in (True, False):\n", "        for wait in (True,):\n", CUDA
    ),
    Mutant(
        "the-keeper-just-ends",
        _KEEPER,
        "    if _returned(child) or not held.read():\n",
        "    if _returned(child) or True:\n",
        CUDA,
    ),
    Mutant(
        "the-keeper-is-early",
        _KEEPER,
        "        select.select([pidfd], [], [])\n",
        "        pass\n",
        CUDA,
    ),
    Mutant(
        "nobody-takes-over",
        _CLIENT,
        "                await self._replace(error, patience if isinstance(patience, float) else 0.0)\n",
        "",
        CUDA,
    ),
    Mutant(
        "a-late-lock",
        _CLIENT,
        "            await asyncio.sleep(lock_seconds)\n            await self._release()\n",
        "            pass\n",
        CUDA,
    ),
    Mutant(
        "no-second-agent",
        _CLIENT,
        "_AGENTS = 3\n",
        "_AGENTS = 1\n",
        CUDA,
    ),
    Mutant(
        "who-asks-may-leave",
        _CLIENT,
        "return await asyncio.shield(asyncio.ensure_future(self._in_turn(verb, list(pids), limit, arguments)))",
        "return await self._in_turn(verb, list(pids), limit, arguments)",
        CUDA,
    ),
    Mutant(
        "no-second-keeper",
        _CLIENT,
        "and self._process.poll() is not None:\n",
        "and self._process.poll() == 77:\n",
        CUDA,
    ),
    Mutant(
        "no-beat",
        _CLIENT,
        "        self._beating = asyncio.create_task(self._beat(self._writer))\n",
        "",
        CUDA,
    ),
    # The cut.
    Mutant("not-resumed", _GPUS, "            await uninterrupted(self._resume(users))\n", "", GPUS),
    Mutant(
        "the-cancelled-let-it-be", _GPUS, "await uninterrupted(self._resume(users))", "await self._resume(users)", GPUS
    ),
    Mutant(
        "the-stuck-live",
        _GPUS,
        "                    os.kill(pid, signal.SIGKILL)\n",
        "                    pass\n",
        GPUS,
    ),
    Mutant(
        "a-device-stays-open", _GPUS, "                await asyncio.to_thread(_check_devices_gone, users)\n", "", GPUS
    ),
    Mutant(
        "no-second-try",
        _GPUS,
        "        for left in reversed(range(settings.lock_tries)):\n",
        "        for left in (0,):\n",
        GPUS,
    ),
    Mutant("memory-is-not-looked-at", _GPUS, "        await asyncio.to_thread(_check_memory, users)\n", "", GPUS),
)
