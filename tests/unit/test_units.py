"""Intervals, sizes and durations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmckpt.units import (
    Interval,
    format_bytes,
    format_seconds,
    parse_duration,
    parse_interval,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("10m", 600),
        ("1h30m", 5400),
        ("2d", 172800),
        ("1d2h3m4s", 93784),
        ("1S", 1),
        (" 10m ", 600),
        # Slurm's --time: "minutes", "minutes:seconds", "hours:minutes:seconds", "days-hours", "days-hours:minutes" and
        # "days-hours:minutes:seconds" (sbatch(1)).
        ("10", 600),
        ("0:30", 30),
        ("10:30", 630),
        ("1:30:00", 5400),
        ("2-12", 216000),
        ("2-12:30", 217800),
        ("2-12:30:15", 217815),
        ("0-0:0:1", 1),
    ],
)
def test_interval_fixed(text: str, seconds: int) -> None:
    assert parse_interval(text) == Interval("fixed", float(seconds))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("auto", "auto"),
        ("AUTO", "auto"),
        ("off", "off"),
        ("infinite", "manual"),
        ("UNLIMITED", "manual"),
    ],
)
def test_interval_words(text: str, kind: str) -> None:
    interval = parse_interval(text)
    assert (interval.kind, interval.seconds) == (kind, None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "x",
        "10x",
        "m",
        "10 m",
        "1.5h",
        "30m1h",
        "-5m",
        "-1",
        "-2",
        "+5",
        "1:",
        ":1",
        "1:2:3:4",
        "1-",
        "-1-2",
        "1-2:3:4:5",
        "\u0661\u0660m",  # digits of another script
        "10m\n; rm",
        "nan",
        "1e3",
        "9" * 5000,
    ],
)
def test_interval_not_understood(text: str) -> None:
    with pytest.raises(ValueError, match=r"^interval '.*is not understood; accepted: 90s, 10m") as caught:
        parse_interval(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["0", "0s", "0:00", "0-0", "3651d", "999999999d"])
def test_interval_out_of_range(text: str) -> None:
    with pytest.raises(ValueError, match=r"accepted: 1 s to 3650 days, auto, off, or infinite$"):
        parse_interval(text)


@given(st.integers(1, 3650 * 86400))
def test_interval_text_comes_back(seconds: int) -> None:
    interval = Interval("fixed", float(seconds))
    assert parse_interval(str(interval)) == interval


@pytest.mark.parametrize("text", ["auto", "off", "infinite"])
def test_interval_words_come_back(text: str) -> None:
    assert str(parse_interval(text)) == text


@given(st.text(max_size=20))
def test_interval_any_text(text: str) -> None:
    try:
        interval = parse_interval(text)
    except ValueError:
        return
    assert (interval.kind == "fixed") == (interval.seconds is not None)
    assert interval.seconds is None or interval.seconds >= 1


@given(st.integers(0, 999), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
def test_interval_forms_agree(days: int, hours: int, minutes: int, seconds: int) -> None:
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if total == 0:
        return
    assert parse_interval(f"{days}d{hours}h{minutes}m{seconds}s").seconds == total
    assert parse_interval(f"{days}-{hours}:{minutes}:{seconds}").seconds == total


def test_duration() -> None:
    assert parse_duration("7d") == 604800.0
    assert parse_duration("0s") == 0.0


@pytest.mark.parametrize("text", ["", "10", "1:30", "auto", "2-12"])
def test_duration_needs_units(text: str) -> None:
    with pytest.raises(ValueError, match="accepted: a number with units"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1048576", 2**20),
        ("4G", 4 * 2**30),
        ("4 GiB", 4 * 2**30),
        ("1.5g", 3 * 2**29),
        ("10kb", 10240),
        ("512M", 2**29),
        ("1T", 2**40),
        ("7B", 7),
    ],
)
def test_size(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1", "1e3", "1..5G", "1P", "0x10", "4 G x", "\u0664G"])
def test_size_not_understood(text: str) -> None:
    with pytest.raises(ValueError, match="is not understood; accepted: bytes"):
        parse_size(text)


def test_size_too_large() -> None:
    with pytest.raises(ValueError, match="is too large"):
        parse_size("9999999999T")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.00 s"),
        (0.284, "0.28 s"),
        (0.999, "1.0 s"),
        (4.2, "4.2 s"),
        (9.96, "10 s"),
        (42.4, "42 s"),
        (59.6, "1m 00s"),
        (125, "2m 05s"),
        (3723, "1h 02m 03s"),
        (86400 * 3 + 4 * 3600 + 300, "3d 04h 05m"),
        (-4.2, "-4.2 s"),
        (float("inf"), "forever"),
        (float("nan"), "unknown"),
    ],
)
def test_format_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (9_940, "9.9 kB"),
        (9_960, "10 kB"),
        (436_000_000, "436 MB"),
        (999_600_000, "1.0 GB"),
        (2_100_000_000, "2.1 GB"),
        (5 * 10**18, "5.0 EB"),
        (-1500, "-1.5 kB"),
    ],
)
def test_format_bytes(size: int, text: str) -> None:
    assert format_bytes(size) == text
