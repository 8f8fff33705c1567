"""Files with names that /proc does not show as they are, or that CRIU cannot deal with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurmckpt.capture.inspect.paths import has_lost_its_name
from tests.unit.capture.looking import MakePod, look

pytestmark = pytest.mark.root

# What a program may call a file.
NAMES = [
    b"gone (deleted)",
    b"a\nb",
    b"a\\012b",
    b"a\nb\\012c (deleted)",
    b"\xff\xfe",
    b"tab\tand \\ and \"'",
    b"n" * 255,
]
HOLDS = """
import ctypes
os.chdir({directory!r})
mmap = ctypes.CDLL(None, use_errno=True).mmap
mmap.restype = ctypes.c_void_p
def opened(name, flags):
    with open(name, "wb") as file:
        file.write(b"x" * 4096)
    return os.open(name, flags)
def mapped(name, protection, kind):
    descriptor = opened(name, os.O_RDWR)
    assert mmap(None, ctypes.c_size_t(4096), protection, kind, descriptor, ctypes.c_long(0)) != 2**64 - 1
    os.close(descriptor)
keep = []
"""


def test_whose_word_it_is(tmp_path: Path) -> None:
    """One that is called so, one that was deleted, and one that was and is found again by what looks like that."""
    for name in ("its own (deleted)", "was", "other"):
        (tmp_path / name).touch()
    os.link(tmp_path / "was", tmp_path / "it lives on")
    stats = {path.name: path.stat() for path in tmp_path.iterdir()}
    (tmp_path / "was").unlink()
    path = f"{tmp_path}/"
    assert not has_lost_its_name(f"{path}other", stats["other"], "")
    assert not has_lost_its_name(f"{path}its own (deleted)", stats["its own (deleted)"], "")
    assert has_lost_its_name(f"{path}was (deleted)", stats["was"], "")
    (tmp_path / "was (deleted)").touch()
    assert has_lost_its_name(f"{path}was (deleted)", stats["was"], "")
    (tmp_path / "was (deleted)").unlink()
    os.link(tmp_path / "it lives on", tmp_path / "was (deleted)")
    assert not has_lost_its_name(f"{path}was (deleted)", stats["was"], "")
    # Seen from another root, and without any name.
    assert not has_lost_its_name("/its own (deleted)", stats["its own (deleted)"], str(tmp_path))
    with (tmp_path / "other").open() as file:
        (tmp_path / "other").unlink()
        assert has_lost_its_name(f"{path}other (deleted)", os.fstat(file.fileno()), "")


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_they_are_found_by_their_names(make_pod: MakePod, tmp_path: Path, name: bytes) -> None:
    """Open and mapped, for reading and for writing: nothing speaks against them."""
    uses = {
        "read": "keep.append(opened({!r}, os.O_RDONLY))",
        "written": "keep.append(opened({!r}, os.O_RDWR))",
        "mapped": "mapped({!r}, 1, 2)",
        "shared": "mapped({!r}, 3, 1)",
    }
    paths = {use: tmp_path / use / os.fsdecode(name) for use in uses}
    for path in paths.values():
        path.parent.mkdir()
    code = "\n".join(text.format(os.fsencode(paths[use])) for use, text in uses.items())
    pod = make_pod(f"{HOLDS.format(directory=str(tmp_path))}\n{code}\nready()")
    found = look(pod)
    assert found.refusals == []
    below = {str(path) for path in paths.values()}
    assert {file.path for file in found.open_files} == {str(paths["written"]), str(paths["shared"])}
    assert {file.path for file in found.used_files} & below == {str(paths["read"]), str(paths["mapped"])}


def test_deleted_files_with_such_names(make_pod: MakePod, tmp_path: Path) -> None:
    """CRIU keeps their content; the one that lives on under another name is refused by the name that it had."""
    pod = make_pod(
        HOLDS.format(directory=str(tmp_path))
        + """
for name in (b"a (deleted)", b"a\\nb"):
    keep.append(opened(name, os.O_RDWR))
    os.unlink(name)
    mapped(name, 3, 1)
    os.unlink(name)
