"""The record of a job: attempts, checkpoints and events, for `slurmckpt status`.

It is for display only and lies in the user's directory, so reading never fails: what makes no sense is left out. No
decision about a restore may rest on it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import TypeVar, cast

from slurmckpt.errors import Refused, StoreError, one_line
from slurmckpt.store.fields import parse_object
from slurmckpt.store.files import read_small, replace
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.layout import JobStore

RECORD_FORMAT = 1
MAX_RECORD_BYTES = 16 * 2**20
MAX_EVENTS = 200

Item = TypeVar("Item")


@dataclass
class StepNote:
    """A step of an attempt. state: a word such as `running`, `restored`, `ended`; status: wait status, when known."""

    step: str
    ntasks: int = 0
    state: str = ""
    status: int | None = None


@dataclass
class Attempt:
    """One incarnation. Times are seconds since 1970. outcome: a word or line once it has ended.

    restored_from: the checkpoint it started from. restored_seconds: how long the restore took. lost_seconds: work that
    is repeated (end of the last attempt's life minus time of the checkpoint), when known. cold_start: why nothing was
    restored. refused: one line for each checkpoint that could not be used.
    """

    epoch: int
    node: str
    started: float
    ended: float | None = None
    outcome: str | None = None
    restored_from: int | None = None
    restored_seconds: float | None = None
    lost_seconds: float | None = None
    cold_start: str | None = None
    refused: list[str] = field(default_factory=list)
    steps: list[StepNote] = field(default_factory=list)


@dataclass
class CheckpointNote:
    """A committed checkpoint. time: seconds since 1970. bytes: of the content, stored_bytes: in the store."""

    seq: int
    epoch: int
    time: float
    bytes: int
    stored_bytes: int
    freeze_seconds: float
    capture_seconds: float
    commit_seconds: float
    steps: list[str]
    node: str


@dataclass
class Event:
    """Something that happened, in one line. time: seconds since 1970."""

    time: float
    text: str


@dataclass
class SkippedNote:
    """Checkpoints that were not taken, one after the other. Times are seconds since 1970.

    reason: that of the last one. since: when the first was skipped for it. times: how many were.
    """

    reason: str
    since: float
    last: float
    times: int


@dataclass
class Record:
    """What happened to one job. Only the last 200 events are kept.

    name: the job's own. array: `12_3` for a task of an array. removed: when and by whom its checkpoints were removed,
    as the end of a sentence; None when they were not, or there have been new ones since. skipped: why the last
    checkpoint was not taken; None when it was. interval: what holds for the job, as parse_interval() takes it.
    """

    job_id: int
    user: str
    cluster: str
    attempts: list[Attempt] = field(default_factory=list)
    checkpoints: list[CheckpointNote] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    name: str = ""
    array: str = ""
    removed: str | None = None
    skipped: SkippedNote | None = None
    interval: str = ""
    format: int = RECORD_FORMAT

    def kept(self, seqs: Collection[int]) -> list[CheckpointNote]:
        """The notes of these checkpoints, in their order.

        Where all were removed, numbers begin anew: of several notes of one number it is the last.
        """
        newest = {note.seq: note for note in self.checkpoints}
        return [note for note in self.checkpoints if note.seq in seqs and newest[note.seq] is note]

    def add_event(self, time: float, text: str) -> None:
        """Append an event, and forget the oldest beyond the bound."""
        self.events.append(Event(time, one_line(text)))
        del self.events[:-MAX_EVENTS]

    def to_json(self) -> bytes:
        """The record as it is stored."""
        values = asdict(self)
        values["events"] = values["events"][-MAX_EVENTS:]
        return (json.dumps(values, indent=1) + "\n").encode("ascii")


async def load(store: JobStore, files: UserFiles) -> Record:
    """The record of the job; an empty one when there is none or it cannot be read. Never raises for its content."""
    return await files.run(read, store)


async def save(store: JobStore, files: UserFiles, record: Record) -> None:
    """Replace the record. Raises StoreError with one line."""
    await files.run(_write, store, record.to_json())


def read(store: JobStore) -> Record:
    """As load(), for a caller that is already in the user's thread."""
    job = store.job
    try:
        values = parse_object("record", read_small(store.dir, store.record.name, MAX_RECORD_BYTES))
    except (OSError, Refused):
        values = {}
    return Record(
        job_id=job.job_id,
        user=job.user,
        cluster=job.cluster,
        attempts=_items(values, "attempts", _attempt),
        checkpoints=_items(values, "checkpoints", _checkpoint),
        events=_items(values, "events", _event)[-MAX_EVENTS:],
        name=_text(values, "name") or "",
        array=_text(values, "array") or "",
        removed=_text(values, "removed"),
        skipped=_skipped(values.get("skipped")),
        interval=_text(values, "interval") or "",
    )


def _write(store: JobStore, data: bytes) -> None:
    try:
        replace(store.record, data)
    except OSError as error:
        raise StoreError(f"record {store.record} cannot be written: {error.strerror or error}") from error


def _items(
    values: Mapping[str, object], key: str, convert: Callable[[Mapping[str, object]], Item | None]
) -> list[Item]:
    found = values.get(key)
    if not isinstance(found, list):
        return []
    items = (convert(cast("dict[str, object]", value)) for value in found if isinstance(value, dict))
    return [item for item in items if item is not None]


def _attempt(values: Mapping[str, object]) -> Attempt | None:
    epoch, started = _whole(values, "epoch"), _number(values, "started")
    if epoch is None or started is None:
        return None
    return Attempt(
        epoch=epoch,
        node=_text(values, "node") or "",
        started=started,
        ended=_number(values, "ended"),
        outcome=_text(values, "outcome"),
        restored_from=_whole(values, "restored_from"),
        restored_seconds=_number(values, "restored_seconds"),
        lost_seconds=_number(values, "lost_seconds"),
        cold_start=_text(values, "cold_start"),
        refused=_texts(values, "refused"),
        steps=_items(values, "steps", _step_note),
    )


def _step_note(values: Mapping[str, object]) -> StepNote | None:
    step = _text(values, "step")
    if step is None:
        return None
    return StepNote(step, _whole(values, "ntasks") or 0, _text(values, "state") or "", _whole(values, "status"))


def _checkpoint(values: Mapping[str, object]) -> CheckpointNote | None:
    seq, epoch, time = _whole(values, "seq"), _whole(values, "epoch"), _number(values, "time")
    if seq is None or epoch is None or time is None:
        return None
    return CheckpointNote(
        seq=seq,
        epoch=epoch,
        time=time,
        bytes=_whole(values, "bytes") or 0,
        stored_bytes=_whole(values, "stored_bytes") or 0,
        freeze_seconds=_number(values, "freeze_seconds") or 0.0,
        capture_seconds=_number(values, "capture_seconds") or 0.0,
        commit_seconds=_number(values, "commit_seconds") or 0.0,
        steps=_texts(values, "steps"),
        node=_text(values, "node") or "",
    )


def _skipped(value: object) -> SkippedNote | None:
    if not isinstance(value, dict):
        return None
    values = cast("dict[str, object]", value)
    reason, times = _text(values, "reason"), _whole(values, "times")
    since, last = _number(values, "since"), _number(values, "last")
    if reason is None or since is None or last is None or times is None:
        return None
    return SkippedNote(reason, since, last, times)


def _event(values: Mapping[str, object]) -> Event | None:
    time, text = _number(values, "time"), _text(values, "text")
    return None if time is None or text is None else Event(time, text)


def _text(values: Mapping[str, object], key: str) -> str | None:
    """Text for a terminal: the user may have written escape sequences for an administrator to look at."""
    value = values.get(key)
    return one_line(value) if isinstance(value, str) else None


def _texts(values: Mapping[str, object], key: str) -> list[str]:
    value = values.get(key)
    return [one_line(item) for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _whole(values: Mapping[str, object], key: str) -> int | None:
    value = values.get(key)
    return value if type(value) is int and abs(value) < 2**63 else None


def _number(values: Mapping[str, object], key: str) -> float | None:
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < 2**63 and math.isfinite(value) else None
