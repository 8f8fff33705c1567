"""Which model the ranks work with: the weight files that they hold, or the name that the user gave."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from slurmckpt.fingerprint.compare import Fingerprint
from slurmckpt.fingerprint.procfiles import ProcessFile, on_fuse, open_regular
from slurmckpt.fingerprint.sample import sampled_hash

_FILE = "model.file:"
_SUFFIXES = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
# Where the cache of Hugging Face keeps what its snapshots link to, under the hash of the content (huggingface_hub,
# "Understand caching"): a process has the blob open, whose name says nothing of its kind.
_BLOB = re.compile(r".*/models--[^/]+/blobs/[0-9a-f]{40,64}", re.ASCII)
_SMALLEST = 1 << 20  # a .bin or .pt below 1 MiB holds no weights worth a refusal
# Of so many something is read, 2 MiB each at most (sample.py). Of others, shards of a data set rather than of a model,
# the size has to do.
_READ = 512
_HASHED = ", blake3 "


def model(files: Iterable[ProcessFile], name: str | None = None) -> Fingerprint:
    """The keys `model.*`: the name given with --checkpoint-model, otherwise the weight files among these.

    A file open for writing is no model but what the job produces. Weights that were read and closed are in the
    processes' memory and not seen here. Blocks on the processes' storage: call it in the user's thread.
    """
    if name:
        return {"model.id": name}
    facts: Fingerprint = {}
    for file in files:
        if (file.path.endswith(_SUFFIXES) or _BLOB.fullmatch(file.path)) and _FILE + file.path not in facts:
            with contextlib.suppress(OSError), open_regular(file.places, file.inode) as descriptor:
                if os.fstat(descriptor).st_size >= _SMALLEST:
                    facts[_FILE + file.path] = _identity(descriptor, len(facts) < _READ)
    return facts


def check_model(recorded: Mapping[str, str], name: str | None = None, root: Path = Path("/")) -> Fingerprint:
    """The recorded keys `model.*` as they are on this node now, for compare(); what is missing here is left out.

    name: the job's --checkpoint-model now. root: where the job's root directory is seen from here.
    """
    facts: Fingerprint = {"model.id": name} if name else {}
    for key, identity in recorded.items():
        if key.startswith(_FILE) and not on_fuse(key[len(_FILE) :]):
            place = root / key[len(_FILE) :].lstrip("/")
            with contextlib.suppress(OSError, ValueError), open_regular([place]) as descriptor:
                facts[key] = _identity(descriptor, _HASHED in identity)
    return facts


def _identity(descriptor: int, is_read: bool) -> str:
    return f"{os.fstat(descriptor).st_size} bytes" + (f"{_HASHED}{sampled_hash(descriptor)}" if is_read else "")
