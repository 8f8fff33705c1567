"""restart.so at a restore: unix sockets that CRIU makes have the job's user for their peers, pipes for their owner."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.unit.pod.harness import POD

pytestmark = pytest.mark.root

# Loads the plugin and begins its stage, as CRIU does; then calls as CRIU does.
PROGRAM = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

struct plugin { const char *name; int (*init)(int stage); };

static void tell(const char *what, int fd)
{
	struct ucred one = {0};
	socklen_t length = sizeof(one);

	getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &one, &length);
	printf("%s %d %u:%u\n", what, one.pid == getpid(), one.uid, one.gid);
}

int main(int argc, char **argv)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int ends[2], listener, client, server;
	uid_t real, effective, saved;
	struct stat status;
	void *library = dlopen(argv[1], RTLD_NOW);
	struct plugin *plugin = library ? dlsym(library, "CR_PLUGIN_DESC") : NULL;

	if (!plugin || plugin->init(atoi(argv[2])))
		return 1;
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
		return 2;
	tell("pair", ends[0]);
	listener = socket(AF_UNIX, SOCK_STREAM, 0);
	client = socket(AF_UNIX, SOCK_STREAM, 0);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", argv[3]);
	if (bind(listener, (void *)&address, sizeof(address)) || listen(listener, 5))
		return 3;
	chmod(argv[3], 0777);
	if (connect(client, (void *)&address, sizeof(address)))
		return 4;
	server = accept(listener, NULL, NULL);
	tell("listener", client);
	tell("client", server);
	if (pipe(ends) || fstat(ends[0], &status))
		return 5;
	printf("pipe %u:%u\n", status.st_uid, status.st_gid);
	getresuid(&real, &effective, &saved);
	printf("ids %u %u %u\n", real, effective, saved);
	return argc != 4;
}
"""


@pytest.fixture(scope="module", params=["-Wl,-z,now,-z,relro", "-Wl,-z,lazy"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("peers")
    (directory / "peers.c").write_text(PROGRAM)
    command = ["cc", "-D_GNU_SOURCE", request.param, "-o", "peers", "peers.c", "-ldl"]
    subprocess.run(command, cwd=directory, check=True)
    return directory / "peers"


def told(program: Path, stage: int, directory: Path, user: str) -> list[str]:
    done = subprocess.run(
        [program, POD / "restart.so", str(stage), directory / "socket"],
        env={**os.environ, "SLURMCKPT_USER": user},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_the_user_is_at_the_other_end(program: Path) -> None:
    # pytest's own directories are root's alone.
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o777)
        lines = told(program, 2, Path(directory), "4321:4322")
    assert lines == ["pair 1 4321:4322", "listener 1 4321:4322", "client 1 4321:4322", "pipe 4321:4322", "ids 0 0 0"]


def test_where_the_user_may_not_go_root_connects(program: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    lines = told(program, 2, tmp_path, "4321:4322")
    assert lines == ["pair 1 4321:4322", "listener 1 4321:4322", "client 1 0:0", "pipe 4321:4322", "ids 0 0 0"]


@pytest.mark.parametrize("user", ["", "4321", "4321:", "x:1", "4321:4322:1", "99999999999:1"])
def test_without_a_user_nothing_is_changed(program: Path, tmp_path: Path, user: str) -> None:
    assert told(program, 2, tmp_path, user)[:1] == ["pair 1 0:0"]


def test_at_a_dump_nothing_is_changed(program: Path, tmp_path: Path) -> None:
    assert told(program, 0, tmp_path, "4321:4322") == [
        "pair 1 0:0",
        "listener 1 0:0",
        "client 1 0:0",
        "pipe 0:0",
        "ids 0 0 0",
    ]
