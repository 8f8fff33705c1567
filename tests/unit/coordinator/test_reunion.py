"""Pods with connections into each other: all can hear before any may send, or none goes on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from slurmckpt.capture import crossings
from slurmckpt.coordinator.cut import CutAborted
from slurmckpt.coordinator.plan import Plan
from slurmckpt.coordinator.pod import Pod
from slurmckpt.coordinator.returning import Returning
from slurmckpt.coordinator.reunion import Reunion
from slurmckpt.errors import Refused

NONE = cast(Plan, None)


def pod(step: str, init_pid: int = 0) -> Pod:
    return cast(Pod, SimpleNamespace(step=step, init_pid=init_pid))


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """Which pods can hear, by pod init and images, in order."""
    found: list[tuple[int, str]] = []
    monkeypatch.setattr(crossings, "listen", lambda init_pid, images: found.append((init_pid, str(images))))
    return found


PLACES = {"batch": Path("/b"), "0": Path("/0"), "1": Path("/1")}


async def soon() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_all_hear_before_any_goes_on(heard: list[tuple[int, str]]) -> None:
    async def scene() -> None:
        reunion = Reunion(PLACES)
        waiting = [asyncio.create_task(reunion.meet(pod(step, 5))) for step in ("1", "batch")]
        await soon()
        assert heard == [] and reunion.missing == {"0"} and not any(each.done() for each in waiting)
        await reunion.meet(pod("0", 7))
        assert sorted(heard) == [(5, "/1"), (5, "/b"), (7, "/0")]
        await asyncio.gather(*waiting)

    asyncio.run(scene())


def test_who_takes_part(tmp_path: Path) -> None:
    """Those whose images have such connections."""
    for step in ("batch", "0", "1"):
        (tmp_path / step / "images").mkdir(parents=True)
    for step in ("0", "1"):
        note = [{"local": "10.0.0.1:1", "remote": "10.0.0.1:2", "keepalive": False}]
        (tmp_path / step / "images" / crossings.FILE).write_text(json.dumps(note))
    steps = [SimpleNamespace(step=step, directory=step) for step in ("batch", "0", "1")]
    plan = cast(Plan, SimpleNamespace(directory=tmp_path, manifest=SimpleNamespace(steps=steps)))

    async def scene() -> set[str]:
        return (await Reunion.of(plan)).missing

    assert asyncio.run(scene()) == {"0", "1"}


def test_an_end_that_cannot_hear_lets_nobody_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def listen(init_pid: int, images: Path) -> None:
        if images == Path("/0"):
            raise Refused("the TCP connection did not come back")

    monkeypatch.setattr(crossings, "listen", listen)

    async def scene() -> None:
        reunion = Reunion(PLACES)
        results = await asyncio.gather(*(reunion.meet(pod(step)) for step in PLACES), return_exceptions=True)
        assert [type(each) for each in results] == [CutAborted, CutAborted, Refused]

    asyncio.run(scene())


def test_a_step_that_fails_ends_those_who_wait_for_it(heard: list[tuple[int, str]]) -> None:
    async def scene() -> None:
        returning = Returning(NONE, ["0", "1"], 60, Reunion(PLACES))
        waiting = [asyncio.create_task(returning.meet(pod(step))) for step in ("batch", "1")]
        await soon()
        returning.fail("step 0: no file")
        results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)
        assert [(type(each), str(each)) for each in results] == [(Refused, "step 0: no file")] * 2
        with pytest.raises(Refused, match="step 0: no file"):
            await returning.meet(pod("0"))

    asyncio.run(scene())
    assert heard == []


def test_patience_has_an_end(heard: list[tuple[int, str]]) -> None:
    async def scene() -> None:
        returning = Returning(NONE, ["0", "1"], 0.05, Reunion(PLACES))
        with pytest.raises(Refused) as raised:
            await returning.meet(pod("batch"))
        assert str(raised.value) == "step 0, 1 did not start again within 0 s (restore.patience)"
        assert returning.over.is_set() and returning.failure == str(raised.value)
        # Who stands already hears of it, too.
        with pytest.raises(Refused):
            await returning.stand()

    asyncio.run(scene())
    assert heard == []
