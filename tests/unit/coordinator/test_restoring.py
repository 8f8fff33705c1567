"""What is checked before a step is restored, and how files are brought to the boundary: all of them or none."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from slurmckpt.coordinator import restoring
from slurmckpt.coordinator.restoring import mismatch
from slurmckpt.coordinator.scriptfile import ScriptFile
from slurmckpt.coordinator.step import Step
from slurmckpt.errors import Refused
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.manifest import OpenFile
from tests.unit.coordinator.parts import GID, UID, channels, image, no_descriptor_is_lost, saved_task, task


def step(ntasks: int = 1, digest: str = "d" * 64) -> Step:
    found = Step("0", ntasks, 1)
    found.argv_digest, found.command = digest, "./train.py --lr 0.1"
    return found


def test_the_same_step() -> None:
    assert mismatch(image(), step()) == ""


def test_another_number_of_tasks() -> None:
    assert mismatch(image(ntasks=4), step(ntasks=2)) == "step 0 had 4 tasks on its node and has 2 now"


def test_another_command() -> None:
    assert mismatch(image(), step(digest="e" * 64)) == ("step 0 is './train.py --lr 0.1' now, and was './train.py'")


@pytest.mark.parametrize(
    ("path", "digest", "same"), [("/a/script", "1", True), ("/b/script", "1", True), ("/a/script", "2", False)]
)
def test_another_script(path: str, digest: str, same: bool) -> None:
    """What it says counts, not where it lies."""
    now = step()
    now.script_file = ScriptFile(path, digest)
    reason = mismatch(replace(image(), script_path="/a/script", script_digest="1"), now)
    assert reason == ("" if same else "the batch script is not the one that ran at the checkpoint")


def test_an_image_in_which_the_path_of_the_script_cannot_be_changed(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"^the path of the batch script cannot be changed in the image: .*files\.img"):
        asyncio.run(restoring.move_script(tmp_path, "/a/script", "/b/script"))


def inherit(saved: dict[int, dict[str, str]], now: dict[int, list[int]]) -> dict[str, int]:
    """inheritance() for an image with these keys and tasks with these descriptors: key -> number it was given."""

    async def scene() -> dict[str, int]:
        tasks, numbers = [], {}
        for index, given in now.items():
            one, other = channels()
            other.close()
            descriptors = {number: os.open("/dev/null", os.O_RDWR) for number in given}
            numbers.update({descriptor: index * 100 + number for number, descriptor in descriptors.items()})
            tasks.append(task(one, descriptors, index, ntasks=10))
        try:
            wanted = image([saved_task(index, keys) for index, keys in saved.items()], ntasks=10)
            found = restoring.inheritance(wanted, {each.hello.task: each.descriptors for each in tasks})
        finally:
            for each in tasks:
                each.close()
        return {key: numbers[descriptor] for key, descriptor in found.items()}

    with no_descriptor_is_lost():
        return asyncio.run(scene())


def test_each_key_is_given_the_descriptor_in_its_place() -> None:
    assert inherit(
        {0: {"0": "file[1:5]", "1": "pipe:[8]", "2": "pipe:[9]"}, 1: {"1": "pipe:[8]", "2": "pipe:[11]"}},
        {0: [0, 1, 2, 7], 1: [0, 1, 2]},
    ) == {"file[1:5]": 0, "pipe:[8]": 1, "pipe:[9]": 2, "pipe:[11]": 102}


def test_sockets_are_not_given_again() -> None:
    assert inherit({0: {"0": "socket:[5]", "1": "pipe:[8]"}}, {0: [1]}) == {"pipe:[8]": 1}


def test_a_task_that_did_not_start() -> None:
    with pytest.raises(Refused, match=r"^task 1 of step 0 did not start$"):
        inherit({0: {}, 1: {}}, {0: []})


def test_a_task_that_is_not_in_the_image() -> None:
    with pytest.raises(Refused, match=r"^task 1 of step 0 had not started at the checkpoint$"):
        inherit({0: {}}, {0: [], 1: []})


def test_a_descriptor_that_is_missing_now() -> None:
    with pytest.raises(Refused, match=r"^task 0 of step 0 has no descriptor 5 now$"):
        inherit({0: {"5": "pipe:[8]"}}, {0: [0, 1, 2]})


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
        user_files.run_sync(
            restoring._truncate_all, [OpenFile(path, size, 0o644) for path, size in sizes.items()], root
        )
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
    assert refusal(user_files, files) == (
        f"{files[2]}, open for writing at the checkpoint, cannot be found: No such file or directory"
    )


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
