"""The manifest of a group checkpoint: what it holds, and of which job.

The store is not trusted, so a manifest counts only after its signature under the site key has been verified. Reading is
strict all the same: a manifest that this version does not understand completely is refused with one line.
"""

from slurmckpt.store.manifest.checkpoint import MANIFEST_FORMAT, MAX_MANIFEST_BYTES, Manifest
from slurmckpt.store.manifest.files import (
    MANIFEST_NAME,
    SIGNATURE_NAME,
    CarriedDirectory,
    OpenFile,
    OutputFile,
    Stored,
    StoredFile,
)
from slurmckpt.store.manifest.gpu import GpuImage
from slurmckpt.store.manifest.steps import Connection, LaunchImage, StepImage, TaskImage

__all__ = [
    "MANIFEST_FORMAT",
    "MANIFEST_NAME",
    "MAX_MANIFEST_BYTES",
    "SIGNATURE_NAME",
    "CarriedDirectory",
    "Connection",
    "GpuImage",
    "LaunchImage",
    "Manifest",
    "OpenFile",
    "OutputFile",
    "StepImage",
    "Stored",
    "StoredFile",
    "TaskImage",
]
