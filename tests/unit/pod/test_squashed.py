"""restart.so where root is nobody: what CRIU may not do with files it does as the job's user, and CRIU stays root."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.pod.harness import GID, GROUPS, POD, UID

pytestmark = pytest.mark.root

# Root without its rights on other users' files, as on a file server that takes it for nobody. Loads the plugin and
# begins its stage, as CRIU does; then calls as CRIU does, and ends the plugin's stage before the last ones.
PROGRAM = r"""
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct plugin { const char *name; int (*init)(int stage); };

static void tell(const char *what, long result)
{
	printf("%s %s\n", what, result < 0 ? strerrorname_np(errno) : "done");
}

int main(int argc, char **argv)
{
	struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct data[2];
	void *library = dlopen(argv[1], RTLD_NOW);
	struct plugin *plugin = library ? dlsym(library, "CR_PLUGIN_DESC") : NULL;
	struct stat status;
	gid_t groups[8];
	int at;

	if (argc != 4 || !plugin || plugin->init(atoi(argv[2])) || chdir(argv[3]))
		return 1;
	syscall(SYS_capget, &header, data);
	data[0].effective &= ~(1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH | 1u << CAP_FOWNER | 1u << CAP_CHOWN);
	data[0].permitted = data[0].effective;
	if (syscall(SYS_capset, &header, data))
		return 2;
	tell("open", open("own", O_RDWR));
	tell("open of a group's", open("group", O_RDONLY));
	tell("open of another's", open("others", O_RDONLY));
	tell("open of none", open("none", O_RDONLY));
	tell("make", open("home/made", O_RDWR | O_CREAT | O_EXCL, 0640));
	tell("stat", fstatat(AT_FDCWD, "home/made", &status, 0));
	printf("made %o %u:%u\n", status.st_mode, status.st_uid, status.st_gid);
	tell("access", faccessat(AT_FDCWD, "home/made", F_OK, 0));
	at = openat(AT_FDCWD, "home", O_RDONLY | O_DIRECTORY);
	tell("link", linkat(at, "made", at, "linked", 0));
	tell("unlink", unlinkat(at, "linked", 0));
	dlclose(library);
	tell("enter", fchdir(at));
	tell("change", chmod("made", 0600));
	printf("ids %u %u %d %d %d\n", setfsuid(-1), setfsgid(-1), getuid(), geteuid(), getgroups(8, groups));
	return 0;
}
"""


@pytest.fixture(scope="module", params=["-Wl,-z,now,-z,relro", "-Wl,-z,lazy"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("squashed")
    (directory / "squashed.c").write_text(PROGRAM)
    flags = ["-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", request.param]
    subprocess.run(["cc", *flags, "-o", "squashed", "squashed.c", "-ldl"], cwd=directory, check=True)
    return directory / "squashed"


@pytest.fixture
def place() -> Iterator[Path]:
    """Files of the user's, of a group of its, of another user's; and a home. pytest's directories are root's alone."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        for file, uid, gid, mode in (
            ("own", UID, GID, 0o600),
            ("group", UID + 1, GROUPS[-1], 0o640),
            ("others", UID + 1, GID + 1000, 0o600),
        ):
            (directory / file).touch()
            os.chown(directory / file, uid, gid)
            (directory / file).chmod(mode)
        (directory / "home").mkdir(mode=0o700)
        os.chown(directory / "home", UID, GID)
        yield directory


def told(program: Path, place: Path, stage: int, **environment: str) -> list[str]:
    done = subprocess.run(
        [program, POD / "restart.so", str(stage), place],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=True,
        extra_groups=[7, 8, 9],
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("stage", [0, 2])
def test_what_root_may_not_the_user_does(program: Path, place: Path, stage: int) -> None:
    """At a dump and at a restore; root's ids and groups are as before."""
    groups = ",".join(map(str, GROUPS))
    assert told(program, place, stage, SLURMCKPT_USER=f"{UID}:{GID}", SLURMCKPT_GROUPS=groups) == [
        "open done",
        "open of a group's done",
        "open of another's EACCES",
        "open of none ENOENT",
        "make done",
        "stat done",
        f"made 100640 {UID}:{GID}",
        "access done",
        "link done",
        "unlink done",
        "enter done",
        "change done",
        "ids 0 0 0 0 3",
    ]


@pytest.mark.parametrize(
    "environment",
    [{}, {"SLURMCKPT_USER": f"{UID}:{GID}", "SLURMCKPT_GROUPS": "1,x"}, {"SLURMCKPT_USER": "0:0"}],
)
def test_without_a_user_nothing_is_changed(program: Path, place: Path, environment: dict[str, str]) -> None:
    assert told(program, place, 2, **environment)[:5] == [
        "open EACCES",
        "open of a group's EACCES",
        "open of another's EACCES",
        "open of none ENOENT",
        "make EACCES",
    ]
