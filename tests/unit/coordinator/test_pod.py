"""A pod seen from the coordinator, with a program that only speaks as pod init does."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from slurmckpt.coordinator import pod as pods
from slurmckpt.coordinator import pod_init
from slurmckpt.coordinator.pod_init import PodError
from slurmckpt.coordinator.proc import start_time
from tests.unit.awaiting import until
from tests.unit.coordinator.parts import channels, task
from tests.unit.coordinator.podstage import Node, built, end, play


def has_ended(pid: int) -> bool:
    """Whether the process is gone, or a zombie that nobody has waited for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture
def node(tmp_path: Path) -> Node:
    found = Node(tmp_path)
    found.pod_init()
    return found


def test_build(node: Node) -> None:
    async def scene() -> None:
        pod = await built(node)
        assert pod.status_key == os.readlink(f"/proc/self/fd/{pod.status_pipe}")
        assert node.note.read_text() == f"{pod.init_pid} {start_time(pod.init_pid)}\n"
        assert not pod.running
        await end(pod)
        assert not node.note.exists()
        assert (pod.status_pipe, pod.pidfd) == (-1, -1)

    play(scene)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('send("FAILED", "reason=cannot mount /proc: Permission denied")', "cannot mount /proc: Permission denied"),
        ("pass", "pod init ended without a word"),
        ('send("READY", f"pid={os.getpid()}")', "pod init ended without a word"),
        ('control.send(b"nonsense")', "a packet that does not end with a NUL byte"),
        ('send("READY", "pid=x", descriptors=[0])', "READY with pid='x'; a number is needed"),
        ('send("READY", "pid=7", descriptors=[0])', "READY without pid_max="),
        ('send("READY", "pid=4194304", "pid_max=32768", descriptors=[0])', "[Errno 3] No such process"),
    ],
)
def test_a_pod_that_cannot_be_built(node: Node, body: str, reason: str) -> None:
    node.pod_init(body)

    async def scene() -> None:
        with pytest.raises(PodError) as raised:
            await built(node)
        assert str(raised.value) == f"the pod of step 0 cannot be built: {reason}"

    asyncio.run(scene())


def test_a_missing_pod_init(node: Node) -> None:
    (node.settings.libexec / "pod-init").unlink()

    async def scene() -> None:
        with pytest.raises(PodError, match=r"the pod of step 0 cannot be built: .*No such file or directory"):
            await built(node)

    play(scene)


def test_a_pod_init_that_says_nothing_is_killed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_init, "_BUILD_SECONDS", 0.5)
    node.pod_init("import time; time.sleep(60)")
    start = pod_init.start
    started: list[Any] = []

    async def noted(*args: Any) -> Any:
        started.append(await start(*args))
        return started[-1]

    monkeypatch.setattr(pod_init, "start", noted)

    async def scene() -> None:
        with pytest.raises(PodError, match="the pod of step 0 cannot be built: no answer"):
            await built(node)
        (process,) = started
        await until(lambda: not Path(f"/proc/{process.pid}").exists())

    play(scene)


def test_a_pod_that_cannot_be_noted_is_ended(node: Node) -> None:
    (node.settings.run / "pods").touch()

    async def scene() -> None:
        pod = node.pod()
        with pytest.raises(PodError, match="cannot be built"):
            await pod.build(os.getpid(), "keep")
        assert has_ended(pod.init_pid)
        assert pod.pidfd == -1

    play(scene)


