"""The manifest as a whole: one group checkpoint, and of which job."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import NoReturn

from slurmckpt.errors import Refused
from slurmckpt.store.fields import Fields, parse_object
from slurmckpt.store.manifest import checks
from slurmckpt.store.manifest.files import (
    CarriedDirectory,
    OutputFile,
    StoredFile,
    check_tree,
    read_carried,
    read_output,
    read_stored,
)
from slurmckpt.store.manifest.steps import StepImage, read_step

MANIFEST_FORMAT = 3
MAX_MANIFEST_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Manifest:
    """A group checkpoint. created: seconds since 1970. freeze_seconds: how long the ranks stood still.

    steps_started, launches_started: how many steps and sruns the script had started by then. script_status: wait status
    of a batch script that had ended, where that is all that this checkpoint says (coordinator/finished.py); else None.
    carried: directories that come along.
    """

    product_version: str
    cluster: str
    user: str
    uid: int
    job_id: int
    seq: int
    epoch: int
    node: str
    created: float
    interval: str
    freeze_seconds: float
    steps: list[StepImage]
    outputs: list[OutputFile]
    fingerprint: dict[str, str]
    node_feature: str
    attempt: int
    steps_started: int = 0
    launches_started: int = 0
    script_status: int | None = None
    carried: list[CarriedDirectory] = field(default_factory=list)
    files: list[StoredFile] = field(default_factory=list)
    format: int = MANIFEST_FORMAT

    def to_json(self) -> bytes:
        """The exact bytes that are signed and stored. ASCII: names that are not UTF-8 survive as escapes."""
        return (json.dumps(asdict(self), indent=1, sort_keys=True, allow_nan=False) + "\n").encode("ascii")

    @classmethod
    def from_json(cls, data: bytes) -> Manifest:
        """The manifest in `data`, whose signature the caller has verified. Raises Refused with one line."""
        fields = Fields("manifest", parse_object("manifest", data), _refuse)
        version = fields.whole("format", lowest=0)
        if version != MANIFEST_FORMAT:
            raise Refused(f"manifest has format {version}; this version of slurmckpt reads format {MANIFEST_FORMAT}")
        manifest = cls(
            format=version,
            product_version=fields.text("product_version"),
            cluster=checks.name(fields, "cluster"),
            user=checks.name(fields, "user"),
            uid=fields.whole("uid", lowest=0),
            job_id=fields.whole("job_id", lowest=1),
            seq=fields.whole("seq", lowest=1),
            epoch=fields.whole("epoch", lowest=0),
            node=fields.text("node"),
            created=fields.number("created"),
            interval=fields.text("interval"),
            freeze_seconds=fields.number("freeze_seconds"),
            steps=[read_step(item) for item in fields.objects("steps")],
            outputs=[read_output(item) for item in fields.objects("outputs")],
            fingerprint=fields.text_map("fingerprint"),
            node_feature=fields.text("node_feature"),
            attempt=fields.whole("attempt", lowest=0),
            steps_started=fields.whole("steps_started", lowest=0),
            launches_started=fields.whole("launches_started", lowest=0),
            script_status=fields.optional_whole("script_status", lowest=0, highest=0xFFFF),
            carried=[read_carried(item) for item in fields.objects("carried")],
            files=[read_stored(item) for item in fields.objects("files")],
        )
        fields.done()
        check_tree(file.path for file in manifest.files)
        return manifest


def _refuse(message: str) -> NoReturn:
    raise Refused(message)
