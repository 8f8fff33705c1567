"""What the manifest says of files: those of the checkpoint itself, and those of the job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, get_args

from slurmckpt.errors import Refused
from slurmckpt.store.fields import Fields
from slurmckpt.store.manifest import checks

MANIFEST_NAME = "manifest.json"
SIGNATURE_NAME = "manifest.sig"

Stored = Literal["plain", "zstd"]
FilePolicy = Literal[
    "truncate", "keep", "save", "unchanged", "carried", "pipe", "read", "temporary", "link", "directory"
]
_FILE_POLICIES: tuple[FilePolicy, ...] = get_args(FilePolicy)
_SAVED = ("save", "read", "temporary", "link")


@dataclass(frozen=True)
class StoredFile:
    """One file of the checkpoint. path: relative to the checkpoint; size in bytes and blake3 (hex) of the content
    itself; stored: how it lies in the store, in stored_size bytes. mode: permission bits.
    """

    path: str
    size: int
    mode: int
    blake3: str
    stored: Stored
    stored_size: int


@dataclass(frozen=True)
class OpenFile:
    """A file that a pod had open for writing, or that belongs to one, or a named pipe; or one that it reads, or has
    put into a temporary directory. All as at the boundary.

    size: in bytes. policy: what a restore does with it (coordinator/files/rules.py). inode: decimal; empty when
    unknown. modified: ns since 1970. owner, group: ids. content: where its bytes begin in `files.data`, for the
    policies that save it (of a link: those of what it leads to); else None. sample: a short hash of places in it, for
    "truncate"; empty when there is none.
    """

    path: str
    size: int
    mode: int
    inode: str = ""
    policy: FilePolicy = "truncate"
    modified: int = 0
    owner: int = 0
    group: int = 0
    content: int | None = None
    sample: str = ""


@dataclass(frozen=True)
class CarriedDirectory:
    """A directory of the job that comes along with it. archive: file of the checkpoint with its content (tar)."""

    path: str
    archive: str


@dataclass(frozen=True)
class OutputFile:
    """An output file of the job. size: bytes at the boundary.

    content: name under `output/` of the content up to the boundary; None when it was not saved. holders: its writers,
    each with the offset of its descriptor at the boundary.
    """

    path: str
    size: int
    content: str | None
    holders: dict[str, int] = field(default_factory=dict)


def read_stored(fields: Fields) -> StoredFile:
    """An entry of `files`. Raises Refused, as all reading of a manifest."""
    digest = fields.text("blake3")
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        fields.fail("blake3", "64 hex digits")
    file = StoredFile(
        path=checks.relative(fields, "path"),
        size=fields.whole("size", lowest=0),
        # No set-user-id: a restore gives this mode to a file of root.
        mode=fields.whole("mode", lowest=0, highest=0o777),
        blake3=digest,
        stored=_stored(fields),
        stored_size=fields.whole("stored_size", lowest=0),
    )
    if file.stored == "plain" and file.stored_size != file.size:
        fields.fail("stored_size", "the same as size for a plain file")
    fields.done()
    return file


def _stored(fields: Fields) -> Stored:
    text = fields.text("stored")
    if text == "plain":
        return "plain"
    if text == "zstd":
        return "zstd"
    fields.fail("stored", '"plain" or "zstd"')


def read_open(fields: Fields) -> OpenFile:
    """An entry of `open_files` of a step."""
    file = OpenFile(
        path=checks.absolute(fields, "path"),
        size=fields.whole("size", lowest=0),
        mode=checks.mode(fields),
        inode=checks.digits(fields, "inode"),
        policy=_policy(fields),
        modified=fields.whole("modified"),
        owner=fields.whole("owner", lowest=0),
        group=fields.whole("group", lowest=0),
        content=fields.optional_whole("content", lowest=0),
        sample=fields.text("sample"),
    )
    if (file.policy in _SAVED) != (file.content is not None):
        fields.fail("content", "a place for the policies " + ", ".join(_SAVED) + ", and null for all others")
    fields.done()
    return file


def _policy(fields: Fields) -> FilePolicy:
    text = fields.text("policy")
    for policy in _FILE_POLICIES:
        if text == policy:
            return policy
    fields.fail("policy", " or ".join(f'"{policy}"' for policy in _FILE_POLICIES))


def read_carried(fields: Fields) -> CarriedDirectory:
    """An entry of `carried`."""
    directory = CarriedDirectory(path=checks.absolute(fields, "path"), archive=checks.relative(fields, "archive"))
    fields.done()
    return directory


def read_output(fields: Fields) -> OutputFile:
    """An entry of `outputs`."""
    content = fields.optional_text("content")
    if content is not None and (not checks.is_plain_path(content) or "/" in content):
        fields.fail("content", "one file name, or null")
    output = OutputFile(
        path=checks.absolute(fields, "path"),
        size=fields.whole("size", lowest=0),
        content=content,
        holders=fields.whole_map("holders", lowest=0),
    )
    fields.done()
    return output


def check_tree(paths: Iterable[str]) -> None:
    """Refuse a path that comes twice, one that is a directory of another, and the manifest's own names."""
    files: set[str] = set()
    directories: set[str] = set()
    for path in paths:
        if path in files or path in (MANIFEST_NAME, SIGNATURE_NAME):
            raise Refused(f"manifest: file {path!r} is listed twice or has a reserved name")
        files.add(path)
        parts = path.split("/")
        directories.update("/".join(parts[:count]) for count in range(1, len(parts)))
    both = files & directories
    if both:
        raise Refused(f"manifest: {min(both)!r} is listed as a file and as a directory")