def test_start(node: Node) -> None:
    async def scene() -> None:
        pod = await built(node)
        pod.place = 2**63
        one, shim = channels()
        given = task(one, {1: os.open("/dev/null", os.O_RDWR), 2: os.open("/dev/null", os.O_RDWR)})
        given.keys = {1: "file[1:2]", 2: "file[1:2]"}
        await pod.start([given])
        message = await shim.receive()
        assert message is not None and message.verb == "RUN"
        await until(lambda: pod.tasks[0].pid == 101)
        assert pod.running
        leader, announced, go = node.heard
        libexec = node.settings.libexec
        user = "uid=1000 gid=100 groups=100,27"
        # The middle of 300 to 3145728.
        assert leader == f"LEADER path={libexec}/leader {user} ntasks=1 pid=1573014 deny=io_uring 0"
        assert pod.leader_pid == 1573014
        # The connection, the payload and two descriptors.
        assert announced.startswith("TASK index=0 ") and announced.endswith(" 4")
        assert go == "GO 0"
        assert (given.descriptors, given.payload) == ({}, -1)
        await end(pod)
        assert await shim.receive() is None
        shim.close()

    play(scene)


def test_a_shim_that_died_meanwhile_does_not_stop_the_others(node: Node) -> None:
    async def scene() -> None:
        pod = await built(node)
        dead, gone = channels()
        gone.close()
        alive, shim = channels()
        first, second = task(dead, ntasks=2), task(alive, index=1, ntasks=2)
        first.shim_pid = 2**22
        await pod.start([first, second])
        message = await shim.receive()
        assert message is not None and message.verb == "RUN"
        await until(lambda: len(node.heard) == 4)
        # Both are announced: pod init finds the end of the first connection and kills that task.
        assert [line.split()[:2] for line in node.heard[1:3]] == [["TASK", "index=0"], ["TASK", "index=1"]]
        await end(pod)
        shim.close()

    play(scene)


def test_adopt(node: Node) -> None:
    async def scene() -> None:
        pod = await built(node)
        pairs = [channels() for _ in range(3)]
        tasks = [task(one, index=index, ntasks=3) for index, (one, _) in enumerate(pairs)]
        pairs[2][1].close()
        await pod.adopt(107, [(111, tasks[0]), (0, tasks[1]), (113, tasks[2])])
        message = await pairs[0][1].receive()
        assert message is not None and message.verb == "RUN"
        await until(lambda: len(node.heard) == 4)
        # The second had ended before the checkpoint, the third's shim is gone.
        assert node.heard == ["ADOPT leader=107 0", "SHIM index=0 pid=111 1", "SHIM index=2 pid=113 1", "GO 0"]
        assert pod.leader_pid == 107
        for each in tasks:
            each.close()
        await end(pod)
        for _, shim in pairs[:2]:
            shim.close()

    play(scene)


def test_new_pids_go_on_where_they_were(node: Node) -> None:
    async def scene() -> None:
        pod = await built(node)
        assert (pod.pid_max, pod.last_pid) == (4194304, 0)
        await pod.continue_pids(31999)
        assert pod.last_pid == 777, "pod init has the last word"
        pod.pid_max = 32768
        await pod.continue_pids(999_999)
        assert node.heard == ["LASTPID pid=31999 0", "SYNC 0", "LASTPID pid=32767 0", "SYNC 0"]
        await end(pod)
        with pytest.raises(PodError, match="the pod of step 0 has ended"):
            await pod.continue_pids(5)

    play(scene)


def test_sync_and_kill(node: Node) -> None:
    async def scene() -> None:
        pod = await built(node)
        await pod.sync()
        await pod.kill_tasks()
        await pod.say("hello")
        assert node.heard == ["SYNC 0", "KILL 0", "SAY text=hello 0", "SYNC 0"]
        await end(pod)
        with pytest.raises(PodError, match="the pod of step 0 has ended"):
            await pod.sync()
        await pod.say("nobody hears this")

    play(scene)


def test_what_is_said_has_been_heard_when_the_pod_is_ended(node: Node) -> None:
    """A pod init that is slow must not lose it to the kill."""
    node.pod_init(
        """
        import time
        def slow(verb, words, descriptors):
            time.sleep(0.3)
            plain(verb, words, descriptors)
        time.sleep(0.3)
        serve(slow)
        """
    )

    async def scene() -> None:
        pod = await built(node)
        await pod.say("its tasks are killed")
        pod.destroy()
        await pod.gone()
        assert node.heard[0] == "SAY text=its tasks are killed 0"

    play(scene)


