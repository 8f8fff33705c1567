"""The engine's facts of a living process, and the same facts found again on a node."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmckpt.fingerprint.compare import compare, explain
from slurmckpt.fingerprint.engine import check_engine, engine
from tests.unit.fingerprint.using import used

BUILD_ID = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A site-packages directory with a library of torch and metadata as pip and Debian write it."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    directory = tmp_path / "venv/lib/python3.11/site-packages"
    (directory / "torch/lib").mkdir(parents=True)
    build(directory / "torch/lib/libtorch.so", BUILD_ID)
    for name in (
        "torch-2.11.0+cu128.dist-info",
        "nvidia_nccl_cu12-2.28.9.dist-info",
        "nvidia_cuda_runtime_cu12-12.8.90.dist-info",
        "Triton-3.5.1-py3.11.egg-info",
        "torchmetrics-1.0.dist-info",
        "numpy-2.4.0.dist-info",
        "torch-nonsense.dist-info",
    ):
        (directory / name).mkdir()
    return directory


def build(file: Path, identity: str) -> None:
    # under another name first: the file may be mapped
    new = file.with_suffix(".new")
    subprocess.run(["cc", "-shared", "-x", "c", "/dev/null", "-o", new, f"-Wl,--build-id=0x{identity}"], check=True)
    new.rename(file)


@pytest.fixture
def rank(packages: Path) -> Iterator[int]:
    """A process that has the library mapped."""
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print('ready', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(packages / "torch/lib/libtorch.so")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
        process.kill()


def test_libraries_and_packages(rank: int, packages: Path) -> None:
    facts = engine(used(rank))
    assert facts[f"engine.build-id:{packages}/torch/lib/libtorch.so"] == BUILD_ID
    assert any(key.startswith("engine.build-id:") and "/libc.so" in key for key in facts)
    executable = os.path.realpath(f"/proc/{rank}/exe")
    assert f"engine.build-id:{executable}" in facts
    versions = {key: value for key, value in facts.items() if not key.startswith("engine.build-id:")}
    assert versions.items() >= {
        ("engine.torch", "2.11.0+cu128"),
        ("engine.nccl", "2.28.9"),
        ("engine.cuda", "12.8.90"),
        ("engine.triton", "3.5.1"),
    }
    assert "engine.numpy" not in versions


ENGINES = [
    ("vllm", "vllm/_C.abi3.so", "vllm-0.14.1rc2.dev7+gabc1234.d20260101", "0.14.1rc2.dev7+gabc1234.d20260101"),
    ("sglang", "sgl_kernel/common_ops.abi3.so", "sglang-0.5.9.post1", "0.5.9.post1"),
    ("tensorrt-llm", "tensorrt_llm/libs/libtensorrt_llm.so", "tensorrt_llm-1.2.0rc3", "1.2.0rc3"),
    ("jax", "jaxlib/_jax.so", "jax-0.9.0", "0.9.0"),
    ("jaxlib", "jaxlib/_jax.so", "jaxlib-0.9.0", "0.9.0"),
    ("megatron-core", "megatron/core/datasets/helpers_cpp.so", "megatron_core-0.16.0rc0", "0.16.0rc0"),
    ("megatron-core", "megatron/core/datasets/helpers_cpp.so", "Megatron.Core-0.16.0", "0.16.0"),
    ("transformer-engine", "transformer_engine/x.so", "transformer_engine-2.11.0+c188b533", "2.11.0+c188b533"),
    ("nccl", "nvidia/nccl/lib/libnccl.so.2", "nvidia_nccl_cu13-2.30.7", "2.30.7"),
]


@pytest.mark.parametrize("place", ["venv/lib/python3.12/site-packages", "usr/local/lib/python3.12/dist-packages"])
@pytest.mark.parametrize(("key", "library", "metadata", "version"), ENGINES)
def test_engines_by_a_library_that_is_mapped(
    key: str, library: str, metadata: str, version: str, place: str, tmp_path: Path
) -> None:
    """What pip leaves of each; nothing of it is imported, and the code of it would end the test."""
    directory = tmp_path / place
    file = directory / library
    file.parent.mkdir(parents=True)
    file.write_bytes(os.urandom(4096))
    (directory / f"{metadata}.dist-info").mkdir()
    for package in {library.split("/")[0], key.replace("-", "_")}:
        (directory / package).mkdir(exist_ok=True)
        (directory / package / "__init__.py").write_text("raise SystemExit('imported')")
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC):
        facts = engine(used(os.getpid()))
    assert facts[f"engine.{key}"] == version
    assert facts[f"engine.build-id:{file}"].startswith("blake3:")
    assert compare(facts, check_engine(facts)) == []
    (directory / f"{metadata}.dist-info").rename(directory / f"{metadata}.post9.dist-info")
    assert explain(compare(facts, check_engine(facts))).startswith(f"{key} {version} -> {version}.post9")


def test_more_places_than_any_program_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurmckpt.fingerprint.engine._MAX_DIRECTORIES", 2)
    recorded = {}
    for number in range(3):
        directory = tmp_path / f"{number}/site-packages"
        (directory / f"torch-2.{number}.dist-info").mkdir(parents=True)
        recorded[f"engine.build-id:{directory}/x.so"] = "00"
    assert check_engine(recorded) == {"engine.torch": "2.0 2.1"}


def test_the_same_node_fits(rank: int) -> None:
    facts = engine(used(rank, rank))
    assert check_engine(facts) == facts
    assert compare(facts, check_engine(facts)) == []


def test_another_version_is_named_first(rank: int, packages: Path) -> None:
    facts = engine(used(rank))
    (packages / "torch-2.11.0+cu128.dist-info").rename(packages / "torch-2.12.0.dist-info")
    build(packages / "torch/lib/libtorch.so", "ff" * 20)
    differences = compare(facts, check_engine(facts))
    assert explain(differences) == "torch 2.11.0+cu128 -> 2.12.0; libtorch.so is another build"


def test_what_is_mapped_counts_not_what_has_taken_its_name(rank: int, packages: Path) -> None:
    """An upgrade under a running job: the processes still have the old library."""
    links = Path(f"/proc/{rank}/map_files")
    try:
        os.close(os.open(next(links.iterdir()), os.O_PATH))
    except PermissionError:
        pytest.skip("needs CAP_CHECKPOINT_RESTORE, to open what is mapped")
    build(packages / "torch/lib/libtorch.so", "ff" * 20)
    facts = engine(used(rank))
    assert facts[f"engine.build-id:{packages}/torch/lib/libtorch.so"] == BUILD_ID
    assert explain(compare(facts, check_engine(facts))) == "libtorch.so is another build"


def test_a_library_that_is_gone(rank: int, packages: Path) -> None:
    facts = engine(used(rank))
    (packages / "torch/lib/libtorch.so").unlink()
    assert explain(compare(facts, check_engine(facts))) == f"libtorch.so {BUILD_ID} -> none"


def test_a_file_without_a_build_id_is_known_by_its_content(tmp_path: Path) -> None:
    file = tmp_path / "code.bin"
    file.write_bytes(b"\x90" * 8192)
    recorded = {f"engine.build-id:{file}": "?"}
    before = check_engine(recorded)
    assert before[f"engine.build-id:{file}"].startswith("blake3:")
    file.write_bytes(b"\x90" * 8191 + b"\xc3")
    assert check_engine(recorded) != before


def test_another_root(rank: int, packages: Path, tmp_path: Path) -> None:
    facts = {key: value for key, value in engine(used(rank)).items() if "libtorch" in key or key == "engine.torch"}
    root = tmp_path / "root"
    moved = root / str(packages).lstrip("/")
    shutil.copytree(packages, moved)
    assert check_engine(facts, root).items() >= facts.items()


def test_hostile_records(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    recorded = {
        f"engine.build-id:{tmp_path}/fifo": "a",
        "engine.build-id:/dev/zero": "a",
        "engine.build-id:": "a",
        "engine.build-id:/a\0b": "a",
        "engine.build-id:" + "/x" * 5000: "a",
        "host.kernel": "1",
    }
    assert check_engine(recorded) == {}


def test_no_process() -> None:
    assert engine([]) == {}
    assert engine(used(2**22 + 1)) == {}
