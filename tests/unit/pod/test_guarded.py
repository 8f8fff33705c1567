"""restart.so where root may do all: names that the job's user could have led CRIU to are made as that user."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.pod.harness import GID, POD, UID

pytestmark = pytest.mark.root

# Loads the plugin and begins its stage, as CRIU does at a restore; then everything that CRIU does with names, in the
# directory that is given.
PROGRAM = r"""
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

struct plugin { const char *name; int (*init)(int stage); };
static char path[4096], other[4096];

static void tell(const char *what, long result)
{
	printf("%s %s\n", what, result < 0 ? strerrorname_np(errno) : "done");
}

static const char *in(const char *directory, const char *name)
{
	snprintf(path, sizeof(path), "%s/%s", directory, name);
	return path;
}

static const char *to(const char *directory, const char *name)
{
	snprintf(other, sizeof(other), "%s/%s", directory, name);
	return other;
}

static int bind_to(const char *name)
{
	struct sockaddr_un local = {.sun_family = AF_UNIX};

	strcpy(local.sun_path, name);
	return bind(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&local, sizeof(local));
}

int main(int argc, char **argv)
{
	void *library = dlopen(argv[1], RTLD_NOW);
	struct plugin *plugin = library ? dlsym(library, "CR_PLUGIN_DESC") : NULL;
	const struct timeval past[2] = {{1, 0}, {1, 0}};
	const char *d = argv[2];
	int uid, gid, fd;

	if (argc != 5 || !plugin || plugin->init(2))
		return 1;
	uid = atoi(argv[3]);
	gid = atoi(argv[4]);
	tell("mkdir", mkdir(in(d, "directory"), 0755));
	tell("mkdirat", mkdirat(AT_FDCWD, in(d, "directory2"), 0755));
	tell("mknod", mknod(in(d, "pipe"), S_IFIFO | 0600, 0));
	tell("open", open(in(d, "file"), O_WRONLY | O_CREAT | O_EXCL, 0600));
	tell("openat", openat(AT_FDCWD, in(d, "file2"), O_WRONLY | O_CREAT | O_EXCL, 0600));
	tell("creat", creat(in(d, "file3"), 0600));
	tell("symlink", symlink("/nowhere", in(d, "link")));
	tell("symlinkat", symlinkat("/nowhere", AT_FDCWD, in(d, "link2")));
	tell("bind", bind_to(in(d, "socket")));
	fd = open("own", O_PATH);
	tell("linkat", linkat(fd, "", AT_FDCWD, in(d, "hard"), AT_EMPTY_PATH));
	tell("fchownat", fchownat(AT_FDCWD, in(d, "roots"), uid, gid, AT_SYMLINK_NOFOLLOW));
	tell("fchmodat", fchmodat(AT_FDCWD, in(d, "roots"), 0777, 0));
	tell("chmod", chmod(in(d, "roots"), 0777));
	tell("lutimes", lutimes(in(d, "roots"), past));
	tell("rename", rename(in(d, "roots"), to(d, "renamed")));
	tell("unlink", unlink(in(d, "roots file")));
	tell("unlinkat", unlinkat(AT_FDCWD, in(d, "roots file2"), 0));
	tell("rmdir", rmdir(in(d, "empty")));
	/* what a descriptor refers to nobody can exchange */
	fd = openat(AT_FDCWD, "roots own", O_RDONLY);
	tell("of a descriptor", fchownat(fd, "", uid, gid, AT_EMPTY_PATH));
	return 0;
}
"""
CALLS = (
    *("mkdir", "mkdirat", "mknod", "open", "openat", "creat", "symlink", "symlinkat", "bind", "linkat"),
    *("fchownat", "fchmodat", "chmod", "lutimes", "rename", "unlink", "unlinkat", "rmdir"),
)
MADE = ("directory", "directory2", "pipe", "file", "file2", "file3", "link", "link2", "socket")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("guarded")
    (directory / "guarded.c").write_text(PROGRAM)
    flags = ["-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", "-Wl,-z,now,-z,relro"]
    subprocess.run(["cc", *flags, "-o", "guarded", "guarded.c", "-ldl"], cwd=directory, check=True)
    return directory / "guarded"


@pytest.fixture
def place() -> Iterator[Path]:
    """Directories of root's and of the user's with the same in them; `way` of the user's leads to root's.

    pytest's own are root's alone.
    """
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        top.chmod(0o755)
        for directory, mode, owner in (("closed", 0o755, 0), ("sticky", 0o1777, 0), ("home", 0o755, UID)):
            (top / directory).mkdir()
            for inner in ("roots", "empty"):
                (top / directory / inner).mkdir(mode=0o755)
            for file in ("roots file", "roots file2"):
                (top / directory / file).touch()
            (top / directory).chmod(mode)
            os.chown(top / directory, owner, owner and GID)
        (top / "home/way").symlink_to(top / "closed")
        for file, owner in (("own", UID), ("roots own", 0)):
            (top / file).touch()
            os.chown(top / file, owner, owner and GID)
        yield top


def told(program: Path, place: Path, directory: str) -> dict[str, str]:
    environment = {"PATH": os.environ["PATH"], "SLURMCKPT_USER": f"{UID}:{GID}", "SLURMCKPT_GROUPS": f"{GID}"}
    command: list[str | Path] = [program, POD / "restart.so", directory, str(UID), str(GID)]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=True)
    return {what: result for what, _, result in (line.rpartition(" ") for line in done.stdout.splitlines())}


def owners(directory: Path, names: tuple[str, ...]) -> set[int]:
    return {os.lstat(directory / name).st_uid for name in names}


def snapshot(directory: Path) -> list[tuple[str, int, int, float]]:
    entries = ((entry.name, entry.lstat()) for entry in sorted(directory.iterdir()))
    return [(name, found.st_uid, found.st_mode, found.st_mtime) for name, found in entries]


def test_where_only_root_makes_names_it_is_root(program: Path, place: Path) -> None:
    directory = place / "closed"
    results = told(program, place, str(directory))
    assert results == dict.fromkeys([*CALLS, "of a descriptor"], "done")
    assert owners(directory, MADE) == {0}
    assert (directory / "renamed").stat().st_uid == UID and stat.S_IMODE(
        (directory / "renamed").stat().st_mode
    ) == 0o777


def test_a_link_of_the_users_leads_to_nothing_of_roots(program: Path, place: Path) -> None:
    before = snapshot(place / "closed")
    results = told(program, place, str(place / "home/way"))
    assert {results[call] for call in CALLS} <= {"EACCES", "EPERM"}, results
    assert snapshot(place / "closed") == before
    assert results["of a descriptor"] == "done"


def test_what_stands_in_a_directory_of_all_is_not_given_away(program: Path, place: Path) -> None:
    """As in /tmp: names can be made there, and are the user's; but root's own stays as it is."""
    directory = place / "sticky"
    before = snapshot(directory)
    results = told(program, place, str(directory))
    assert {call: results[call] for call in CALLS[:10]} == dict.fromkeys(CALLS[:10], "done")
    assert {results[call] for call in CALLS[10:]} <= {"EACCES", "EPERM"}, results
    assert owners(directory, (*MADE, "hard")) == {UID}
    assert [entry for entry in snapshot(directory) if entry[0].startswith(("roots", "empty"))] == before


@pytest.mark.parametrize("slashes", ["/", "//", "/./", "/closed/../sticky/"])
def test_a_way_is_the_same_however_it_is_written(program: Path, place: Path, slashes: str) -> None:
    before = snapshot(place / "sticky")
    way = f"{place}{slashes}" if slashes.endswith("sticky/") else f"{place}{slashes}sticky{slashes}"
    results = told(program, place, way.rstrip("/") + slashes.replace("/closed/../sticky/", "/"))
    assert results["fchownat"] == results["chmod"] == "EPERM"
    assert [entry for entry in snapshot(place / "sticky") if entry[0].startswith(("roots", "empty"))] == before


def test_in_the_users_own_directory_it_is_the_user(program: Path, place: Path) -> None:
    results = told(program, place, str(place / "home"))
    assert {call for call in CALLS if results[call] != "done"} == {"fchownat", "fchmodat", "chmod", "lutimes"}
    assert owners(place / "home", (*MADE, "hard")) == {UID}
