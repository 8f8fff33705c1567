"""CRIU's RPC, spoken with a program that answers as `criu swrk` does."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from slurmckpt.capture import criu
from slurmckpt.capture.criu import (
    CriuDied,
    CriuError,
    CriuMoment,
    DumpHooks,
    Installation,
    Limits,
    RestoreHooks,
    Target,
    installation,
)

SOURCE = Path(__file__).resolve().parents[3] / "src"

# `enter ... -- CRIU swrk FD` in one: BODY talks on the socket.
PROGRAM = """\
#!{python}
import os, socket, sys
sys.path[:0] = {path!r}
from slurmckpt.capture import criu_rpc_pb2 as rpc
open({top!r} + "/arguments", "w").write("\\n".join(sys.argv[1:]))
open({top!r} + "/environment", "w").write("\\n".join(f"{{k}}={{v}}" for k, v in sorted(os.environ.items())))
channel = socket.socket(fileno=int(sys.argv[-1]))
def heard():
    packet = channel.recv(1 << 20)
    return rpc.criu_req.FromString(packet) if packet else None
def notify(script):
    word = rpc.criu_resp(type=rpc.NOTIFY, success=True, notify=rpc.criu_notify(script=script))
    channel.send(word.SerializeToString())
    return heard()
def answer(success, kind, **more):
    channel.send(rpc.criu_resp(type=kind, success=success, **more).SerializeToString())
