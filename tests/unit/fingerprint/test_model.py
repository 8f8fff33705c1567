"""The model's identity from weight files that a process maps or holds open."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from slurmckpt.fingerprint.compare import compare, explain
from slurmckpt.fingerprint.model import check_model, model
from tests.unit.fingerprint.using import used

SIZE = 3 << 20


def weights(file: Path) -> Path:
    file.write_bytes(b"header" + os.urandom(SIZE - 6))
    return file


def test_the_users_name_is_enough(tmp_path: Path) -> None:
    assert model(used(os.getpid()), "llama-8b@3") == {"model.id": "llama-8b@3"}
    recorded = {"model.id": "llama-8b@3"}
    assert compare(recorded, check_model(recorded, "llama-8b@3")) == []
    assert explain(compare(recorded, check_model(recorded, "llama-8b@4"))) == "model llama-8b@3 -> llama-8b@4"
    assert explain(compare(recorded, check_model(recorded))) == "model llama-8b@3 -> none"


def test_mapped_and_open_weights(tmp_path: Path) -> None:
    mapped, opened = weights(tmp_path / "a.safetensors"), weights(tmp_path / "b.gguf")
    with mapped.open("rb") as stream:
        memory = mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ)
    with memory, opened.open("rb"):
        facts = model(used(os.getpid(), os.getpid()))
    assert sorted(facts) == [f"model.file:{mapped}", f"model.file:{opened}"]
    assert facts[f"model.file:{mapped}"].startswith(f"{SIZE} bytes, blake3 ")
    assert compare(facts, check_model(facts)) == []


@pytest.mark.parametrize("offset", [0, SIZE // 2, SIZE - 1])
def test_other_weights_of_the_same_size(tmp_path: Path, offset: int) -> None:
    """Blocks all over the file are looked at, so retrained weights differ; one changed byte may lie between them."""
    file = weights(tmp_path / "a.safetensors")
    with file.open("rb"):
        facts = model(used(os.getpid()))
    with file.open("r+b") as stream:
        stream.seek(max(0, offset - 200_000))
        stream.write(os.urandom(200_001))
        stream.truncate(SIZE)
    assert explain(compare(facts, check_model(facts))) == "a.safetensors has other content"


def test_weights_in_the_cache_of_hugging_face(tmp_path: Path) -> None:
    """Opened by the name of a snapshot, the file that a process has is a blob without a suffix."""
    place = tmp_path / "models--meta--llama"
    (place / "blobs").mkdir(parents=True)
    (place / "snapshots" / "0e9e39f2").mkdir(parents=True)
    blob = weights(place / "blobs" / ("ab" * 32))
    link = place / "snapshots" / "0e9e39f2" / "model.safetensors"
    link.symlink_to(blob)
    with link.open("rb"):
        facts = model(used(os.getpid()))
    assert list(facts) == [f"model.file:{blob}"]


def test_what_is_no_model(tmp_path: Path) -> None:
    small = tmp_path / "small.bin"
    small.write_bytes(b"x" * 1000)
    other = weights(tmp_path / "data.txt")
    output = weights(tmp_path / "checkpoint.pt")
    with small.open("rb"), other.open("rb"), output.open("r+b"):
        assert model(used(os.getpid())) == {}


def test_weights_that_are_gone(tmp_path: Path) -> None:
    file = weights(tmp_path / "a.safetensors")
    with file.open("rb"):
        facts = model(used(os.getpid()))
    file.unlink()
    assert check_model(facts) == {}
    assert "-> none" in explain(compare(facts, check_model(facts)))
