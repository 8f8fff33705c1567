"""A batch script in its pod: every srun that it starts is launched outside, and the script notices nothing."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.awaiting import wait_until
from tests.unit.pod.harness import FakeCoordinator, Pod, Shim, Wire, build_variant, shell
from tests.unit.pod.launching import Launcher

pytestmark = pytest.mark.root


class House:
    """What an installation and a coordinator put into a batch pod, below one directory, and a real srun.

    The real srun runs its arguments, and notes in `places` whether it does so inside or outside of the pod.
    """

    def __init__(self, folder: Path) -> None:
        self.real = folder / "bin/srun"
        self.libexec, self.run = folder / "libexec", folder / "run"
        for place in (self.real.parent, self.libexec / "pod", self.run):
            place.mkdir(parents=True)
        build_variant(self.libexec, "srun", libexec=self.libexec)
        (self.run / "srun").touch()
        self.places = folder / "places"
        self.places.touch()
        self.places.chmod(0o666)
        outside = os.readlink("/proc/self/ns/pid")
        self.real.write_text(
            f'#!/bin/sh\n[ "$(readlink /proc/self/ns/pid)" = "{outside}" ] && place=outside || place=inside\n'
            f'echo $place >>{self.places}\nexec "$@"\n'
        )
        self.real.chmod(0o755)
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listening.bind(str(self.run / "launch.sock"))
        (self.run / "launch.sock").chmod(0o666)
        self.listening.listen(8)
        binds = (f"{self.real}:{self.run}/srun", f"{self.run}:{self.libexec}/pod", f"{self.libexec}/srun:{self.real}")
        self.options = [word for bind in binds for word in ("--bind", bind)]
        self.environment = {"PATH": f"{self.real.parent}:/usr/bin:/bin"}


class Launching(threading.Thread):
    """The coordinator's part: launches what stand-ins hand over until there is no socket any more."""

    def __init__(self, house: House, shim: Shim) -> None:
        super().__init__(daemon=True)
        self.house, self.shim = house, shim
        self.launchers: list[Launcher] = []
        self.answers = ["LAUNCHED"]

    def run(self) -> None:
        while True:
            try:
                wire = Wire(self.house.listening.accept()[0])
            except OSError:
                return
            payload, *fds = wire.expect("LAUNCH").fds
            if self.answers[0] == "LAUNCHED":
                launcher = Launcher(self.shim.process.pid, program=self.house.real)
                self.launchers.append(launcher)
                launcher.launch(payload, fds)
                launcher.started()
                wire.send("LAUNCHED", fds=(launcher.signals.write_end, launcher.status.read_end))
                os.close(launcher.signals.take_write())
                os.close(launcher.status.take_read())
            else:
                wire.send(self.answers[0])
                for fd in (payload, *fds):
                    os.close(fd)
            wire.close()


@pytest.fixture
def house(scratch: Path) -> Iterator[House]:
    house = House(scratch)
    yield house
    house.listening.close()


class Script:
    def __init__(self, coordinator: FakeCoordinator, house: House, text: str) -> None:
        self.shim = coordinator.started_shim(shell(text), env=house.environment)
        self.pod: Pod = coordinator.pod(self.shim, *house.options)
        self.launching = Launching(house, self.shim)
        self.launching.start()

    def run(self) -> tuple[int, str, str]:
        self.pod.lead([self.shim])
        return self.shim.finish()


@pytest.fixture
def script(coordinator: FakeCoordinator, house: House) -> Iterator[list[Script]]:
    """Scripts that were made; their launchers are closed at the end."""
    made: list[Script] = []
    yield made
    house.listening.shutdown(socket.SHUT_RDWR)
    for item in made:
        item.launching.join()
        for launcher in item.launching.launchers:
            launcher.close()


SCRIPT = """
x=$(srun echo one two); echo "x=$x"
srun printf 'b\\na\\n' | sort | srun cat -n
count() { srun wc -l; }
for i in 1 2; do seq $i | count; done
srun cat <<END
here
END
srun sh -c 'echo err >&2; exit 5' 2>&1; echo "code $?"
srun sh -c 'kill -9 $$'; echo "code $?"
srun sleep 1000 & kill -TERM $!; wait $!; echo "code $?"
srun sh -c 'echo first; sleep 0.1' & srun true; wait; echo done
cd /usr; umask 027; A=b srun sh -c 'pwd; umask; echo $A'
exec srun sh -c 'exit 7'
"""
EXPECTED = """x=one two
     1\ta
     2\tb
1
2
here
err
code 5
code 137
code 143
first
done
/usr
0027
b
"""


@pytest.mark.parametrize("answer", ["LAUNCHED", "DIRECT"])
def test_a_script_notices_nothing(
    coordinator: FakeCoordinator, house: House, script: list[Script], answer: str
) -> None:
    script.append(Script(coordinator, house, SCRIPT))
    script[0].launching.answers = [answer]
    # what the shell itself says of the two that were killed
    assert script[0].run() == (7, EXPECTED, "Killed\nTerminated\n")
    assert set(house.places.read_text().split()) == {"outside" if answer == "LAUNCHED" else "inside"}


def test_the_end_of_the_script_ends_its_sruns(coordinator: FakeCoordinator, house: House, script: list[Script]) -> None:
    script.append(Script(coordinator, house, "srun sleep 1000 >/dev/null 2>&1 & sleep 1000"))
    script[0].pod.lead([script[0].shim])
    launchers = script[0].launching.launchers
    wait_until(lambda: bool(launchers) and bool(launchers[0].srun), "srun runs")
    script[0].shim.signal(signal.SIGTERM)
    assert script[0].shim.finish()[0] == -signal.SIGTERM
    assert launchers[0].wire.expect("EXITED").values == {"status": "9"}
