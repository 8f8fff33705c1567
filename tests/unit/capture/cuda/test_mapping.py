"""Which GPU stands for which."""

from __future__ import annotations

import pytest

from slurmckpt.capture.cuda.mapping import Devices, pairs
from slurmckpt.errors import Refused

OLD = ["a", "b", "c", "d"]
NEW = ["w", "x", "y", "z"]


def test_the_same_gpus_need_no_map() -> None:
    assert pairs(Devices(OLD), Devices(OLD)) == []
    assert pairs(Devices(OLD, [1, 2]), Devices(OLD, [1, 2])) == []


def test_another_node_maps_all_in_their_order() -> None:
    assert pairs(Devices(OLD), Devices(NEW)) == [("a", "w"), ("b", "x"), ("c", "y"), ("d", "z")]


def test_the_gpus_of_the_job_go_first() -> None:
    found = pairs(Devices(OLD, [0, 1]), Devices(NEW, [3, 2]))
    assert found == [("a", "z"), ("b", "y"), ("c", "w"), ("d", "x")]


def test_other_gpus_of_the_same_node() -> None:
    found = pairs(Devices(OLD, [0]), Devices(OLD, [2]))
    # Those of nobody stay themselves where they can.
    assert sorted(found) == [("a", "c"), ("b", "b"), ("c", "a"), ("d", "d")]


def test_renumbered_gpus_are_still_themselves() -> None:
    assert sorted(pairs(Devices(OLD), Devices(["b", "a", "c", "d"]))) == []


@pytest.mark.parametrize(
    ("before", "now", "reason"),
    [
        (Devices(OLD), Devices(NEW[:2]), "with 4 GPUs, and here are 2"),
        (Devices(OLD, [0]), Devices(NEW, [0, 1]), "had 1 GPUs at the checkpoint, and has 2 now"),
        (Devices(OLD, [7]), Devices(NEW, [0]), "are not among the 4"),
        (Devices(OLD, [0, 0]), Devices(NEW, [0, 1]), "are not among the 4"),
    ],
)
def test_what_does_not_fit_is_refused(before: Devices, now: Devices, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        pairs(before, now)
