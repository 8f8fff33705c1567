"""The software that the ranks run: what they have mapped, by build id, and the framework's packages by version."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from slurmckpt.fingerprint.compare import Fingerprint
from slurmckpt.fingerprint.elf import build_id
from slurmckpt.fingerprint.procfiles import ProcessFile, on_fuse, open_regular
from slurmckpt.fingerprint.sample import sampled_hash

_BUILD_ID = "engine.build-id:"
# Distribution (normalised as in PEP 503) to key. What a mismatch is explained with: "torch 2.10.0 -> 2.11.0" tells a
# user more than a hundred build ids.
_PACKAGES = {
    "torch": "engine.torch",
    "torchvision": "engine.torchvision",
    "triton": "engine.triton",
    "jax": "engine.jax",
    "jaxlib": "engine.jaxlib",
    "tensorflow": "engine.tensorflow",
    "vllm": "engine.vllm",
    "sglang": "engine.sglang",
    "tensorrt-llm": "engine.tensorrt-llm",
    "megatron-core": "engine.megatron-core",
    "deepspeed": "engine.deepspeed",
    "flash-attn": "engine.flash-attn",
    "transformer-engine": "engine.transformer-engine",
    "nvidia-nccl": "engine.nccl",
    "nvidia-cuda-runtime": "engine.cuda",
    "nvidia-cudnn": "engine.cudnn",
    "nvidia-cublas": "engine.cublas",
}
_METADATA = re.compile(r"(?P<name>[A-Za-z0-9_.-]+?)-(?P<version>\d[^-/]*)(?:-py[\d.]+)?\.(?:dist|egg)-info", re.ASCII)
_PACKAGE_DIRECTORY = re.compile(r"(.*/(?:site|dist)-packages)/")
# Who has mapped files in more places than any program has gets no versions from there.
_MAX_DIRECTORIES = 64
_MAX_ENTRIES = 20_000


def engine(files: Iterable[ProcessFile]) -> Fingerprint:
    """The keys `engine.*` of processes that use these files: those mapped as code, and known packages.

    Nothing is imported or executed. Blocks on the processes' storage: call it in the user's thread.
    """
    facts: Fingerprint = {}
    directories: set[tuple[Path, str]] = set()
    for file in files:
        key = _BUILD_ID + file.path
        if not file.executable or key in facts:
            continue
        with contextlib.suppress(OSError), open_regular(file.places, file.inode) as descriptor:
            facts[key] = _content(descriptor)
        if match := _PACKAGE_DIRECTORY.match(file.path):
            directories.add((file.root, match[1]))
    return facts | _packages(directories)


def build_id_key(path: Path) -> str:
    """The key of the file at `path`, as the ranks see it."""
    return f"{_BUILD_ID}{path}"


def check_engine(recorded: Mapping[str, str], root: Path = Path("/")) -> Fingerprint:
    """The recorded keys `engine.*` as they are on this node now, for compare(); what is missing here is left out.

    root: where the job's root directory is seen from here. Blocks on storage: call it in the user's thread.
    """
    facts: Fingerprint = {}
    directories: set[tuple[Path, str]] = set()
    for key in recorded:
        if not key.startswith(_BUILD_ID):
            continue
        path = key[len(_BUILD_ID) :]
        if on_fuse(path):
            continue
        with contextlib.suppress(OSError, ValueError), open_regular([_inside(root, path)]) as descriptor:
            facts[key] = _content(descriptor)
        if match := _PACKAGE_DIRECTORY.match(path):
            directories.add((root, match[1]))
    return facts | _packages(directories)


def _content(descriptor: int) -> str:
    """What tells this file from another build of it. Few executables have no build id."""
    return build_id(descriptor) or f"blake3:{sampled_hash(descriptor)}"


def _packages(directories: Iterable[tuple[Path, str]]) -> Fingerprint:
    """Versions of the known packages in these directories, from the names of their metadata directories."""
    versions: dict[str, set[str]] = {}
    for root, directory in sorted(directories)[:_MAX_DIRECTORIES]:
        for name in _names(_inside(root, directory)):
            match = _METADATA.fullmatch(name)
            key = _PACKAGES.get(_normalised(match["name"])) if match else None
            if match and key:
                versions.setdefault(key, set()).add(match["version"])
    # A venv on top of the system's packages may see two; what counts is that it is the same two.
    return {key: " ".join(sorted(found)) for key, found in versions.items()}


def _names(directory: Path) -> list[str]:
    with contextlib.suppress(OSError, ValueError), os.scandir(directory) as entries:
        return [entry.name for entry, _ in zip(entries, range(_MAX_ENTRIES), strict=False)]
    return []


def _normalised(name: str) -> str:
    """PEP 503, and without the CUDA release that NVIDIA's packages carry in their names (nvidia-nccl-cu12)."""
    return re.sub(r"-cu\d+$", "", re.sub(r"[-_.]+", "-", name).lower())


def _inside(root: Path, path: str) -> Path:
    return root / path.lstrip("/")
