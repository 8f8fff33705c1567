"""The model's identity from weight files that a process maps or holds open."""

from __future__ import annotations

import contextlib
import mmap
import os
import time
import tracemalloc
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


def test_headers_are_not_believed(tmp_path: Path) -> None:
    """A safetensors file begins with the length of its header, and ours is longer than the file; a gguf file with the
    number of its tensors. Nothing is taken from there."""
    huge = tmp_path / "a.safetensors"
    huge.write_bytes(b"\xff" * 8 + b"{" * SIZE)
    counts = tmp_path / "b.gguf"
    counts.write_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 16 + b"\0" * SIZE)
    text = tmp_path / "c.safetensors"
    text.write_bytes((100).to_bytes(8, "little") + b'{"a":{"shape":[NaN,-1,1e999]}}' * (SIZE // 30))
    with huge.open("rb"), counts.open("rb"), text.open("rb"):
        facts = model(used(os.getpid()))
    assert len(facts) == 3 and all(value.count("\n") == 0 for value in facts.values())
    assert compare(facts, check_model(facts)) == []


def test_a_terabyte_of_nothing_takes_no_time_and_no_memory(tmp_path: Path) -> None:
    sparse = tmp_path / "a.safetensors"
    with sparse.open("wb") as stream:
        stream.truncate(1 << 40)
    tracemalloc.start()
    began = time.process_time()
    with sparse.open("rb"):
        facts = model(used(os.getpid()))
    assert facts[f"model.file:{sparse}"].startswith("1099511627776 bytes, blake3 ")
    assert time.process_time() - began < 5
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()


def test_what_has_taken_the_place_of_weights_is_not_opened(tmp_path: Path) -> None:
    """Links in a circle, a pipe that nobody writes to, a device, a directory: as if there were nothing, and at once."""
    kinds = ("circle", "pipe", "device", "directory", "endless")
    recorded = {f"model.file:{tmp_path}/{kind}.safetensors": "5 bytes, blake3 00" for kind in kinds}
    (tmp_path / "circle.safetensors").symlink_to("other.safetensors")
    (tmp_path / "other.safetensors").symlink_to("circle.safetensors")
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "device.safetensors").symlink_to("/dev/zero")
    (tmp_path / "directory.safetensors").mkdir()
    (tmp_path / "endless.safetensors").symlink_to("/proc/self/mem")
    found = check_model(recorded)
    assert set(found) <= {f"model.file:{tmp_path}/endless.safetensors"}
    told = explain(compare(recorded, found))
    assert "\n" not in told and "circle.safetensors" in told


def test_of_very_many_files_most_are_known_by_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurmckpt.fingerprint.model._READ", 2)
    with contextlib.ExitStack() as stack:
        for name in "abcd":
            stack.enter_context(weights(tmp_path / f"{name}.pt").open("rb"))
        facts = model(used(os.getpid()))
    assert [value.partition(",")[2] != "" for _, value in sorted(facts.items())] == [True, True, False, False]
    # In whatever order they are asked for again.
    assert compare(facts, check_model(dict(reversed(facts.items())))) == []
    (tmp_path / "d.pt").write_bytes(os.urandom(SIZE + 1))
    assert explain(compare(facts, check_model(facts))) == "d.pt has other content"


def test_weights_that_are_gone(tmp_path: Path) -> None:
    file = weights(tmp_path / "a.safetensors")
    with file.open("rb"):
        facts = model(used(os.getpid()))
    file.unlink()
    assert check_model(facts) == {}
    assert "-> none" in explain(compare(facts, check_model(facts)))
