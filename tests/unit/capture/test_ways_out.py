"""The way out of a unix connection that leads outside: that of the service which is there."""

from __future__ import annotations

import pytest

from slurmckpt.capture.inspect.peers import OuterPeer
from slurmckpt.capture.judgements.unix import _way_out


@pytest.mark.parametrize(
    ("name", "whom", "remedy"),
    [
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
    assert remedy in _way_out(OuterPeer(1, name, whom))
