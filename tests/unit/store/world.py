"""One job's store for the tests: what is in it, and what is done with it most."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from slurmckpt.identity import JobIdentity
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.layout import JobStore
from slurmckpt.store.manifest import Manifest, StepImage, TaskImage
from slurmckpt.store.signature import sign
from slurmckpt.store.transfer import fetch, publish

USER_UID = 47110
USER_GID = 47111
KEY = b"0123456789abcdef0123456789abcdef"

CONTENTS: dict[str, bytes] = {
    "batch/images/core-101.img": b"core of the shell" * 100,
    "0/images/pages-1.img": bytes(range(256)) * 20_000 + b"tail",  # 5 MB: more than one chunk
    "0/images/empty.img": b"",
    "0/images/zeros.img": bytes(9 * 2**20),
    "0/shm/torch_1": b"shared memory",
    "output/0": b"line 1\nline 2\n",
    "dump.log": b"\xff\x00 not text",
}


async def lease_kept() -> None:
    """A lease that is never lost."""


@dataclass
class World:
    """One job's store, its staging directory and its site key, with what the tests do most."""

    top: Path
    job: JobIdentity
    store: JobStore
    files: UserFiles
    staging: Path
    key: bytes = KEY

    def fill(self, contents: dict[str, bytes]) -> Path:
        """Make these the content of staging."""
        shutil.rmtree(self.staging)
        self.staging.mkdir(mode=0o700)
        for name, data in contents.items():
            path = self.staging / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod(0o600)
        return self.staging

    def manifest(self, seq: int) -> Manifest:
        return Manifest(
            product_version="0.1.0",
            cluster=self.job.cluster,
            user=self.job.user,
            uid=self.job.uid,
            job_id=self.job.job_id,
            seq=seq,
            epoch=1,
            node="n1",
            created=1_800_000_000.5,
            interval="600s",
            freeze_seconds=0.28,
            steps=[
                StepImage(
                    step="0",
                    directory="0",
                    leader_pid=100,
                    status_pipe="pipe:[4711]",
                    ntasks=1,
                    argv_digest="ab" * 32,
                    uid=self.job.uid,
                    gid=self.job.gid,
                    tasks=[
                        TaskImage(index=0, gtask=0, pid=101, exited=False, status=0, descriptors={"1": "pipe:[12]"})
                    ],
                    addresses=["10.0.0.1"],
                    open_files=[],
                    criu_version="4.2.1",
                    shm=True,
                    hostname="n1",
                )
            ],
            outputs=[],
            fingerprint={"host.arch": "x86_64"},
            node_feature="slurmckpt-0123456789ab",
            attempt=1,
        )

    def publish(
        self,
        seq: int = 1,
        contents: dict[str, bytes] | None = None,
        compression: Literal["zstd", "none"] = "zstd",
        level: int = 1,
    ) -> Manifest:
        self.fill(CONTENTS if contents is None else contents)
        return asyncio.run(
            publish(self.staging, self.store, self.files, self.manifest(seq), self.key, compression, level, lease_kept)
        )

    def forge(self, seq: int, change: Callable[[Manifest], Manifest]) -> None:
        """Replace the manifest of a committed checkpoint by a changed one with a good signature, as only root could."""
        directory = self.store.checkpoint(seq)
        data = change(Manifest.from_json((directory / "manifest.json").read_bytes())).to_json()
        (directory / "manifest.json").write_bytes(data)
        (directory / "manifest.sig").write_text(sign(data, self.key), encoding="ascii")

    def fetch(self, seq: int = 1, key: bytes | None = None) -> tuple[Manifest, Path]:
        target = self.top / "fetched"
        manifest = asyncio.run(fetch(self.store, seq, self.files, self.key if key is None else key, target))
        return manifest, target

    def names(self) -> set[str]:
        """What lies in the job's directory, without the claims and probes of the lease."""
        return {name for name in os.listdir(self.store.dir) if not name.startswith(".")}

    def as_user(self, function: Callable[..., object], *args: object) -> None:
        """What the user does in the own directory."""
        self.files.run_sync(function, *args)

    def other_job(self, **changes: object) -> JobStore:
        return JobStore(self.store.root, replace(self.job, **changes))  # type: ignore[arg-type]
