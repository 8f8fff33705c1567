"""TCP connections that CRIU repairs take no resets until the coordinator says so, and then as any other."""

from __future__ import annotations

import ctypes
import os
import select
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from slurmckpt.capture import resets
from slurmckpt.capture.processes import Process
from tests.unit.pod.harness import POD

pytestmark = pytest.mark.root

# Loads the plugin and begins its stage, as CRIU does; then it repairs a connection to nobody, and ends the repair: the
# kernel asks the other end for its window.
PROGRAM = r"""
#include <arpa/inet.h>
#include <dlfcn.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

struct plugin { const char *name; int (*init)(int stage); };

int main(int argc, char **argv)
{
	struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}, other = own;
	struct sock_filter filter[16] = {0};
	struct pollfd look = {0};
	socklen_t count = 16;
	int on = 1, off = 0;
	void *library = dlopen(argv[1], RTLD_NOW);
	struct plugin *plugin = library ? dlsym(library, "CR_PLUGIN_DESC") : NULL;
	const int fd = socket(AF_INET, SOCK_STREAM, 0), plain = socket(AF_INET, SOCK_STREAM, 0);

	if (argc != 3 || !plugin || plugin->init(atoi(argv[2])))
		return 1;
	other.sin_port = htons(9);
	if (setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &on, sizeof(on)) || bind(fd, (void *)&own, sizeof(own)))
		return 2;
	if (connect(fd, (void *)&other, sizeof(other)) || setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &off, sizeof(off)))
		return 3;
	look.fd = fd;
	poll(&look, 1, 200);
	if (getsockopt(fd, SOL_SOCKET, SO_GET_FILTER, filter, &count))
		return 4;
	printf("%d ", !!(look.revents & POLLERR));
	for (size_t i = 0; i < count * sizeof(filter[0]); i++)
		printf("%02x", ((unsigned char *)filter)[i]);
	count = 16;
	if (bind(plain, (void *)&own, sizeof(own)) || getsockopt(plain, SOL_SOCKET, SO_GET_FILTER, filter, &count))
		return 5;
	printf(" %u\n", count);
	return 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("resets")
    (directory / "resets.c").write_text(PROGRAM)
    subprocess.run(["cc", "-D_GNU_SOURCE", "-o", "resets", "resets.c", "-ldl"], cwd=directory, check=True)
    return directory / "resets"


def told(program: Path, stage: int) -> str:
    done = subprocess.run([program, POD / "restart.so", str(stage)], capture_output=True, text=True, check=True)
    return done.stdout


def test_a_repaired_connection_takes_no_reset_and_has_the_filter_that_is_known(program: Path) -> None:
    assert told(program, 2) == f"0 {resets._FILTER.hex()} 0\n"


def test_at_a_dump_nothing_is_changed(program: Path) -> None:
    assert told(program, 0) == "1  0\n"


def repaired(filter_: bytes, family: socket.AddressFamily = socket.AF_INET) -> socket.socket:
    """A connection to nobody, with this filter; under repair."""
    program = ctypes.create_string_buffer(filter_, len(filter_))
    one = socket.socket(family, socket.SOCK_STREAM)
    if filter_:
        fprog = bytes(ctypes.c_uint64(len(filter_) // 8)) + bytes(ctypes.c_uint64(ctypes.addressof(program)))
        one.setsockopt(socket.SOL_SOCKET, 26, fprog)
    one.setsockopt(socket.IPPROTO_TCP, 19, 1)
    one.connect(("::1" if family == socket.AF_INET6 else "127.0.0.1", 9))
    return one


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "tcp-stream-1.img").touch()
    me = cast(Process, SimpleNamespace(pid=os.getpid(), ns_pid=1))
    monkeypatch.setattr(resets, "pod_processes", lambda init_pid: [me])
    yield tmp_path


def is_reset(one: socket.socket) -> bool:
    """When it asks the other end for its window."""
    one.setsockopt(socket.IPPROTO_TCP, 19, 0)
    poll = select.poll()
    poll.register(one, 0)
    return bool(poll.poll(200))


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_they_are_let_through(images: Path, family: socket.AddressFamily) -> None:
    with repaired(resets._FILTER, family) as one:
        resets.let_through(1, images)
        assert is_reset(one)


# The first is what programs may set themselves to the same end: CRIU has restored it.
@pytest.mark.parametrize("own", [resets._FILTER[:-8] + b"\x06\0\0\0\xff\xff\xff\xff", resets._FILTER * 2])
def test_a_filter_of_the_programs_own_stays(images: Path, own: bytes) -> None:
    with repaired(own) as one:
        resets.let_through(1, images)
        assert not is_reset(one)


def test_without_connections_in_the_images_nothing_is_looked_at(images: Path) -> None:
    (images / "tcp-stream-1.img").unlink()
    with repaired(resets._FILTER) as one:
        resets.let_through(1, images)
        assert not is_reset(one)
