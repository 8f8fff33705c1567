"""How checks are run: one that fails or hangs does not keep the others from being made."""

from __future__ import annotations

import dataclasses
import threading

from slurmckpt.config import Restore
from slurmckpt.doctor import checks, tools
from slurmckpt.doctor.finding import Finding, ok
from slurmckpt.doctor.host import Host
from tests.unit.doctor.world import World


def test_one_that_fails(world: World) -> None:
    def failing(host: Host) -> Finding:
        raise PermissionError(13, "Permission denied", "/x")

    found = dict(checks.run(world.host(), {"a": failing, "b": lambda host: ok(host.name)}))
    assert found["a"].verdict == "problem"
    assert found["a"].text == "cannot be examined: PermissionError: [Errno 13] Permission denied: '/x'"
    assert found["b"] == ok("n1")


def test_one_that_hangs(world: World) -> None:
    never = threading.Event()

    def hanging(host: Host) -> Finding:
        never.wait()
        return ok("")

    try:
        found = dict(checks.run(world.host(), {"a": hanging, "b": lambda host: ok("")}, 0.05))
    finally:
        never.set()
    assert (found["a"].verdict, found["a"].text) == ("problem", "no answer within 0.05 s")
    assert found["b"].verdict == "ok"


def test_a_finding_is_one_line() -> None:
    assert ok("two\nlines").text == "two\\nlines"


def test_every_problem_and_warning_has_a_remedy(world: World) -> None:
    """On a host where next to nothing is right."""
    empty = world.host(proc=world.top / "nowhere", criu=None, why_no_criu="no CRIU", release="unknown")
    for name, finding in checks.run(empty):
        assert bool(finding.remedy) == (finding.verdict in ("warning", "problem")), name


def test_tools(world: World) -> None:
    assert tools.ip(world.login()).verdict == "skipped"
    for pasta, verdict in (("", "ok"), ("/bin/sh", "ok"), ("/nowhere/pasta", "warning")):
        world.settings = dataclasses.replace(world.settings, restore=Restore(pasta=pasta))
        assert tools.pasta(world.host()).verdict == verdict
    assert tools.pasta(world.login()).verdict == "skipped"
