"""What a checkpoint keeps of a script's sruns, so that they can be started again beside their restored stand-ins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurmckpt.coordinator import payload as payloads
from slurmckpt.coordinator.payload import Payload
from slurmckpt.coordinator.script import environment
from slurmckpt.coordinator.script.script import Script
from slurmckpt.coordinator.script.stand_ins import StandIn
from slurmckpt.store.manifest import LaunchImage, StepImage

_LAUNCHES = "launches"
_ENVIRONMENT = "environment"


@dataclass(frozen=True)
class Saved:
    """For the manifest's entry of the batch script."""

    launches: list[LaunchImage] = field(default_factory=list)
    environment: str | None = None


def save(script: Script | None, waiting: Sequence[StandIn], read_ahead: Mapping[int, bytes], directory: Path) -> Saved:
    """Write it below `directory`, the batch script's in the checkpoint. read_ahead: by number of the launch.

    Raises OSError.
    """
    if script is None:
        return Saved()
    below = directory / _LAUNCHES
    below.mkdir(mode=0o700)
    launches = []
    for one in waiting:
        launch = one.launch
        # Not what it is by now: when this is written, the ranks run again, and the image holds them as they were.
        running = one.status is None
        data = read_ahead.get(launch.number, b"")
        if running:
            _write(below / str(launch.number), launch.payload.to_bytes())
        if data:
            _write(below / f"{launch.number}.input", data)
        launches.append(
            LaunchImage(
                number=launch.number,
                pid=one.process.ns_pid,
                step=one.step,
                status=one.status,
                signal_pipe=launch.signal_key,
                status_pipe=launch.status_key,
                payload=f"{_LAUNCHES}/{launch.number}" if running else None,
                input=f"{_LAUNCHES}/{launch.number}.input" if data else None,
            )
        )
    variables = b"".join(name + b"=" + value + b"\0" for name, value in script.then.items())
    _write(directory / _ENVIRONMENT, variables)
    return Saved(launches, _ENVIRONMENT)


def load_payload(image: LaunchImage, directory: Path) -> Payload:
    """Raises OSError, WireError."""
    return payloads.from_bytes((directory / (image.payload or "")).read_bytes())


def load_input(image: LaunchImage, directory: Path) -> bytes:
    """Raises OSError."""
    return (directory / image.input).read_bytes() if image.input else b""


def load_environment(image: StepImage, directory: Path) -> dict[bytes, bytes] | None:
    """SLURM_* as they were when the script began; None when the image has none. Raises OSError."""
    if image.environment is None:
        return None
    return environment.slurm_variables((directory / image.environment).read_bytes().split(b"\0"))


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
    path.chmod(0o600)
