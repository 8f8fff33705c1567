"""What a pod init holds back, and what it is asked while it does."""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path

import pytest

from slurmckpt.coordinator import pod as pods
from slurmckpt.coordinator.pod import Held, Pod
from slurmckpt.coordinator.pod_init import PodError
from slurmckpt.coordinator.wire import Channel
from tests.unit.awaiting import until
from tests.unit.coordinator.parts import channels, task
from tests.unit.coordinator.podstage import Node, built, end, play


@pytest.fixture
def node(tmp_path: Path) -> Node:
    found = Node(tmp_path)
    found.pod_init()
    return found


HOLDER = """
def holder(verb, words, descriptors):
    plain(verb, words, descriptors)
    if verb == "GO":
        send("EXITED", "index=0", "status=11", "held=yes")
        send("HELD", "index=1", "n=15")
    if verb == "SYNC" and words[1:]:
        send("PASSED", "index=0")
serve(holder)
"""


async def held(node: Node) -> tuple[Pod, list[Held], list[Channel]]:
    """A pod with two tasks: the end of the first is held, and a signal of the second."""
    pod = await built(node)
    found: list[Held] = []
    pod.on_held = found.append
    await pod.hold(True, 1 << 14)
    pairs = [channels() for _ in range(2)]
    await pod.start([task(one, index=index, ntasks=2) for index, (one, _) in enumerate(pairs)])
    await until(lambda: len(found) == 2)
    return pod, found, [shim for _, shim in pairs]


def test_what_is_held_is_told_and_passed(node: Node) -> None:
    node.pod_init(HOLDER)

    async def scene() -> None:
        pod, found, shims = await held(node)
        assert found == [Held(0, status=11), Held(1, signal=15)]
        assert (pod.exits, pod.tasks[0].status, pod.running) == ({0: 11}, None, True)
        await pod.hold(False, 0, 0.25)
        for each in found:
            await pod.pass_on(each)
        # What is held no more is passed on again without harm.
        await pod.pass_on(found[0])
        assert (pod.exits, pod.tasks[0].status) == ({}, 11)
        await pod.sync()
        assert [line for line in node.heard if line.split()[0] in ("HOLD", "PASS")] == [
            "HOLD exits=yes signals=4000 0",
            "HOLD exits=no signals=0 patience=250 0",
            "PASS index=0 0",
            "PASS index=1 n=15 0",
            "PASS index=0 0",
        ]
        await end(pod)
        for shim in shims:
            shim.close()

    play(scene)


def test_what_passes_by_itself(node: Node) -> None:
    node.pod_init(HOLDER.replace('verb == "SYNC" and words[1:]', 'verb == "SAY"'))

    async def scene() -> None:
        pod, _, shims = await held(node)
        await pod.say("now")
        await until(lambda: pod.tasks[0].status == 11)
        assert pod.exits == {}
        await end(pod)
        for shim in shims:
            shim.close()

    play(scene)


def test_an_end_that_is_held_when_the_pod_ends(node: Node) -> None:
    node.pod_init(HOLDER)

    async def scene() -> None:
        pod, found, shims = await held(node)
        await end(pod)
        assert (pod.exits, pod.tasks[0].status) == ({}, 11)
        await pod.pass_on(found[1])
        await pod.hold(False, 0)
        for shim in shims:
            shim.close()

    play(scene)


def test_restored_behind_the_same_shims(node: Node) -> None:
    node.pod_init(HOLDER)

    async def scene() -> None:
        pod, _, shims = await held(node)
        pod.delivered[1] = {15}
        pod.close_status_pipe()
        await pod.kill_tasks()
        assert (pod.exits, pod.delivered, pod.tasks[0].status) == ({}, {}, None)
        pod.reopen_status_pipe()
        assert f"pipe:[{os.fstat(pod.status_pipe).st_ino}]" == pod.status_key
        assert fcntl.fcntl(pod.status_pipe, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
        await pod.adopt_again(107, {0: 111, 1: 113})
        await pod.sync()
        assert node.heard[-5:-1] == ["ADOPT leader=107 0", "SHIM index=0 pid=111 0", "SHIM index=1 pid=113 0", "GO 0"]
        assert pod.leader_pid == 107
        await end(pod)
        with pytest.raises((PodError, OSError)):
            pod.reopen_status_pipe()
        for shim in shims:
            shim.close()

    play(scene)


def test_a_pod_init_that_does_not_answer(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pods, "_SYNC_SECONDS", 0.05)
    # The second question gets the answer to the first as well: it must not be the end of the reader.
    node.pod_init(
        """
        questions = []
        def late(verb, words, descriptors):
            questions.append(verb)
            if len(questions) == 2:
                send("SYNCED")
                send("SYNCED")
        serve(late)
        """
    )

    async def scene() -> None:
        pod = await built(node)
        with pytest.raises(PodError, match="pod init of step 0 does not answer SYNC"):
            await pod.sync()
        monkeypatch.setattr(pods, "_SYNC_SECONDS", 60)
        await pod.sync()
        assert not pod.ended.is_set()
        await end(pod)

    play(scene)


def test_a_pod_that_dies_during_a_question(node: Node) -> None:
    node.pod_init("serve(lambda *_: os._exit(1))")

    async def scene() -> None:
        pod = await built(node)
        with pytest.raises(PodError, match="pod init of step 0 does not answer SYNC"):
            await pod.sync()
        await asyncio.wait_for(pod.ended.wait(), 60)
        await pod.gone()

    play(scene)
