"""The record: comes back as saved, and never fails to be read."""

from __future__ import annotations

import asyncio
import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurmckpt.errors import StoreError
from slurmckpt.store.record import Attempt, CheckpointNote, Event, Record, SkippedNote, StepNote, load, save
from tests.unit.store.world import World

EMPTY = Record(4711, "jane", "cluster")


def loaded(world: World) -> Record:
    return asyncio.run(load(world.store, world.files))


def saved(world: World, record: Record) -> None:
    asyncio.run(save(world.store, world.files, record))


def test_comes_back(world: World) -> None:
    record = Record(
        4711,
        "jane",
        "cluster",
        attempts=[
            Attempt(
                1, "n1", 1.5, 99.0, "node failed", None, None, None, "first start", [], [StepNote("0", 2, "ended", 256)]
            ),
            Attempt(2, "n2", 120.0, restored_from=3, restored_seconds=0.14, lost_seconds=12.5, refused=["#4: changed"]),
        ],
        checkpoints=[CheckpointNote(3, 1, 86.5, 436_000_000, 120_000_000, 0.28, 0.2, 1.5, ["batch", "0"], "n1")],
        skipped=SkippedNote("process 101 uses io_uring", 90.0, 110.5, 3),
    )
    record.add_event(121.0, "restored from #3")
    saved(world, record)
    assert loaded(world) == record


def test_none_yet(world: World) -> None:
    assert loaded(world) == EMPTY


def test_only_the_last_events_are_kept(world: World) -> None:
    record = Record(4711, "jane", "cluster")
    for number in range(250):
        record.add_event(float(number), f"event {number}")
    assert len(record.events) == 200
    saved(world, record)
    assert loaded(world).events[0] == Event(50.0, "event 50")
    assert loaded(world).events[-1] == Event(249.0, "event 249")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"null",
        b"{",
        b"[" * 100_000,
        b'{"attempts": 5, "events": {}}',
        b'{"skipped": {"times": 3}}',
    ],
)
def test_nonsense_is_an_empty_record(world: World, data: bytes) -> None:
    world.as_user(world.store.record.write_bytes, data)
    assert loaded(world) == EMPTY


def test_planted_fifo_or_link_is_an_empty_record(world: World) -> None:
    world.as_user(os.mkfifo, world.store.record)
    assert loaded(world) == EMPTY
    saved(world, Record(4711, "jane", "cluster", events=[Event(1.0, "x")]))
    assert loaded(world).events == [Event(1.0, "x")]


def test_sensible_parts_are_kept(world: World) -> None:
    values = {
        "job_id": 1,
        "user": "mallory",
        "attempts": [
            {"epoch": 1, "node": "n1", "started": 1, "ended": "late", "refused": ["a", 5], "steps": [{"step": "0"}, 3]},
            {"epoch": True, "started": 1},
            {"epoch": 2},
            "attempt",
        ],
        "checkpoints": [{"seq": 1, "epoch": 1, "time": 5, "bytes": "many"}, {"seq": 2}],
        "events": [{"time": 1, "text": "kept"}, {"time": None, "text": "lost"}],
    }
    world.as_user(world.store.record.write_text, json.dumps(values))
    record = loaded(world)
    assert (record.job_id, record.user) == (4711, "jane")
    assert record.attempts == [Attempt(1, "n1", 1.0, refused=["a"], steps=[StepNote("0")])]
    assert [(note.seq, note.bytes) for note in record.checkpoints] == [(1, 0)]
    assert record.events == [Event(1.0, "kept")]


def test_text_for_a_terminal(world: World) -> None:
    """The user can write the file and an administrator looks at it."""
    values = {"events": [{"time": 1, "text": "\x1b]0;title\x07\nfaked line"}], "attempts": []}
    world.as_user(world.store.record.write_text, json.dumps(values))
    assert loaded(world).events == [Event(1.0, "\\x1b]0;title\\x07\\nfaked line")]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["epoch", "started", "steps", "step", "time", "text", "seq", "bytes"]), inner)
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["attempts", "checkpoints", "events", "format"]), JSON))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_json_can_be_read(world: World, values: dict[str, object]) -> None:
    world.as_user(world.store.record.write_text, json.dumps(values))
    record = loaded(world)
    saved(world, record)
    assert loaded(world) == record


def test_cannot_be_written(world: World) -> None:
    world.as_user(world.store.record.mkdir)
    with pytest.raises(StoreError, match=r"^record .*/record.json cannot be written: Is a directory$"):
        saved(world, EMPTY)
    assert os.listdir(world.store.dir) == ["record.json"]
