"""One table of slurmckpt.toml being read: typed access to its keys, and one line for what is not accepted."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn, TypeVar, cast

from slurmckpt.errors import ConfigError
from slurmckpt.units import (
    ACCEPTED_DURATIONS,
    ACCEPTED_SIZES,
    DAY,
    HOUR,
    MINUTE,
    Interval,
    parse_duration,
    parse_interval,
    parse_size,
)

Word = TypeVar("Word", bound=str)
Parsed = TypeVar("Parsed")

_SITE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)


class Table:
    """One TOML table being read: typed access to its keys, and done() to refuse the keys that nobody asked for."""

    def __init__(self, file: Path, name: str, values: Mapping[str, object]) -> None:
        self._file = file
        self._name = name
        self._values = values
        self._known: list[str] = []

    def names(self) -> list[str]:
        return list(self._values)

    def section(self, key: str) -> Table:
        value = self._get(key, {})
        if not isinstance(value, dict):
            raise self._error(key, f"a section, written [{self._full(key)}]")
        return Table(self._file, self._full(key), cast("dict[str, object]", value))

    def interval(self, key: str, default: Interval) -> Interval:
        value = self._get(key, str(default))
        if not isinstance(value, str):
            raise self._error(key, 'text such as "10m", "auto" or "off"')
        return self._parsed(key, parse_interval, value)

    def size(self, key: str, default: int) -> int:
        value = self._get(key, default)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        if not isinstance(value, str):
            raise self._error(key, ACCEPTED_SIZES)
        return self._parsed(key, parse_size, value)

    def seconds(self, key: str, default: float, lowest: float, highest: float) -> float:
        """A duration: text with units, or a number of seconds."""
        value = self._get(key, default)
        if isinstance(value, str):
            value = self._parsed(key, parse_duration, value)
        accepted = f"{ACCEPTED_DURATIONS}, or seconds, from {_with_unit(lowest)} to {_with_unit(highest)}"
        return self._in_range(key, value, lowest, highest, accepted)

    def number(self, key: str, default: float, lowest: float, highest: float) -> float:
        return self._in_range(key, self._get(key, default), lowest, highest, f"a number from {lowest:g} to {highest:g}")

    def whole(self, key: str, default: int, lowest: int, highest: int) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            raise self._error(key, f"a whole number from {lowest} to {highest}")
        return value

    def wholes(self, key: str, default: frozenset[int], lowest: int, highest: int) -> frozenset[int]:
        """A list of whole numbers, in any order; it may be empty."""
        values = self._get(key, list(default))
        if isinstance(values, list):
            numbers = [each for each in values if isinstance(each, int) and not isinstance(each, bool)]
            if len(numbers) == len(values) and all(lowest <= number <= highest for number in numbers):
                return frozenset(numbers)
        raise self._error(key, f"a list of whole numbers from {lowest} to {highest}")

    def tables(self, key: str, example: str) -> list[Table]:
        """A list of tables; it may be empty."""
        values = self._get(key, [])
        if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
            raise self._error(key, f"a list of tables, as in [{example}]")
        return [Table(self._file, f"{self._full(key)}[{number}]", value) for number, value in enumerate(values)]

    def texts(self, key: str, parse: Callable[[str], str], accepted: str) -> tuple[str, ...]:
        """A list of texts that `parse` accepts; it may be empty."""
        values = self._get(key, [])
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise self._error(key, f"a list; each {accepted}")
        return tuple(self._parsed(key, parse, value) for value in values)

    def parsed(self, key: str, parse: Callable[[str], str]) -> str:
        """A text that `parse` accepts and that must be there."""
        value = self._get(key, "")
        if not isinstance(value, str):
            raise self._error(key, "text")
        return self._parsed(key, parse, value)

    def words(self, key: str, default: frozenset[str], accepted: tuple[str, ...]) -> frozenset[str]:
        """A list of these words, in any order; it may be empty."""
        values = self._get(key, list(default))
        if isinstance(values, list) and all(value in accepted for value in values):
            return frozenset(values)
        raise self._error(key, "a list of " + ", ".join(f'"{word}"' for word in accepted))

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._error(key, "true or false")
        return value

    def word(self, key: str, default: Word, accepted: tuple[Word, ...]) -> Word:
        value = self._get(key, default)
        for word in accepted:
            if value == word:
                return word
        raise self._error(key, " or ".join(f'"{word}"' for word in accepted))

    def path(self, key: str, default: Path) -> Path:
        value = self._get(key, str(default))
        if not isinstance(value, str) or not _is_absolute(value):
            raise self._error(key, 'an absolute path without "..", as text')
        return Path(value)

    def program(self, key: str, default: str, empty_is: str = "") -> str:
        """An absolute path, or a bare name that is looked up later; empty only where that has a meaning."""
        value = self._get(key, default)
        if isinstance(value, str):
            bare = "/" not in value and value.isprintable() and value not in ("", ".", "..")
            if bare or _is_absolute(value) or (not value and empty_is):
                return value
        empty = f', or "" ({empty_is})' if empty_is else ""
        raise self._error(key, f'an absolute path without "..", or the name of a program{empty}')

    def fact(self, key: str) -> str:
        """A fact of the site about its node: name and value become one key of the fingerprint."""
        value = self._get(key, "")
        if not _SITE_NAME.fullmatch(key):
            raise self._error(key, "a name of at most 64 letters, digits, '_', '-' and '.'")
        if not isinstance(value, str) or not 0 < len(value) <= 255 or not value.isprintable():
            raise self._error(key, "printable text of 1 to 255 characters")
        return value

    def refuse(self, key: str, accepted: str) -> NoReturn:
        """Say that what stands at `key` is not accepted, and what is."""
        raise self._error(key, accepted)

    def only(self, *keys: str) -> None:
        """Refuse all keys but these, before any is read: one that must be there may be there with a slip."""
        self._known += keys
        self.done()

    def done(self) -> None:
        """Refuse keys that are not settings: a misspelt key would otherwise be silently without effect."""
        for key in self._values:
            if key not in self._known:
                close = difflib.get_close_matches(key, self._known, n=1)
                hint = f" (did you mean {close[0]}?)" if close else ""
                raise ConfigError(
                    f"{self._file}: unknown key {self._full(key)}{hint}; accepted: {', '.join(sorted(self._known))}"
                )

    def _get(self, key: str, default: object) -> object:
        self._known.append(key)
        return self._values.get(key, default)

    def _full(self, key: str) -> str:
        return f"{self._name}.{key}" if self._name else key

    def _in_range(self, key: str, value: object, lowest: float, highest: float, accepted: str) -> float:
        # nan fails the comparison, so it is refused too.
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not lowest <= value <= highest:
            raise self._error(key, accepted)
        return float(value)

    def _parsed(self, key: str, parse: Callable[[str], Parsed], text: str) -> Parsed:
        try:
            return parse(text)
        except ValueError as error:
            raise ConfigError(f"{self._file}: {self._full(key)}: {error}") from error

    def _error(self, key: str, accepted: str) -> ConfigError:
        value = self._values.get(key)
        shown = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
        return ConfigError(f"{self._file}: {self._full(key)} = {shown[:120]} is not accepted: {accepted}")


def _with_unit(seconds: float) -> str:
    """A bound as one would write it: `90s`, `30m`, `365d`."""
    for size, unit in ((DAY, "d"), (HOUR, "h"), (MINUTE, "m")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"


def _is_absolute(text: str) -> bool:
    return text.startswith("/") and text.isprintable() and ".." not in text.split("/")
