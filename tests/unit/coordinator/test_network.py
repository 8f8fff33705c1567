"""Which addresses are this node's own, from /proc/net as kernels write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmckpt.coordinator.network import foreign, reachable
from tests.unit.coordinator.parts import proc_tree

FIB_TRIE = """\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 10.0.0.0/24 2 0 2
        |-- 10.0.0.0
           /24 link UNICAST
Local:
  +-- 0.0.0.0/0 3 0 5
     +-- 10.0.0.0/24 2 0 2
        +-- 10.0.0.0/28 2 0 2
           |-- 10.0.0.5
              /32 host LOCAL
        |-- 10.0.0.255
           /32 link BROADCAST
     +-- 127.0.0.0/8 2 0 2
        +-- 127.0.0.0/31 1 0 0
           |-- 127.0.0.0
              /8 host LOCAL
           |-- 127.0.0.1
              /32 host LOCAL
        |-- 127.255.255.255
           /32 link BROADCAST
"""
IF_INET6 = """\
00000000000000000000000000000001 01 80 10 80       lo
fe80000000000000021122fffe334455 02 40 20 80     eth0
20010db8000000000000000000000007 02 40 00 80     eth0
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    return proc_tree(tmp_path, {"net/fib_trie": FIB_TRIE, "net/if_inet6": IF_INET6})


def test_own_addresses_are_not_foreign(proc: Path) -> None:
    assert foreign(["10.0.0.5", "127.0.0.1", "::1", "2001:db8::7", "fe80::211:22ff:fe33:4455"], proc) == []


def test_other_addresses_are_in_their_order(proc: Path) -> None:
    # 10.0.0.0 and 10.0.0.255 stand in the table, but are not addresses of an interface.
    others = ["10.0.0.6", "2001:db8::8", "10.0.0.255", "10.0.0.0", "0.0.0.5"]
    assert foreign(["10.0.0.5", *others], proc) == others


def test_an_address_that_two_devices_have(tmp_path: Path) -> None:
    """As loopback and the way out of a pod that came back with a connection through an earlier way out."""
    line = "              /32 host LOCAL\n"
    assert line in FIB_TRIE
    proc = proc_tree(tmp_path, {"net/fib_trie": FIB_TRIE.replace(line, line * 2)})
    assert foreign(["10.0.0.5", "127.0.0.1", "10.0.0.6"], proc) == ["10.0.0.6"]
    assert reachable(proc) == ["10.0.0.5"]


def test_a_kernel_without_ipv6(tmp_path: Path) -> None:
    proc = proc_tree(tmp_path, {"net/fib_trie": FIB_TRIE})
    assert foreign(["10.0.0.5", "2001:db8::7"], proc) == ["2001:db8::7"]


def test_an_image_without_addresses(proc: Path) -> None:
    assert foreign([], proc) == []


def test_this_very_node() -> None:
    assert foreign(["192.0.2.1"]) == ["192.0.2.1"]
    assert foreign(["127.0.0.1"]) == []
