"""The ways out that refusals name; of a unix connection that leads outside, that of the service which is there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmckpt import capture
from slurmckpt.capture.inspect.peers import OuterPeer
from slurmckpt.capture.judgements.unix import _way_out


@pytest.mark.parametrize(
    ("name", "whom", "remedy"),
    [
        ("", "own 812 (python3)", "start both programs in one step"),
        ("/run/user/1000/bus", "own 1 (dbus-broker)", "DBUS_SESSION_BUS_ADDRESS"),
        ("", "process 812 (slurmstepd)", "srun --mpi=none"),
        ("/run/dbus/system_bus_socket", "process 1 (dbus-daemon)", "DBUS_SESSION_BUS_ADDRESS"),
        ("/run/user/1000/bus", "process 1 (dbus-broker)", "DBUS_SESSION_BUS_ADDRESS"),
        ("/var/run/nscd/socket", "process 1 (nscd)", "a later checkpoint"),
        ("/dev/log", "process 1 (rsyslogd)", "closelog"),
        ("@/tmp/.X11-unix/X0", "process 1 (Xorg)", "without a display"),
        ("/home/jane/run/service", "process 1 (other)", "do not use the service"),
        ("", "", "do not use the service"),
    ],
)
def test_the_way_out(name: str, whom: str, remedy: str) -> None:
    """own: a process of the job's user."""
    assert remedy in _way_out(OuterPeer(1, name, whom, whom.startswith("own")))


def reasons() -> Iterator[tuple[str, ast.expr, ast.expr]]:
    """Where, what and remedy of each Reason in the sources that is given them one by one."""
    for path in sorted(Path(capture.__path__[0]).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Reason" and len(node.args) == 3:
                yield f"{path.name}:{node.lineno}", node.args[1], node.args[2]


def test_every_refusal_has_a_way_out() -> None:
    """A part of a sentence of its own, behind the colon that separates the two."""
    found = list(reasons())
    assert len(found) > 30
    for where, what, remedy in found:
        for text in (node.value for node in ast.walk(what) if isinstance(node, ast.Constant)):
            assert ": " not in str(text), where
        words = [str(node.value) for node in ast.walk(remedy) if isinstance(node, ast.Constant)]
        assert words or isinstance(remedy, ast.Name | ast.Call), where
        assert all(word and not word.endswith((".", ":", "captured")) for word in words), where
