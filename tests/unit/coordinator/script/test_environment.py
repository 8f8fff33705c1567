"""A restored shell's srun must have the SLURM_* of the allocation it runs in, and all that the script set itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmckpt.coordinator.script.environment import LAUNCH, slurm_variables, translate

NAME = st.sampled_from([b"SLURM_A", b"SLURM_B", b"SLURMD_C", b"SLURM_CKPT_LAUNCHES", b"SLURM_RESTART_COUNT"])
VALUE = st.sampled_from([b"", b"1", b"2", b"a=b", b"\xff"])
SLURM = st.dictionaries(NAME, VALUE)
OTHERS = st.lists(st.sampled_from([b"PATH=/bin", b"A=", b"B", b"", b"=C:", b"XSLURM_A=1"]))


def entries(variables: dict[bytes, bytes]) -> list[bytes]:
    return [name + b"=" + value for name, value in variables.items()]


@given(SLURM, OTHERS)
def test_what_slurm_sets(variables: dict[bytes, bytes], others: list[bytes]) -> None:
    environment = [*others, *entries(variables), LAUNCH + b"=3", b"SLURM_NOTHING"]
    assert slurm_variables(environment) == variables


@given(SLURM, SLURM, OTHERS, st.integers(0, 999_999_999))
def test_a_script_that_changes_nothing_gets_what_is_now(
    then: dict[bytes, bytes], now: dict[bytes, bytes], others: list[bytes], launch: int
) -> None:
    found = translate([*others, *entries(then)], then, now, launch)
    assert slurm_variables(found) == now
    assert [entry for entry in found if not entry.startswith(b"SLURM")] == others
    assert found[-1] == b"SLURM_CKPT_LAUNCH=%d" % launch


@given(SLURM, SLURM, SLURM)
def test_what_the_script_set_itself_stays(
    then: dict[bytes, bytes], now: dict[bytes, bytes], own: dict[bytes, bytes]
) -> None:
    own = {name: value for name, value in own.items() if then.get(name) != value}
    found = slurm_variables(translate(entries(own), then, now, 0))
    assert {name: found[name] for name in own} == own
    # What it took away stays away; what the first incarnation did not have comes in.
    assert found == own | {name: value for name, value in now.items() if name not in then and name not in own}


@given(SLURM, OTHERS)
def test_in_the_first_incarnation_nothing_changes(then: dict[bytes, bytes], others: list[bytes]) -> None:
    environment = [*others, *entries(then)]
    assert translate(environment, then, then, 7) == [*environment, b"SLURM_CKPT_LAUNCH=7"]


@pytest.mark.parametrize("mark", [[b"SLURM_CKPT_LAUNCH=3"], [b"SLURM_CKPT_LAUNCH=3", b"SLURM_CKPT_LAUNCH=4"]])
def test_there_is_one_mark_whatever_the_script_says(mark: list[bytes]) -> None:
    assert translate([*mark, b"A=b"], {}, {}, 9) == [b"A=b", b"SLURM_CKPT_LAUNCH=9"]
    # Not even from what Slurm is said to have set.
    assert translate([], {}, slurm_variables([*mark]), 9) == [b"SLURM_CKPT_LAUNCH=9"]


def test_an_example() -> None:
    then = {b"SLURM_NODELIST": b"n1", b"SLURM_NTASKS": b"2", b"SLURM_GPUS": b"1", b"SLURM_JOB_ID": b"7"}
    now = {b"SLURM_NODELIST": b"n2", b"SLURM_NTASKS": b"2", b"SLURM_RESTART_COUNT": b"1", b"SLURM_JOB_ID": b"7"}
    environment = [b"SLURM_NODELIST=n1", b"SLURM_NTASKS=1", b"SLURM_GPUS=1", b"HOME=/home/jane"]
    assert translate(environment, then, now, 0) == [
        b"SLURM_NODELIST=n2",
        b"SLURM_NTASKS=1",
        b"HOME=/home/jane",
        b"SLURM_RESTART_COUNT=1",
        b"SLURM_CKPT_LAUNCH=0",
    ]
