"""What the manifest says of a captured pod: its step, tasks, connections and, of a batch script, sruns."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from slurmckpt.store.fields import Fields
from slurmckpt.store.manifest import checks
from slurmckpt.store.manifest.files import OpenFile, read_open
from slurmckpt.store.manifest.gpu import GpuImage, read_gpu

_HEX = re.compile(r"(?:[0-9a-f]{2}){0,2048}", re.ASCII)


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
    node, and SHA-256 (hex) of its content; empty for a step. script_paths: where slurmd had it, on all nodes so far.
    absent_files: paths that would belong to an open file, and
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
    script_paths: list[str] = field(default_factory=list)
    absent_files: list[str] = field(default_factory=list)
    gpu: GpuImage | None = None


def read_step(fields: Fields) -> StepImage:
    """An entry of `steps`. Raises Refused, as all reading of a manifest."""
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
        open_files=[read_open(item) for item in fields.objects("open_files")],
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
        script_paths=checks.absolutes(fields, "script_paths"),
        absent_files=checks.absolutes(fields, "absent_files"),
        gpu=read_gpu(gpu_fields) if (gpu_fields := fields.optional_object("gpu")) is not None else None,
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
