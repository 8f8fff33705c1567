"""What each option accepts, against a table of right values and against the package's own grammar."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurmckpt.units import parse_interval

Check = Callable[[str, bytes | str], str]

MINUTE, HOUR, DAY = 60, 3600, 86400


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("10m", 10 * MINUTE),
        ("1h30m", HOUR + 30 * MINUTE),
        ("2d", 2 * DAY),
        ("1d2h3m4s", DAY + 2 * HOUR + 3 * MINUTE + 4),
        ("1d4s", DAY + 4),
        ("1H30M", HOUR + 30 * MINUTE),
        ("1s", 1),
        ("007m", 7 * MINUTE),
        # sbatch(1), --time: minutes, minutes:seconds, hours:minutes:seconds, days-hours and so on
        ("10", 10 * MINUTE),
        ("5:30", 5 * MINUTE + 30),
        ("90:00", 90 * MINUTE),
        ("1:02:03", HOUR + 2 * MINUTE + 3),
        ("0:00:01", 1),
        ("1-0", DAY),
        ("2-12", 2 * DAY + 12 * HOUR),
        ("1-2:30", DAY + 2 * HOUR + 30 * MINUTE),
        ("1-2:30:15", DAY + 2 * HOUR + 30 * MINUTE + 15),
        ("3650d", 3650 * DAY),
        ("3650-0", 3650 * DAY),
        ("315360000s", 3650 * DAY),
    ],
)
def test_a_time_has_its_seconds(check: Check, text: str, seconds: int) -> None:
    assert check("interval", text) == f"fixed {seconds}"


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
def test_words(check: Check, text: str, kind: str) -> None:
    assert check("interval", text) == kind


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "0s",
        "0d0h0m0s",
        "00:00",
        "0-0",
        "-1",
        "-2",
        "-1s",
        "+5m",
        "1.5h",
        "10 m",
        " 10m",
        "10m ",
        "10m\n",
        "m",
        "10x",
        "30m1h",
        "1m1m",
        "1s1s",
        "10m5",
        "1:2:3:4",
        "1-2:3:4:5",
        "1-",
        "-",
        "1-2-3",
        "1:-2",
        "1:2-3",
        ":5",
        "5:",
        "5::5",
        "1-:5",
        "1h:30",
        "3651d",
        "315360001s",
        "3650-0:0:1",
        "9999999999",
        "99999999999999999999999999",
        "18446744073709551617s",
        "999999999d",
        "2147483648m",
        "autox",
        "offf",
        "never",
        "\u0661\u0660m",
        "10µ",
    ],
)
def test_what_is_no_time_is_refused(check: Check, text: str) -> None:
    assert check("interval", text) == "refused"


def by_the_package(text: str) -> str:
    try:
        interval = parse_interval(text)
    except ValueError:
        return "refused"
    return interval.kind if interval.seconds is None else f"fixed {interval.seconds:.0f}"


number = st.integers(0, 10**10).map(str)
close_to_a_time = st.lists(
    st.one_of(number, st.sampled_from(["d", "h", "m", "s", "M", "D", ":", "-", "auto", "off", "x"])), max_size=9
).map("".join)


@settings(max_examples=1500, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(close_to_a_time)
def test_plugin_and_package_read_every_interval_alike(check: Check, text: str) -> None:
    assert check("interval", text) == by_the_package(text)


@settings(max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.sampled_from(["interval", "dir", "keep", "recover", "model", "pre"]), st.binary(max_size=5000))
def test_no_bytes_break_a_check(check: Check, kind: str, raw: bytes) -> None:
    assert check(kind, raw.replace(b"\0", b"\1"))


@pytest.mark.parametrize(
    ("kind", "text", "answer"),
    [
        ("dir", "/", "good"),
        ("dir", "/scratch/ckpt", "good"),
        ("dir", "/with blank/and-é", "good"),
        ("dir", "/" + "a" * 4094, "good"),
        ("dir", "/" + "a" * 4095, "refused"),
        ("dir", "", "refused"),
        ("dir", "ckpt", "refused"),
        ("dir", "./ckpt", "refused"),
        ("dir", "~/ckpt", "refused"),
        ("dir", "/a\nb", "refused"),
        ("dir", "/a\tb", "refused"),
        ("dir", "/a\x7f", "refused"),
        ("keep", "1", "good"),
        ("keep", "1000", "good"),
        ("keep", "0", "refused"),
        ("keep", "1001", "refused"),
        ("keep", "010", "refused"),
        ("keep", "-1", "refused"),
        ("keep", "+1", "refused"),
        ("keep", "1 ", "refused"),
        ("keep", "1.0", "refused"),
        ("keep", "", "refused"),
        ("keep", "4294967297", "refused"),
        ("recover", "nodefail", "good"),
        ("recover", "nodefail,preempt,crash,hang,timelimit", "good"),
        ("recover", "hang,crash", "good"),
        ("recover", "", "refused"),
        ("recover", "nodefail,", "refused"),
        ("recover", ",nodefail", "refused"),
        ("recover", "nodefail,,hang", "refused"),
        ("recover", "node", "refused"),
        ("recover", "nodefailx", "refused"),
        ("recover", "nodefail, hang", "refused"),
        ("recover", "NODEFAIL", "refused"),
        ("model", "llama-3.1-8b@sha256:12ab", "good"),
        ("model", "x" * 255, "good"),
        ("model", "x" * 256, "refused"),
        ("model", "", "refused"),
        ("model", "a b", "refused"),
        ("model", "a\n", "refused"),
        ("model", "é", "refused"),
        ("pre", "kill -USR1 $(cat pid) && echo 'é'", "good"),
        ("pre", "x" * 1000, "good"),
        ("pre", "x" * 1001, "refused"),
        ("pre", "", "refused"),
        ("pre", "  ", "refused"),
        ("pre", "a\nb", "refused"),
    ],
)
def test_other_values(check: Check, kind: str, text: str, answer: str) -> None:
    assert check(kind, text) == answer
