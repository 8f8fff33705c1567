"""Holes are left out of an archive, and are holes again when it is extracted, by tarfile as well as by GNU tar."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from slurmckpt.coordinator import sparse

MIB = 1 << 20


def make(path: Path, size: int, pieces: dict[int, bytes]) -> bytes:
    with path.open("wb") as file:
        file.truncate(size)
        for offset, piece in pieces.items():
            file.seek(offset)
            file.write(piece)
    return path.read_bytes()


def archive(path: Path, target: Path) -> list[tuple[int, int]]:
    with path.open("rb") as file, tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as tar:
        member = tar.gettarinfo(arcname=path.name, fileobj=file)
        data = sparse.data_of(file.fileno(), member.size)
        sparse.add(tar, member, file.fileno(), data)
        tar.addfile(tarfile.TarInfo("behind it"))
    return data


@pytest.mark.parametrize(
    "pieces",
    [
        {},
        {0: b"a" * 5000},
        {3 * MIB: b"b" * 10},
        {8 * MIB - 3: b"end"},
        {0: b"a", MIB: b"b" * 300_000, 4 * MIB + 17: b"c" * 4096},
        {number * 64 * 1024: b"x" for number in range(0, 128, 2)},
    ],
    ids=["nothing", "begin", "middle", "end", "several", "many"],
)
@pytest.mark.parametrize("reader", ["tarfile", "tar"])
def test_what_goes_in_comes_out(tmp_path: Path, pieces: dict[int, bytes], reader: str) -> None:
    if reader == "tar" and shutil.which("tar") is None:
        pytest.skip("no tar here")
    wanted = make(tmp_path / "file", 8 * MIB, pieces)
    archive(tmp_path / "file", tmp_path / "a.tar")
    assert (tmp_path / "a.tar").stat().st_size < 2 * MIB
    out = tmp_path / "out"
    out.mkdir()
    if reader == "tar":
        subprocess.run(["tar", "-xf", tmp_path / "a.tar", "-C", out], check=True)
    else:
        with tarfile.open(tmp_path / "a.tar") as tar:
            assert tar.getnames() == ["file", "behind it"]
            assert tar.getmember("file").size == 8 * MIB
            tar.extractall(out, filter="data")
    assert (out / "file").read_bytes() == wanted
    assert sorted(os.listdir(out)) == ["behind it", "file"]
    assert (out / "file").stat().st_blocks * 512 < 3 * MIB


def test_a_dense_file_has_no_holes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100_000)
    with path.open("rb") as file:
        data = sparse.data_of(file.fileno(), 100_000)
        assert sum(length for _, length in data) == 100_000
        assert not sparse.is_worth_it(data, 100_000)
        assert sparse.data_of(file.fileno(), 0) == []
    assert sparse.is_worth_it([(0, 10)], MIB)


def test_a_file_that_becomes_shorter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tarfile tells; nothing is made up."""
    make(tmp_path / "file", MIB, {0: b"a" * 10_000})
    monkeypatch.setattr(os, "pread", lambda *_: b"")
    with pytest.raises(OSError, match="unexpected end of data"):
        archive(tmp_path / "file", tmp_path / "a.tar")
