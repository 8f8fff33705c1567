"""Intervals, sizes and durations as users write and read them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

MINUTE = 60
HOUR = 60 * MINUTE
DAY = 24 * HOUR

ACCEPTED_INTERVALS = (
    "90s, 10m, 1h30m, 2d, a time as Slurm's --time takes it (minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S), "
    "auto, off, or infinite"
)
ACCEPTED_DURATIONS = "a number with units, as in 90s, 10m, 1h30m or 7d"
ACCEPTED_SIZES = "bytes, or a number with K, M, G or T (powers of 1024), as in 512M or 1.5G"

_MAX_SECONDS = 3650 * DAY
_MAX_SIZE = 2**63 - 1
_MANUAL_WORDS = frozenset({"infinite", "unlimited"})
# re.ASCII: "\d" alone also takes digits of other scripts.
_UNITS = re.compile(
    r"(?:(?P<d>\d{1,9})d)?(?:(?P<h>\d{1,9})h)?(?:(?P<m>\d{1,9})m)?(?:(?P<s>\d{1,9})s)?", re.ASCII | re.IGNORECASE
)
# The forms of time_str2secs() in Slurm's documentation of --time.
_SLURM_DAYS = re.compile(r"(?P<d>\d{1,9})-(?P<h>\d{1,9})(?::(?P<m>\d{1,9})(?::(?P<s>\d{1,9}))?)?", re.ASCII)
_SLURM_TIME = re.compile(r"(?:(?:(?P<h>\d{1,9}):)?(?P<m>\d{1,9}):(?P<s>\d{1,9})|(?P<only>\d{1,9}))", re.ASCII)
_SIZE = re.compile(r"(?P<number>\d{1,19}(?:\.\d{1,9})?)\s*(?P<unit>[kmgt]?)(?:i?b)?", re.ASCII | re.IGNORECASE)
_SIZE_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


@dataclass(frozen=True)
class Interval:
    """When group checkpoints are taken.

    kind: `fixed` every `seconds`; `auto` the coordinator chooses from cost and failure rate; `off` never;
    `manual` only on request. `seconds` is set for `fixed` and None otherwise.
    """

    kind: Literal["fixed", "auto", "off", "manual"]
    seconds: float | None = None

    def __str__(self) -> str:
        """The interval as parse_interval() takes it."""
        if self.seconds is None:
            return "infinite" if self.kind == "manual" else self.kind
        return f"{self.seconds:.0f}s"


OFF = Interval("off")


def parse_interval(text: str) -> Interval:
    """The interval that a user wrote.

    Takes `90s`, `10m`, `1h30m`, `2d`; every form of Slurm's --time (a plain number is minutes); `auto`; `off`;
    and `infinite` or `unlimited` for "only on request". Not -1, endless for Slurm: users mean "never" by it.
    Raises ValueError with one line when the text is none of these, or less than 1 s or more than 10 years.
    """
    word = text.strip().lower()
    if word == "auto":
        return Interval("auto")
    if word == "off":
        return OFF
    if word in _MANUAL_WORDS:
        return Interval("manual")
    seconds = _seconds(word)
    if seconds is None:
        raise ValueError(f"interval {text[:80]!r} is not understood; accepted: {ACCEPTED_INTERVALS}")
    if not 1 <= seconds <= _MAX_SECONDS:
        raise ValueError(
            f"interval {text[:80]!r} is {seconds} s; "
            f"accepted: 1 s to {_MAX_SECONDS // DAY} days, auto, off, or infinite"
        )
    return Interval("fixed", float(seconds))


def parse_duration(text: str) -> float:
    """Seconds of a duration with units: `90s`, `10m`, `1h30m`, `7d`.

    A plain number is not taken: it is seconds in one place and minutes in another. Raises ValueError with one line.
    """
    seconds = _unit_seconds(text.strip())
    if seconds is None:
        raise ValueError(f"duration {text[:80]!r} is not understood; accepted: {ACCEPTED_DURATIONS}")
    return float(seconds)


def parse_size(text: str) -> int:
    """Bytes of a size such as `4G`, `512M`, `1.5g`, `10kb` or `1048576`; units are powers of 1024.

    Raises ValueError with one line otherwise.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"size {text[:80]!r} is not understood; accepted: {ACCEPTED_SIZES}")
    whole, _, fraction = match["number"].partition(".")
    unit = _SIZE_UNITS[match["unit"].lower()]
    size = int(whole) * unit
    if fraction:
        size += int(fraction) * unit // 10 ** len(fraction)
    if size > _MAX_SIZE:
        raise ValueError(f"size {text[:80]!r} is too large; accepted: at most {_MAX_SIZE} bytes")
    return size


def format_seconds(seconds: float) -> str:
    """A duration for people: `0.28 s`, `4.2 s`, `42 s`, `2m 05s`, `1h 02m 03s`, `3d 04h 05m`."""
    if not math.isfinite(seconds):
        return "forever" if seconds > 0 else "unknown"
    if seconds < 0:
        return "-" + format_seconds(-seconds)
    if seconds < 0.995:
        return f"{seconds:.2f} s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE}m {whole % MINUTE:02d}s"
    if whole < DAY:
        return f"{whole // HOUR}h {whole % HOUR // MINUTE:02d}m {whole % MINUTE:02d}s"
    return f"{whole // DAY}d {whole % DAY // HOUR:02d}h {whole % HOUR // MINUTE:02d}m"


def format_bytes(size: int) -> str:
    """A size for people, in powers of 1000 as disks and dashboards count: `12 B`, `436 MB`, `2.1 GB`."""
    if size < 0:
        return "-" + format_bytes(-size)
    if size < 1000:
        return f"{size} B"
    value = float(size)
    for unit in ("kB", "MB", "GB", "TB", "PB"):
        value /= 1000
        if value < 9.95:
            return f"{value:.1f} {unit}"
        if value < 999.5:
            return f"{value:.0f} {unit}"
    return f"{value / 1000:.1f} EB"


def _seconds(text: str) -> int | None:
    """Seconds of a unit form or of a form of Slurm's --time; None when it is neither."""
    match = _SLURM_DAYS.fullmatch(text) or _SLURM_TIME.fullmatch(text)
    if match is None:
        return _unit_seconds(text)
    part = {name: int(digits or 0) for name, digits in match.groupdict().items()}
    minutes = part["m"] + part.get("only", 0)
    return part.get("d", 0) * DAY + part["h"] * HOUR + minutes * MINUTE + part["s"]


def _unit_seconds(text: str) -> int | None:
    match = _UNITS.fullmatch(text)
    if match is None or not text:
        return None
    part = {name: int(digits or 0) for name, digits in match.groupdict().items()}
    return part["d"] * DAY + part["h"] * HOUR + part["m"] * MINUTE + part["s"]
