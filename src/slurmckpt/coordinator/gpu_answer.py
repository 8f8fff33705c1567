"""What `slurmckpt selftest --gpu` found out about this node; it holds for this boot, driver and installation."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from slurmckpt import __version__
from slurmckpt.config import Settings

_NAME = "gpu-selftest.json"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def keep(settings: Settings, facts: Mapping[str, str], failure: str) -> None:
    """Remember the answer. failure: why not; empty: it can. Raises OSError."""
    settings.paths.run.mkdir(mode=0o755, parents=True, exist_ok=True)
    draft = settings.paths.run / f".{_NAME}.{os.getpid()}"
    draft.write_text(json.dumps({**_about(facts), "failure": failure}), encoding="utf-8")
    draft.replace(settings.paths.run / _NAME)


def known(settings: Settings, facts: Mapping[str, str]) -> str | None:
    """Why GPU state cannot be captured here, empty when it can; None when it has not been tried."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads((settings.paths.run / _NAME).read_text(encoding="utf-8"))
        if isinstance(found, dict) and {key: found.get(key) for key in _about(facts)} == _about(facts):
            return str(found.get("failure", ""))
    return None


def failure(settings: Settings, facts: Mapping[str, str]) -> str:
    """Why GPU state cannot be captured here, as far as it has been tried; otherwise empty."""
    return known(settings, facts) or ""


def _about(facts: Mapping[str, str]) -> dict[str, str]:
    return {
        "boot": _BOOT.read_text(encoding="ascii").strip(),
        "driver": facts.get("gpu.driver", ""),
        "version": __version__,
    }
