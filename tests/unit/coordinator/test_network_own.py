"""The namespaces of a pod with a network of its own, and what is said when it gets no way out."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
import subprocess
from pathlib import Path

import pytest

from slurmckpt.coordinator.network import NetworkError, namespace, way_out
from slurmckpt.coordinator.network.addresses import only_local_resolvers, speaks_ipv6
from slurmckpt.coordinator.network.namespace import Namespace
from slurmckpt.coordinator.proc import start_time
from tests.unit.awaiting import until
from tests.unit.coordinator.parts import proc_tree

UID, GID = 4242, 4343
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@needs_root
def test_the_job_s_user_is_root_in_it_and_not_its_owner() -> None:
    async def scene() -> None:
        made = await Namespace.create(UID, GID)
        try:
            assert os.stat(made.network).st_ino != os.stat("/proc/self/ns/net").st_ino
            assert Path(f"/proc/{made.holder}/uid_map").read_text().split() == ["0", str(UID), "1"]
            assert Path(f"/proc/{made.holder}/gid_map").read_text().split() == ["0", str(GID), "1"]
            status = Path(f"/proc/{made.holder}/status").read_text()
            assert f"Uid:\t{UID}\t{UID}\t{UID}\t{UID}\n" in status and f"Gid:\t{GID}\t{GID}\t{GID}\t{GID}\n" in status
            with open(made.users) as users:
                # ioctl_ns(2): NS_GET_OWNER_UID
                assert struct.unpack("=I", fcntl.ioctl(users, 0xB704, bytes(4))) == (0,)
        finally:
            made.close()
        assert not Path(made.network).exists()
        made.close()

    asyncio.run(scene())


@needs_root
def test_what_is_lost_on_the_way_to_pasta_is_missed_soon(tmp_path: Path) -> None:
    enter = tmp_path / "enter"
    enter.write_text('#!/bin/sh\npid=$2; shift 3\nexec nsenter --net=/proc/$pid/ns/net -- "$@"\n')
    enter.chmod(0o755)
    gateways = ["169.254.77.2"] + (["fd73:6c75:726d::2"] if speaks_ipv6() else [])

    def ip(pod: int, command: str) -> str:
        arguments = [str(enter), "--pid", str(pod), "--", "ip", *command.split()]
        return subprocess.run(arguments, capture_output=True, check=True, text=True).stdout

    async def scene() -> str:
        made = await Namespace.create(UID, GID)
        try:
            # As pasta leaves it.
            ip(made.holder, "link add tap0 type veth peer tap1")
            for link in ("tap0", "tap1"):
                ip(made.holder, f"link set {link} up")
            for address, gateway in zip(["169.254.77.1/30", "fd73:6c75:726d::1/64"], gateways, strict=False):
                ip(made.holder, f"address add {address} dev tap0 nodad")
                ip(made.holder, f"route add default via {gateway} dev tap0")
            await namespace.steady(enter, made.holder, gateways)
            with pytest.raises(NetworkError, match="ip in the pod"):
                await namespace.steady(enter, made.holder, ["192.0.2.1"])
            return ip(made.holder, "-4 route show default") + ip(made.holder, "-6 route show default")
        finally:
            made.close()

    found = asyncio.run(scene()).splitlines()
    assert len(found) == len(gateways)
    for line, gateway in zip(found, gateways, strict=True):
        assert f"via {gateway} dev tap0" in line and "rto_min lock 5ms congctl reno" in line


@pytest.fixture(autouse=True)
def open_tap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that everybody may open, as /dev/net/tun is on most nodes, but not on every machine that runs this."""
    monkeypatch.setattr(way_out, "_TUN", "/dev/null")


def test_a_tap_that_users_may_not_open_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pasta").write_text("#!/bin/sh\n")
    (tmp_path / "pasta").chmod(0o755)
    monkeypatch.setattr(way_out, "PATH", str(tmp_path))
    assert way_out.find("pasta") == str(tmp_path / "pasta")
    for device in (tmp_path / "missing", tmp_path / "closed"):
        (tmp_path / "closed").touch(0o600)
        monkeypatch.setattr(way_out, "_TUN", str(device))
        with pytest.raises(NetworkError, match=f"^pasta, as the job's user, cannot open {device}$"):
            way_out.find("pasta")


def test_what_cannot_be_made_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace, "PATH", str(tmp_path))
    with pytest.raises(NetworkError, match=r"^unshare cannot be executed: No such file or directory$"):
        asyncio.run(Namespace.create(UID, GID))
    (tmp_path / "unshare").write_text("#!/bin/sh\necho 'unshare failed: No space left on device' >&2; exit 1\n")
    (tmp_path / "unshare").chmod(0o755)
    with pytest.raises(NetworkError, match=r"^unshare failed: No space left on device$"):
        asyncio.run(Namespace.create(UID, GID))


@needs_root
@pytest.mark.parametrize(
    ("pasta", "reason"),
    [
        (None, "pasta is not installed"),
        ("echo one >&2; echo 'Failed to open() /dev/net/tun' >&2; exit 1", "pasta: Failed to open() /dev/net/tun"),
        ("exit 3", "pasta: it failed without a word"),
        ("exit 0", "pasta has ended"),
    ],
)
def test_no_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pasta: str | None, reason: str) -> None:
    if pasta is not None:
        (tmp_path / "pasta").write_text(f"#!/bin/sh\n{pasta}\n")
        (tmp_path / "pasta").chmod(0o755)
        tmp_path.chmod(0o755)

    async def scene() -> None:
        made = await Namespace.create(0, 0)
        try:
            with pytest.raises(NetworkError) as caught:
                await way_out.attach("pasta", made, made.holder, tmp_path / "note")
            assert str(caught.value) == reason
        finally:
            made.close()

    monkeypatch.setattr(way_out, "PATH", f"{tmp_path}:/usr/bin:/bin" if pasta else str(tmp_path))
    asyncio.run(scene())
    assert not (tmp_path / "note").exists()


