"""The manifest of a group checkpoint: what it holds, and of which job.

The store is not trusted, so a manifest counts only after its signature under the site key has been verified. Reading is
strict all the same: a manifest that this version does not understand completely is refused with one line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Literal, NoReturn

from slurmckpt.errors import Refused
from slurmckpt.store import checks, gpu
from slurmckpt.store.fields import Fields, parse_object

MANIFEST_FORMAT = 3
MANIFEST_NAME = "manifest.json"
SIGNATURE_NAME = "manifest.sig"
MAX_MANIFEST_BYTES = 64 * 2**20

Stored = Literal["plain", "zstd"]
FilePolicy = Literal["truncate", "keep", "save", "unchanged", "carried"]
_FILE_POLICIES: tuple[FilePolicy, ...] = ("truncate", "keep", "save", "unchanged", "carried")

_HEX = re.compile(r"(?:[0-9a-f]{2}){0,2048}", re.ASCII)


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
    """A regular file that a pod had open for writing, or that belongs to one. size in bytes; all as at the boundary.

    policy: what a restore does with it (coordinator/files/rules.py). inode: decimal; empty when unknown. modified: ns
    since 1970. owner, group: ids. content: where its bytes begin in `files.data`, for the policy "save"; else None.
    sample: a short hash of places in it, for "truncate"; empty when there is none.
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


@dataclass(frozen=True)
class TaskImage:
    """One task of a step. index: local task id; gtask: global task id; pid: inside the pod.

    exited, status: the task had ended with this wait status. descriptors: descriptor number to CRIU's external key.
    held: descriptor number to the beginning of a line (hex) that the task had written and its shim still held back.
    """

    index: int
    gtask: int
    pid: int
    exited: bool
    status: int
    descriptors: dict[str, str] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Connection:
    """A TCP connection by its ends, each `address:port` (`[address]:port` for IPv6)."""

    local: str
    remote: str


@dataclass(frozen=True)
class LaunchImage:
    """An srun that the captured batch script waits for. number: which srun of the script. pid: of its stand-in, in the
    pod.

    step: name of the captured step that it had brought; empty when that had not begun. status: raw wait status when it
    had ended, None when it ran. signal_pipe, status_pipe: CRIU's keys of the stand-in's pipes. payload: file of the
    checkpoint with what it is started from; None when it had ended. input: file with what it had read from its standard
    input and its step had not; None when there is none.
    """

    number: int
    pid: int
    step: str
    status: int | None
    signal_pipe: str
    status_pipe: str
    payload: str | None
    input: str | None


@dataclass(frozen=True)
class StepImage:
    """One captured pod. step: `batch`, or which step of the script. command: for messages.

    directory: relative to the checkpoint; so are the files named below, but to this directory.

    leader_pid: inside the pod. status_pipe: CRIU's external key of the leader's status pipe. shm: /dev/shm was saved.
    addresses: of the node, that sockets are bound to. node_addresses: all of the node: ranks that do not talk to each
    other yet may know it by any. outside: connections that led out of the pod; inside: those that did not, each as
    both of its ends name it. launches: sruns that a batch script waits for. environment: file of the checkpoint with
    SLURM_* as they were when the batch script began. script_path, script_digest: where the batch script lay on its
    node, and SHA-256 (hex) of its content; empty for a step. absent_files: paths that would belong to an open file, and
    where none was. gpu: None when no process had CUDA state.
    """

    step: str
    directory: str
    leader_pid: int
    status_pipe: str
    ntasks: int
    argv_digest: str
    uid: int
    gid: int
    tasks: list[TaskImage]
    addresses: list[str]
    open_files: list[OpenFile]
    criu_version: str
    shm: bool
    hostname: str
    outside: list[Connection] = field(default_factory=list)
    node_addresses: list[str] = field(default_factory=list)
    inside: list[Connection] = field(default_factory=list)
    command: str = ""
    launches: list[LaunchImage] = field(default_factory=list)
    environment: str | None = None
    script_path: str = ""
    script_digest: str = ""
    absent_files: list[str] = field(default_factory=list)
    gpu: gpu.GpuImage | None = None


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
            steps=[_step(item) for item in fields.objects("steps")],
            outputs=[_output(item) for item in fields.objects("outputs")],
            fingerprint=fields.text_map("fingerprint"),
            node_feature=fields.text("node_feature"),
            attempt=fields.whole("attempt", lowest=0),
            steps_started=fields.whole("steps_started", lowest=0),
            launches_started=fields.whole("launches_started", lowest=0),
            script_status=fields.optional_whole("script_status", lowest=0, highest=0xFFFF),
            carried=[_carried(item) for item in fields.objects("carried")],
            files=[_file(item) for item in fields.objects("files")],
        )
        fields.done()
        _check_tree(file.path for file in manifest.files)
        return manifest