def test_each_who_waits_gets_an_answer_of_his_own(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when somebody before has given up."""
    monkeypatch.setattr(pods, "_SYNC_SECONDS", 0.2)
    node.pod_init(
        """
        asked = []
        def together(verb, words, descriptors):
            asked.append(verb)
            if len(asked) == 4:
                for one in asked:
                    send("SYNCED")
                asked.clear()
        serve(together)
        """
    )

    async def scene() -> None:
        pod = await built(node)
        with pytest.raises(PodError):
            await pod.sync()
        monkeypatch.setattr(pods, "_SYNC_SECONDS", 60)
        # The fourth SYNC brings the answer to the first, too, which must not count for another one.
        await asyncio.gather(*(pod.sync() for _ in range(3)))
        assert not pod._answers.are_expected("SYNCED")
        await end(pod)

    play(scene)


TELL = """
def tell(verb, words, descriptors):
    for message in {messages!r}:
        send(*message)
    control.recv(65536)  # SYNC: a connection that is closed with something unread loses what was said on it
    os._exit(0)
serve(tell)
"""


def test_the_life_of_tasks(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    messages = [
        ("STARTED", "index=0", "pid=101"),
        ("STARTED", "index=1", "pid=102"),
        ("SIGNALLED", "index=1", "n=15"),
        ("EXITED", "index=1", "status=15"),
        ("SOMETHING", "new=1"),
        ("FAILED", "reason=the leader has died"),
        ("DONE",),
    ]
    node.pod_init(TELL.format(messages=messages))

    async def scene() -> None:
        pod = await built(node)
        pod.tasks = {0: pods.TaskState(0, {}), 1: pods.TaskState(1, {})}
        await pod.say("go")
        await pod.ended.wait()
        await pod.gone()
        assert [(state.pid, state.status) for state in pod.tasks.values()] == [(101, None), (102, 15)]
        assert not pod.running

    play(scene)
    assert "step 0: task 1 gets signal 15" in caplog.text
    assert "pod init of step 0: the leader has died" in caplog.text


@pytest.mark.parametrize("message", [("EXITED", "index=7", "status=0"), ("EXITED", "index=0"), ("STARTED", "index=x")])
def test_a_word_that_makes_no_sense_is_the_end_and_not_a_pod_that_is_waited_for(
    node: Node, caplog: pytest.LogCaptureFixture, message: tuple[str, ...]
) -> None:
    node.pod_init(TELL.format(messages=[message]))

    async def scene() -> None:
        pod = await built(node)
        pod.tasks = {0: pods.TaskState(0, {})}
        await pod.say("go")
        await asyncio.wait_for(pod.ended.wait(), 60)
        await pod.gone()

    play(scene)
    assert "pod init of step 0: " in caplog.text


def test_any_number_of_callers_may_wait_for_the_end(node: Node) -> None:
    async def scene() -> None:
        pod = await built(node)
        waiting = [asyncio.create_task(pod.gone()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        pod.destroy()
        await waiting[0]
        await waiting[2]
        assert waiting[1].cancelled()
        await pod.gone()
        assert has_ended(pod.init_pid)

    play(scene)


def test_one_pod_right_after_another(node: Node) -> None:
    """As when a restore fails and the checkpoint before it is tried: the new connection gets the old one's number."""

    async def scene() -> None:
        for _ in range(3):
            pod = await built(node)
            await pod.sync()
            await end(pod)

    play(scene)


def test_a_build_that_is_cancelled_leaves_no_process(node: Node) -> None:
    pid_file = node.top / "pid"
    node.pod_init(f"open({str(pid_file)!r}, 'w').write(str(os.getpid()))\nimport time; time.sleep(60)")

    async def scene() -> None:
        building = asyncio.create_task(built(node))
        await until(lambda: pid_file.exists() and bool(pid_file.read_text()))
        building.cancel()
        with pytest.raises(asyncio.CancelledError):
            await building
        pid = pid_file.read_text()
        await until(lambda: not Path(f"/proc/{pid}").exists())

    play(scene)
