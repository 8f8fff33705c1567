"""Simulated device. Random programs at the gate, and without it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurmckpt.capture.gate import boundary
from tests.unit.gate.core import Core
from tests.unit.gate.programs import Kinds, Program, generate
from tests.unit.gate.simulation import PATIENCE, Can, Simulation

MANY = settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
SEEDS = st.integers(0, 2**32)
RANKS = (2, 4, 8)
# Number of ranks and seed of each program that has gone through two boundaries in this run.
RUN: set[tuple[int, int]] = set()


def anybody_alive(pid: int) -> bool:
    return True


def check_boundary(simulation: Simulation) -> boundary.Closing:
    """Close the gate in the middle of a program: it must come to a boundary, and stay there."""
    simulation.run(lambda: simulation.is_over, simulation.dice.randrange(200))
    closing = boundary.Closing(simulation.region, anybody_alive, PATIENCE)
    assert simulation.close_gate(closing) is True
    # The lock of CUDA state would wait until every device is idle, and nobody may go on meanwhile.
    assert simulation.devices.is_idle(), "half done at a boundary"
    for _ in range(100):
        simulation.step()
        assert simulation.devices.is_idle(), "somebody went on at a boundary"
    assert closing.still_holds()
    assert all(state is not Can.GO for state in simulation.states.values()) or simulation.devices.is_idle()
    return closing


@pytest.mark.parametrize("ranks", RANKS)
@MANY
@given(seed=SEEDS)
def test_at_a_boundary_nothing_is_half_done_and_the_program_goes_on(
    ranks: int, seed: int, core: Core, tmp_path: Path
) -> None:
    simulation = Simulation(core, tmp_path / "gate", generate(seed, ranks, 30), seed)
    try:
        check_boundary(simulation).open()
        # And a second one, of the same job.
        check_boundary(simulation).open()
        assert simulation.finish(), "the program hangs after the gate was opened"
        RUN.add((ranks, seed))
    finally:
        simulation.close()


def test_that_were_a_thousand_programs() -> None:
    """Hypothesis may run fewer than it was asked for; docs/gpu.md promises as many."""
    if {ranks for ranks, _ in RUN} != set(RANKS):
        pytest.skip("not all of them were selected")
    assert len(RUN) >= 1000


def naive_lock_hangs(core: Core, path: Path, program: Program, seed: int, gate: boundary.Patience | None) -> bool:
    """Lock rank after rank: each lock waits for what the rank has submitted, and a locked rank submits nothing.

    gate: close it before.
    """
    simulation = Simulation(core, path, program, seed, gated=gate is not None)
    try:
        simulation.run(lambda: simulation.is_over, simulation.dice.randrange(20, 200))
        if gate is not None:
            assert simulation.close_gate(boundary.Closing(simulation.region, anybody_alive, gate)) is True
        for rank in range(program.ranks):
            simulation.locked.add(rank)
            if not simulation.run(partial(simulation.devices.is_idle, rank), 2000):
                return True
        return False
    finally:
        simulation.close()


@pytest.mark.parametrize("ranks", RANKS)
def test_locking_one_rank_after_the_other_hangs_without_the_gate_and_never_with_it(
    ranks: int, core: Core, tmp_path: Path
) -> None:
    programs = {seed: generate(seed, ranks, 60, Kinds(splits=False)) for seed in range(40)}
    without = sum(naive_lock_hangs(core, tmp_path / "gate", one, seed, None) for seed, one in programs.items())
    with_gate = sum(naive_lock_hangs(core, tmp_path / "gate", one, seed, PATIENCE) for seed, one in programs.items())
    assert without > len(programs) // 3
    assert with_gate == 0