def _refuse(message: str) -> NoReturn:
    raise Refused(message)


def _step(fields: Fields) -> StepImage:
    step = StepImage(
        step=checks.name(fields, "step"),
        directory=checks.relative(fields, "directory"),
        leader_pid=fields.whole("leader_pid", lowest=1),
        status_pipe=fields.text("status_pipe"),
        ntasks=fields.whole("ntasks", lowest=0),
        argv_digest=fields.text("argv_digest"),
        uid=fields.whole("uid", lowest=0),
        gid=fields.whole("gid", lowest=0),
        tasks=[_task(item) for item in fields.objects("tasks")],
        addresses=fields.texts("addresses"),
        open_files=[_open_file(item) for item in fields.objects("open_files")],
        criu_version=fields.text("criu_version"),
        shm=fields.flag("shm"),
        hostname=fields.text("hostname"),
        outside=[_connection(item) for item in fields.objects("outside")],
        node_addresses=fields.texts("node_addresses"),
        inside=[_connection(item) for item in fields.objects("inside")],
        command=fields.text("command"),
        launches=[_launch(item) for item in fields.objects("launches")],
        environment=checks.file_name(fields, "environment"),
        script_path=fields.text("script_path"),
        script_digest=fields.text("script_digest"),
        absent_files=checks.absolutes(fields, "absent_files"),
        gpu=gpu.read(gpu_fields) if (gpu_fields := fields.optional_object("gpu")) is not None else None,
    )
    fields.done()
    return step


def _launch(fields: Fields) -> LaunchImage:
    launch = LaunchImage(
        number=fields.whole("number", lowest=0),
        pid=fields.whole("pid", lowest=1),
        step=fields.text("step"),
        status=fields.optional_whole("status"),
        signal_pipe=fields.text("signal_pipe"),
        status_pipe=fields.text("status_pipe"),
        payload=checks.file_name(fields, "payload"),
        input=checks.file_name(fields, "input"),
    )
    if (launch.status is None) != (launch.payload is not None):
        fields.fail("payload", "a file for an srun that ran, and null for one that had ended")
    fields.done()
    return launch


def _connection(fields: Fields) -> Connection:
    connection = Connection(local=checks.endpoint(fields, "local"), remote=checks.endpoint(fields, "remote"))
    fields.done()
    return connection


def _task(fields: Fields) -> TaskImage:
    descriptors = fields.text_map("descriptors")
    if not all(number.isascii() and number.isdigit() for number in descriptors):
        fields.fail("descriptors", "descriptor numbers as keys")
    held = fields.text_map("held")
    if not all(number in descriptors and _HEX.fullmatch(text) for number, text in held.items()):
        fields.fail("held", "bytes in hex for some of the descriptors")
    task = TaskImage(
        index=fields.whole("index", lowest=0),
        gtask=fields.whole("gtask", lowest=0),
        pid=fields.whole("pid", lowest=0),
        exited=fields.flag("exited"),
        status=fields.whole("status"),
        descriptors=descriptors,
        held=held,
    )
    fields.done()
    return task


def _open_file(fields: Fields) -> OpenFile:
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
    if (file.policy == "save") != (file.content is not None):
        fields.fail("content", 'a place for the policy "save", and null for all others')
    fields.done()
    return file


def _policy(fields: Fields) -> FilePolicy:
    text = fields.text("policy")
    for policy in _FILE_POLICIES:
        if text == policy:
            return policy
    fields.fail("policy", " or ".join(f'"{policy}"' for policy in _FILE_POLICIES))


def _carried(fields: Fields) -> CarriedDirectory:
    directory = CarriedDirectory(path=checks.absolute(fields, "path"), archive=checks.relative(fields, "archive"))
    fields.done()
    return directory


def _output(fields: Fields) -> OutputFile:
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


def _file(fields: Fields) -> StoredFile:
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


def _check_tree(paths: Iterable[str]) -> None:
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