mapped(b"b\\nc (deleted)", 1, 2)
os.rename(b"b\\nc (deleted)", b"of another name")
os.link(b"of another name", b"x")
os.unlink(b"of another name")
ready()
"""
    )
    found = look(pod)
    assert found.open_files == []
    assert [text.partition(") ")[2] for text in found.refusals] == [
        f"has {tmp_path}/of another name mapped, which was deleted or replaced and still has another name: close it, or"
        " delete its other name, too"
    ]


@pytest.mark.parametrize(("size", "use"), [(237, "open"), (238, "open"), (238, "mapped")])
def test_the_name_of_a_deleted_file_is_too_long(make_pod: MakePod, tmp_path: Path, size: int, use: str) -> None:
    """CRIU makes it anew under that name and some letters more."""
    name = b"n" * size
    how = f"keep.append(opened({name!r}, os.O_RDWR))" if use == "open" else f"mapped({name!r}, 3, 1)"
    pod = make_pod(f"{HOLDS.format(directory=str(tmp_path))}\n{how}\nos.unlink({name!r})\nready()")
    what = "whose name has more than 237 bytes, which cannot be captured: give it a shorter name, or do not delete it"
    assert [what in text for text in look(pod).refusals] == ([True] if size > 237 else [])


@pytest.mark.parametrize("again", ["", "os.mkdir('d')", "open('d', 'w').close()"])
@pytest.mark.parametrize(
    ("use", "what"),
    [("keep.append(os.open('.', os.O_RDONLY)); os.chdir('..')", "has {} open"), ("", "works in {}")],
)
def test_a_deleted_directory_whose_name_is_there_again(
    make_pod: MakePod, tmp_path: Path, use: str, what: str, again: str
) -> None:
    pod = make_pod(
        HOLDS.format(directory=str(tmp_path))
        + f"""
top = os.open(".", os.O_PATH)
os.mkdir("d")
os.chdir("d")
{use}
os.rmdir("../d" if {bool(not use)} else "d")
if {bool(again)}:
    here = os.open(".", os.O_PATH) if {bool(not use)} else -1
    os.fchdir(top)
    {again or "pass"}
    if here >= 0:
        os.fchdir(here)
        os.close(here)
os.close(top)
ready()
"""
    )
    told = what.format(f"the deleted directory {tmp_path}/d")
    assert [text.partition(") ")[2] for text in look(pod).refusals] == (
        [f"{told}, of whose name there is another one, which cannot be captured: leave it, or rename the new one"]
        if again
        else []
    )


@pytest.mark.parametrize("size", [4094, 4095, 4200])
@pytest.mark.parametrize(
    ("use", "what"),
    [
        ("keep.append(opened(name, os.O_RDWR))", r"has a file open (descriptor "),
        ("mapped(name, 1, 2)", "has a file mapped"),
        ("os.mkdir(name)\nos.chdir(name)", "works in a directory"),
    ],
)
def test_a_path_of_more_than_a_page(make_pod: MakePod, tmp_path: Path, size: int, use: str, what: str) -> None:
    pod = make_pod(
        HOLDS.format(directory=str(tmp_path))
        + f"""
left = {size} - len({str(tmp_path)!r})
while left > 256:
    os.mkdir("d" * 100)
    os.chdir("d" * 100)
    left -= 101
name = "n" * (left - 1)
{use}
if os.path.isfile(name):
    os.chdir("/")
ready()
"""
    )
    found = look(pod)
    whole = "whose path has more than 4094 bytes, which cannot be captured: use shorter paths"
    assert [what in text and whole in text for text in found.refusals] == ([True] if size > 4094 else [])


def test_names_of_unix_sockets(make_pod: MakePod, tmp_path: Path) -> None:
    """CRIU takes the end of one for the kernel's word. A relative name may begin as an abstract one is shown."""
    pod = make_pod(
        f"""
os.chdir({str(tmp_path)!r})
def bound(kind, name):
    keep.append(socket.socket(socket.AF_UNIX, kind))
    keep[-1].bind(name)
keep = []
os.chown(".", 1000, 1000)
bound(socket.SOCK_STREAM, os.path.abspath("s (deleted)"))
bound(socket.SOCK_STREAM, "\\0abstract (deleted)")
bound(socket.SOCK_DGRAM, "\\0@")
bound(socket.SOCK_DGRAM, "@relative")
ready()
"""
    )
    assert sorted(text.partition(") has ")[2] for text in look(pod).refusals) == [
        "a unix datagram socket at ./@relative, in a directory that its user may change: bind it in /tmp or /dev/shm"
        " itself, or in a directory right below them, or use an abstract name",
        f"a unix socket at {tmp_path}/s (deleted), which a capture would take for a name that is gone: give it a name"
        " that does not end like that",
    ]
