"""A simulated device for tests: doubles of NVIDIA's libraries, and the hardware that they play (libcuda/README.md)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SOURCES = Path(__file__).parent
LIBRARIES = ("libcuda", "libnvidia_ml")


def build(directory: Path) -> Path:
    """Build all libraries into `directory`, and give it: the place for LD_LIBRARY_PATH."""
    for library in LIBRARIES:
        command = ["make", "--silent", "-C", str(SOURCES / library), f"BUILD={directory}"]
        subprocess.run(command, check=True)
    return directory


class Hardware:
    """The simulated hardware of one machine. directory: its SIMULATED_GPU."""

    def __init__(self, directory: Path, libraries: Path) -> None:
        self.directory = directory
        self.libraries = libraries
        self._settings: dict[str, str] = {}
        directory.mkdir(exist_ok=True)
        directory.chmod(0o1777)

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to see this hardware."""
        return {"SIMULATED_GPU": str(self.directory), "LD_LIBRARY_PATH": str(self.libraries)}

    def set(self, **settings: object) -> None:
        """Change settings; `__` stands for a dot, None takes one out: set(lock__error=600)."""
        for name, value in settings.items():
            key = name.replace("__", ".")
            if value is None:
                self._settings.pop(key, None)
            else:
                self._settings[key] = str(value)
        text = "".join(f"{key}={value}\n" for key, value in self._settings.items())
        # In one step: a reader must not find half of it.
        draft = self.directory / f"settings.{os.getpid()}"
        draft.write_text(text, encoding="utf-8")
        draft.replace(self.directory / "settings")

    def at_pid(self, call: str, when: str, what: str, pid: int) -> None:
        """Let something happen before or after a call, but only when it is made for this process."""
        self.set(**{f"{call}__{when}__{pid}": what})
