"""How the files that a pod wrote are brought to the boundary: all of them or none, with the rights of its user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurmckpt.coordinator.files.returning import Place, bring_back
from slurmckpt.errors import Refused
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.manifest import OpenFile
from tests.unit.coordinator.parts import GID, UID, no_descriptor_is_lost


@pytest.fixture
def files(home: Path) -> list[Path]:
    """Three files of the user, of 10 bytes each."""
    found = [home / name for name in "abc"]
    for path in found:
        path.write_bytes(b"0123456789")
        if os.geteuid() == 0:
            os.chown(path, UID, GID)
    return found


def truncate(user_files: UserFiles, sizes: dict[Path, int]) -> None:
    with no_descriptor_is_lost():
        truncate_below(user_files, Path("/"), {str(path): size for path, size in sizes.items()})


def truncate_below(user_files: UserFiles, top: Path, sizes: dict[str, int]) -> None:
    root = os.open(top, os.O_PATH)
    try:
        files = [OpenFile(path, size, 0o644) for path, size in sizes.items()]
        user_files.run_sync(bring_back, files, [], Place(root, -1, UID))
    finally:
        os.close(root)


def test_each_file_is_cut_at_the_boundary(files: list[Path], user_files: UserFiles) -> None:
    truncate(user_files, {files[0]: 4, files[1]: 10, files[2]: 0})
    assert [path.read_bytes() for path in files] == [b"0123", b"0123456789", b""]


def refusal(user_files: UserFiles, files: list[Path], size: int = 10) -> str:
    """The sentence when the last of three files cannot be used and the first would be cut; nothing was changed."""
    with pytest.raises(Refused) as raised:
        truncate(user_files, {files[0]: 4, files[1]: 10, files[2]: size})
    assert files[0].read_bytes() == files[1].read_bytes() == b"0123456789"
    return str(raised.value)


def test_the_files_are_those_of_the_pod(files: list[Path], user_files: UserFiles) -> None:
    """The same path on the node, outside the job's own mounts, is another file."""
    inside = files[0].parent / str(files[1]).lstrip("/")
    inside.parent.mkdir(parents=True)
    inside.write_bytes(b"abcdefghij")
    if os.geteuid() == 0:
        os.chown(inside, UID, GID)
    truncate_below(user_files, files[0].parent, {str(files[1]): 3})
    assert (inside.read_bytes(), files[1].read_bytes()) == (b"abc", b"0123456789")


def test_a_missing_file(files: list[Path], user_files: UserFiles) -> None:
    files[2].unlink()
    assert refusal(user_files, files) == (f"{files[2]}, open for writing at the checkpoint, is gone")


def test_a_shorter_file(files: list[Path], user_files: UserFiles) -> None:
    assert refusal(user_files, files, 11) == f"{files[2]} is shorter (10 bytes) than at the checkpoint (11 bytes)"


def test_a_link_in_its_place(files: list[Path], user_files: UserFiles) -> None:
    files[2].unlink()
    files[2].symlink_to(files[1])
    assert refusal(user_files, files, 3) == (
        f"{files[2]}, open for writing at the checkpoint, is no regular file any more"
    )


def test_a_fifo_in_its_place(files: list[Path], user_files: UserFiles) -> None:
    files[2].unlink()
    os.mkfifo(files[2])
    assert refusal(user_files, files, 0) == (
        f"{files[2]}, open for writing at the checkpoint, is no regular file any more"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: rights of another user")
def test_a_file_that_the_user_may_not_write(files: list[Path], user_files: UserFiles) -> None:
    """Root could; but the file is only cut with the user's own rights."""
    os.chown(files[2], 0, 0)
    files[2].chmod(0o644)
    assert refusal(user_files, files, 4) == (
        f"{files[2]} is longer than at the checkpoint and cannot be cut: Permission denied"
    )
    assert files[2].read_bytes() == b"0123456789"
    # One that is as long as it was needs no right at all.
    truncate(user_files, {files[2]: 10})


def test_a_path_with_a_newline_is_one_line(home: Path, user_files: UserFiles) -> None:
    with pytest.raises(Refused) as raised:
        truncate(user_files, {home / "a\nb": 1})
    assert str(raised.value).startswith(f"{home}/a\\nb, open for writing")