OLD = """case "$*" in *auto,*) echo "Invalid port specifier" >&2; exit 1 ;; esac
"""


@needs_root
@pytest.mark.parametrize(
    ("age", "lacks"),
    [
        ("", ""),
        (
            OLD,
            "a port on which a program listens is reached from outside only if the kernel has chosen it"
            " (pasta: Invalid port specifier)",
        ),
    ],
    ids=["new", "old"],
)
def test_the_way_out_is_found_noted_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age: str, lacks: str
) -> None:
    """A stand-in that goes into the background as pasta does."""
    (tmp_path / "pasta").write_text(f"#!/bin/sh\n{age}sleep 60 >/dev/null 2>&1 </dev/null &\n")
    (tmp_path / "pasta").chmod(0o755)
    monkeypatch.setattr(way_out, "PATH", f"{tmp_path}:/usr/bin:/bin")

    async def scene() -> None:
        made = await Namespace.create(0, 0)
        note = tmp_path / "note"
        try:
            found = await way_out.attach("pasta", made, made.holder, note)
            assert found.lacks == lacks
            pid, started = (int(word) for word in note.read_text().split())
            assert start_time(pid) == started
            await until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
            ended = os.pidfd_open(pid)
            found.end()
            found.end()
            assert not note.exists()
            signal_seen = asyncio.Event()
            asyncio.get_running_loop().add_reader(ended, signal_seen.set)
            await asyncio.wait_for(signal_seen.wait(), 60)
            asyncio.get_running_loop().remove_reader(ended)
            os.close(ended)
        finally:
            made.close()

    asyncio.run(scene())


def test_a_block_of_ports_in_which_one_is_taken_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    first = way_out._free_ports()
    monkeypatch.setattr(way_out, "_FIRST_PORT", first.start)
    monkeypatch.setattr(way_out, "_LAST_PORT", first.stop - 1)
    assert way_out._free_ports() == first and len(first) == 256
    with socket.socket() as taken:
        taken.bind(("", first[5]))
        with pytest.raises(NetworkError, match=rf"^no 256 ports from {first.start} on are free$"):
            way_out._free_ports()


@needs_root
@pytest.mark.parametrize("again", [True, False])
def test_ports_that_another_restore_has_taken_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """pasta cannot listen: with other ports it can. Where the ports are free all the same, that was not the reason."""
    (tmp_path / "pasta").write_text(
        f"""#!/bin/sh
echo "$*" >>{tmp_path}/calls
[ $(wc -l <{tmp_path}/calls) -gt 2 ] || {{ echo "Couldn't listen on requested ports" >&2; exit 1; }}
sleep 60 >/dev/null 2>&1 </dev/null &
"""
    )
    (tmp_path / "pasta").chmod(0o755)
    monkeypatch.setattr(way_out, "PATH", f"{tmp_path}:/usr/bin:/bin")
    blocks = iter([range(61000, 61256), range(61256, 61512)])
    monkeypatch.setattr(way_out, "_free_ports", lambda: next(blocks))
    monkeypatch.setattr(way_out, "_are_free", lambda ports: not again)

    async def scene() -> None:
        made = await Namespace.create(0, 0)
        try:
            (await way_out.attach("pasta", made, made.holder, tmp_path / "note")).end()
        finally:
            made.close()

    if again:
        asyncio.run(scene())
    else:
        with pytest.raises(NetworkError, match=r"^pasta: Couldn't listen on requested ports$"):
            asyncio.run(scene())
    calls = (tmp_path / "calls").read_text().splitlines()
    assert ["61000-61255" in call for call in calls] == [True, True, False][: 3 if again else 2]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("00000000000000000000000000000001 01 80 10 80       lo", False),
        ("fe80000000000000021122fffe334455 02 40 20 80     eth0", False),
        ("20010db8000000000000000000000007 02 40 00 80     eth0", True),
    ],
)
def test_a_node_that_can_be_reached_by_ipv6(tmp_path: Path, line: str, wanted: bool) -> None:
    assert speaks_ipv6(proc_tree(tmp_path, {"net/if_inet6": line + "\n"})) is wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", False),
        ("nameserver 127.0.0.53\noptions edns0\nsearch x\n", True),
        ("nameserver ::1\nnameserver 127.0.0.1\n", True),
        ("nameserver 127.0.0.53\nnameserver 10.0.0.2\n", False),
        ("# nameserver 127.0.0.1\nnameserver fe80::1%eth0\nnameserver\n", False),
    ],
)
def test_resolvers_that_a_pod_cannot_reach(tmp_path: Path, text: str, wanted: bool) -> None:
    (tmp_path / "resolv.conf").write_text(text)
    assert only_local_resolvers(tmp_path / "resolv.conf") is wanted


def test_a_node_without_resolvers(tmp_path: Path) -> None:
    assert not only_local_resolvers(tmp_path / "resolv.conf")