request = heard()
images = request.opts.images_dir
{body}
"""


class Node:
    def __init__(self, top: Path) -> None:
        self.top = top
        self.images = top / "images"
        self.images.mkdir()
        self.events: list[str] = []
        self.external: Sequence[str] = ["file[1:2]"]
        self.frozen_error: BaseException | None = None

    def program(self, body: str) -> None:
        path = self.top / "enter"
        text = PROGRAM.format(
            python=sys.executable, path=[str(SOURCE), *sys.path], top=str(self.top), body=textwrap.dedent(body)
        )
        path.write_text(text)
        path.chmod(0o755)

    def installation(self, real_id: bool = False) -> Installation:
        return Installation("/usr/sbin/criu", "4.2.1", real_id, self.top / "failure.log")

    def target(self, *cgroups: Path) -> Target:
        return Target(self.top / "enter", 4242, 1000, 100, cgroups)

    def dump(self, real_id: bool = False) -> None:
        async def frozen() -> Sequence[str]:
            self.events.append("frozen")
            if self.frozen_error is not None:
                raise self.frozen_error
            return self.external

        async def dumped() -> None:
            self.events.append("dumped")

        hooks = DumpHooks(lambda: self.events.append("starting"), frozen, dumped)
        limits = Limits(600, 1 << 30)
        asyncio.run(
            asyncio.wait_for(criu.dump(self.installation(real_id), self.target(), 100, self.images, limits, hooks), 60)
        )

    def restore(self, inherit: dict[str, int], *cgroups: Path) -> None:
        async def restored() -> None:
            self.events.append("restored")

        asyncio.run(
            asyncio.wait_for(
                criu.restore(self.installation(), self.target(*cgroups), self.images, RestoreHooks(restored, inherit)),
                20,
            )
        )

    @property
    def arguments(self) -> list[str]:
        return (self.top / "arguments").read_text().splitlines()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


GOOD_DUMP = """
notify("pre-dump")
external = notify("query-ext-files").opts.external
open(images + "/external", "w").write(" ".join(external))
said = notify("post-dump")
assert said.notify_success
answer(True, rpc.DUMP)
heard()
"""


def test_a_dump(node: Node) -> None:
    before = set(os.listdir("/proc/self/fd"))
    node.program(GOOD_DUMP + 'open(images + "/request", "w").write(str(request))')
    node.dump()
    assert node.events == ["starting", "frozen", "dumped"]
    assert (node.images / "external").read_text() == "file[1:2]"
    assert node.arguments[:4] == ["--pid", "4242", "--keep-ipc", "--guard"]
    assert node.arguments[5:8] == ["--", "/usr/sbin/criu", "swrk"]
    request = (node.images / "request").read_text()
    for field in ("type: DUMP", "images_dir_fd: -1", "pid: 100", "leave_running: true", "tcp_established: true"):
        assert field in request
    for field in ("network_lock: SKIP", "manage_cgroups: false", "ghost_limit: 1073741824", "timeout: 600"):
        assert field in request
    assert set(os.listdir("/proc/self/fd")) == before


def test_criu_gets_a_clean_environment_and_no_plugins(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD_OF_A_USER", "x")
    node.program(GOOD_DUMP)
    node.dump()
    names = dict(line.partition("=")[::2] for line in (node.top / "environment").read_text().splitlines())
    assert "LD_PRELOAD_OF_A_USER" not in names
    assert names["CRIU_LIBS_DIR"] == str(node.top / "criu-plugins")


def test_the_jobs_real_ids_where_root_lacks_a_capability(node: Node) -> None:
    node.program(GOOD_DUMP)
    node.dump(real_id=True)
    assert node.arguments[:6] == ["--pid", "4242", "--keep-ipc", "--real-id", "1000:100", "--guard"]


@pytest.mark.parametrize("error", [CriuError("output did not settle"), KeyError("a fault of ours"), OSError(5, "io")])
def test_a_hook_that_fails_aborts_the_dump_and_its_own_error_comes_out(node: Node, error: Exception) -> None:
    node.program(
        """
        notify("pre-dump")
        said = notify("query-ext-files")
        open(images + "/said", "w").write(str(said.notify_success))
        answer(False, rpc.DUMP, cr_errmsg="aborted by a script")
        heard()
        """
    )
    node.frozen_error = error
    with pytest.raises(type(error)) as raised:
        node.dump()
    assert raised.value is error
    assert (node.images / "said").read_text() == "False"


def test_a_hook_that_fails_and_a_criu_that_dies_of_it(node: Node) -> None:
    node.program('notify("query-ext-files")')
    node.frozen_error = CriuError("output did not settle")
    with pytest.raises(CriuError, match=r"^output did not settle$"):
        node.dump()


def test_a_dump_that_criu_refuses(node: Node) -> None:
    node.program(
        """
        open(images + "/dump.log", "w").write("(00.1) Error (x.c:1): something nobody has seen yet")
        answer(False, rpc.DUMP, cr_errmsg="Error: something nobody\\nhas seen yet")
        """
    )
    with pytest.raises(CriuError) as raised:
        node.dump()
    assert "something nobody" in str(raised.value) and "\n" not in str(raised.value)
    assert type(raised.value) is CriuError
    kept = node.top / "failure.log"
    assert "nobody has seen yet" in kept.read_text()
    # CRIU's log names files and commands of the job's user.
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_a_dump_that_met_a_moment(node: Node) -> None:
    error = "(00.1) Error (criu/sk-inet.c:185): inet: In-flight connection (l) for 52c43bc"
    node.program(f"""open(images + "/dump.log", "w").write({error!r}); answer(False, rpc.DUMP)""")
    with pytest.raises(CriuMoment, match="the next checkpoint will do"):
        node.dump()


def test_the_failure_log_is_closed_to_others_even_if_it_was_not(node: Node) -> None:
    (node.top / "failure.log").write_text("older, and longer than what comes now " * 100)
    (node.top / "failure.log").chmod(0o644)
    node.program('open(images + "/dump.log", "w").write("new"); answer(False, rpc.DUMP)')
    with pytest.raises(CriuError):
        node.dump()
    kept = node.top / "failure.log"
    assert (kept.read_text(), stat.S_IMODE(kept.stat().st_mode)) == ("new", 0o600)


def test_what_enter_says_when_criu_was_not_even_started(node: Node) -> None:
    node.program('print("slurmckpt: enter: cannot join the pid namespace: gone", file=sys.stderr); sys.exit(1)')
    with pytest.raises(CriuError, match=r"^CRIU refused the dump: slurmckpt: enter: cannot join the pid namespace"):
        node.dump()


def test_a_criu_that_dies_without_a_word(node: Node) -> None:
    node.program('notify("pre-dump"); os.kill(os.getpid(), 9)')
    with pytest.raises(CriuDied, match=r"^CRIU refused the dump: it ended without an answer$"):
        node.dump()


def test_much_talk_on_stderr_does_not_block(node: Node) -> None:
    node.program('sys.stderr.write("x" * 1_000_000); sys.stderr.flush()' + GOOD_DUMP)
    node.dump()
    assert node.events == ["starting", "frozen", "dumped"]


def test_a_missing_enter(node: Node) -> None:
    with pytest.raises(CriuError, match="enter cannot be executed: No such file or directory"):
        node.dump()


def test_a_restore(node: Node) -> None:
    reader, writer = os.pipe()
    node.program(
        """
        assert request.opts.images_dir_fd == -1 and not request.opts.leave_running
        assert [(each.ns, each.ns_file) for each in request.opts.join_ns] == [("ipc", "1")]
        for each in request.opts.inherit_fd:
            os.write(each.fd, each.key.encode())
        said = notify("setup-namespaces")
        said = notify("pre-resume")
        assert said.notify_success
        answer(True, rpc.RESTORE, restore=rpc.criu_restore_resp(pid=100))
        heard()
        """
    )
    node.restore({"pipe:[7]": writer}, Path("/sys/fs/cgroup/a/cgroup.procs"))
    assert node.events == ["restored"]
    cgroup = ["--cgroup", "/sys/fs/cgroup/a/cgroup.procs"]
    assert node.arguments[:6] == ["--pid", "4242", "--keep-ipc", *cgroup, "--guard"]
    os.close(writer)
    assert os.read(reader, 100) == b"pipe:[7]"
    os.close(reader)


def test_a_criu_that_is_killed_when_all_is_restored(node: Node) -> None:
    """Nothing was left for it but to let the processes go, and the kernel does that."""
    node.program('notify("pre-resume"); os.kill(os.getpid(), 9)')
    node.restore({})
    assert node.events == ["restored"]
    node.program('notify("post-restore"); os.kill(os.getpid(), 9)')
    with pytest.raises(CriuError, match=r"^CRIU refused the restore: it ended without an answer$"):
        node.restore({})


def test_a_restore_that_criu_refuses(node: Node) -> None:
    node.program('answer(False, rpc.RESTORE, cr_errmsg="nobody knows why")')
    with pytest.raises(CriuError, match=r"^CRIU refused the restore: nobody knows why$"):
        node.restore({})
    assert node.events == []


def find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, program: str = "criu") -> Installation:
    path = tmp_path / "criu"
    path.write_text(f"#!/bin/sh\n{says}\n")
    path.chmod(0o755)
    monkeypatch.setattr(installation, "PATH", str(tmp_path))
    return criu.find(program, "auto")


@pytest.mark.parametrize(
    ("says", "version"), [("echo Version: 4.2.1", "4.2.1"), ("echo 'Version: v3.17'; echo GitID: x", "3.17")]
)
def test_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, version: str) -> None:
    found = find(tmp_path, monkeypatch, says)
    assert (found.program, found.version) == (str(tmp_path / "criu"), version)


def test_no_criu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CriuError, match=r"^CRIU is not installed \(criu-dev was looked up in "):
        find(tmp_path, monkeypatch, "true", "criu-dev")


@pytest.mark.parametrize("says", ["true", "echo 'criu: error while loading shared libraries' >&2; exit 127"])
def test_a_criu_that_does_not_tell_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str) -> None:
    with pytest.raises(CriuError, match="--version does not tell a version"):
        find(tmp_path, monkeypatch, says)


@pytest.mark.parametrize(
    ("capabilities", "real_id", "needed"),
    [
        ("000001ffffffffff", "auto", False),
        ("000001fffeffffff", "auto", True),
        ("000001fffeffffff", "never", False),
        ("0000000001000000", "auto", False),
    ],
)
def test_whether_real_ids_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capabilities: str, real_id: str, needed: bool
) -> None:
    path = tmp_path / "criu"
    path.write_text("#!/bin/sh\necho Version: 4.2.1\n")
    path.chmod(0o755)
    monkeypatch.setattr(installation, "PATH", str(tmp_path))
    text = f"Name:\tx\nCapEff:\t{capabilities}\n"
    monkeypatch.setattr(Path, "read_text", lambda self, **_: text)
    assert criu.find("criu", real_id).needs_real_id is needed
