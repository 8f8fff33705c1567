"""What a process has by path, and whether its user could have it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from slurmckpt.capture.processes import read_process
from slurmckpt.capture.reopened import Reopened, check, collect
from slurmckpt.errors import Refused
from slurmckpt.store.identity import UserFiles

UID = GID = 47112

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can open what a user may not")


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory that every user can reach."""
    path = Path("/tmp") / f"slurmckpt-reopened-{os.getpid()}"
    path.mkdir(mode=0o755)
    yield path
    subprocess.run(["rm", "-rf", str(path)], check=True)


def objects_of(program: str, *given: Path, only: Sequence[int] | None = None) -> list[Reopened]:
    """What a Python process has, by collect(), once it says that it is ready. only: these descriptors."""
    with subprocess.Popen(
        ["/usr/bin/python3", "-c", f"import os, mmap\n{program}\nprint('ready', flush=True)\ninput()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        assert child.stdout.readline() == "ready\n"
        process = read_process(child.pid)
        assert process is not None
        which = None if only is None else {process.ns_pid: only}
        found = collect([process], {(path.stat().st_dev, path.stat().st_ino) for path in given}, which)
        child.stdin.close()
        child.wait()
    return found


def refusal(objects: list[Reopened]) -> str:
    """What check() says with the rights of a user; empty when it accepts all."""
    root = os.open("/", os.O_PATH)
    try:
        with UserFiles.for_user(UID, GID, []) as files:
            try:
                files.run_sync(check, objects, root, UID)
            except Refused as error:
                return str(error)
    finally:
        os.close(root)
    return ""


def test_what_everybody_may_have_is_accepted(home: Path) -> None:
    (home / "data").write_text("x")
    objects = objects_of(f"f = open('{home}/data'); os.chdir('{home}')")
    assert {Path(each.path).name for each in objects} >= {"data", home.name}
    assert refusal(objects) == ""


@pytest.mark.parametrize(
    ("mode", "program", "accepted"),
    [
        (0o600, "f = os.open('{}', os.O_RDONLY)", False),
        (0o644, "f = os.open('{}', os.O_RDONLY)", True),
        (0o644, "f = os.open('{}', os.O_RDWR)", False),
        (0o644, "f = os.open('{}', os.O_WRONLY | os.O_APPEND)", False),
        (0o666, "f = os.open('{}', os.O_RDWR)", True),
        (0o644, "m = mmap.mmap(os.open('{}', os.O_RDWR), 1)\nos.closerange(3, 9)", False),
        (0o644, "m = mmap.mmap(os.open('{}', os.O_RDONLY), 1, prot=mmap.PROT_READ)\nos.closerange(3, 9)", True),
    ],
)
def test_a_file_counts_as_it_was_opened(home: Path, mode: int, program: str, accepted: bool) -> None:
    secret = home / "secret"
    secret.write_text("x" * 4096)
    secret.chmod(mode)
    said = refusal(objects_of(program.format(secret)))
    assert (said == "") is accepted, said
    if not accepted:
        assert f"would lead to {secret}, which its user may not open like that" in said


def test_its_owner_could_open_it(home: Path) -> None:
    """A file that is made read-only by the call that opens it for writing, and a directory that was closed later."""
    file, closed = home / "file", home / "closed"
    file.write_text("x")
    closed.mkdir()
    program = (
        f"f = os.open('{file}', os.O_RDWR)\nos.chdir('{closed}')\nos.chmod('{file}', 0o400); os.chmod('{closed}', 0)"
    )
    objects = objects_of(program)
    assert f"would lead to {file}" in refusal(objects)
    for path in (file, closed):
        os.chown(path, UID, GID)
    objects = objects_of(program)
    assert refusal(objects) == ""
    os.chown(file, UID + 1, GID)
    assert f"would lead to {file}" in refusal(objects_of(program))


def test_a_readable_file_in_a_closed_directory_is_refused(home: Path) -> None:
    closed = home / "closed"
    closed.mkdir(mode=0o700)
    (closed / "file").write_text("x")
    (closed / "file").chmod(0o644)
    assert f"would lead to {closed}/file" in refusal(objects_of(f"f = open('{closed}/file')"))
    assert f"cwd would lead to {closed}," in refusal(objects_of(f"os.chdir('{closed}')"))
    # The same file, given by the job itself and not opened by path.
    assert refusal(objects_of(f"f = open('{closed}/file')", closed / "file")) == ""


def test_another_object_under_the_same_path_is_refused(home: Path) -> None:
    (home / "file").write_text("x")
    objects = objects_of(f"f = open('{home}/file')")
    (home / "new").write_text("x")
    (home / "new").rename(home / "file")
    assert f"would lead to {home}/file" in refusal(objects)


def test_deleted_files_are_made_by_criu(home: Path) -> None:
    objects = objects_of(f"f = open('{home}/gone', 'w'); os.unlink('{home}/gone'); os.chdir('/')")
    assert not [each for each in objects if "gone" in each.path]


def test_a_proc_file_of_a_process_that_has_ended_gives_nothing_away() -> None:
    """CRIU opens it anew by making a process of that number for a moment."""
    dead = """
child = os.fork()
if child == 0:
    os.read(os.pipe()[0], 1)
keep = os.open(f"/proc/{child}/status", os.O_RDONLY), os.open(f"/proc/{child}", os.O_RDONLY)
os.kill(child, 9)
os.wait()
"""
    assert refusal([one for one in objects_of(dead) if one.path.startswith("/proc/")]) == ""
    # Of one that lives it has to be what the user may open.
    mine = objects_of(f"keep = os.open('/proc/{os.getpid()}/environ', os.O_RDONLY)")
    assert "which its user may not open like that" in refusal(mine)


@pytest.mark.parametrize("owner", ["its user", "another"])
def test_a_file_that_lives_on_under_another_name(home: Path, owner: str) -> None:
    """So do semaphores, whose first name is a temporary one. It can be nobody else's than the process's own user's."""
    change = "" if owner == "its user" else f"os.chown({str(home / 'b')!r}, 1, 1)"
    a, b = str(home / "a"), str(home / "b")
    found = objects_of(f"f = open({a!r}, 'w+b')\nf.truncate(4096)\nos.link({a!r}, {b!r})\nos.unlink({a!r})\n{change}")
    mine = [one for one in found if one.path.startswith(str(home))]
    assert [one.path for one in mine] == ([] if owner == "its user" else [f"{a} (deleted)"])
    assert bool(refusal(mine)) == (owner == "another")


def test_a_look_at_some_descriptors_alone(home: Path) -> None:
    """The others are CRIU's own while it restores, and so is what is mapped."""
    (home / "one").write_text("x")
    (home / "other").write_text("x")
    program = f"os.dup2(os.open('{home}/one', os.O_RDONLY), 40); os.dup2(os.open('{home}/other', os.O_RDONLY), 41)"
    found = objects_of(program, only=[40, 42])
    assert [(each.what, Path(each.path).name) for each in found] == [("descriptor 40", "one")]
