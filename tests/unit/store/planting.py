"""What a user can plant in a store, and what is signed without being what it says."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from blake3 import blake3

from slurmckpt.store.manifest import StoredFile
from tests.unit.store.world import World


def plant_link(path: Path, world: World) -> None:
    path.symlink_to(world.top / "secret")


def plant_fifo(path: Path, _: World) -> None:
    os.mkfifo(path)


def stored(world: World, data: bytes, size: int, content: bytes) -> None:
    """A well signed checkpoint with one zstd file: `data` in the store, said to be `content`, of `size` bytes."""
    world.publish(contents={"file": b"placeholder"})
    world.store.checkpoint(1).joinpath("file").write_bytes(data)
    file = StoredFile("file", size, 0o600, blake3(content).hexdigest(), "zstd", len(data))
    world.forge(1, lambda manifest: replace(manifest, files=[file]))
