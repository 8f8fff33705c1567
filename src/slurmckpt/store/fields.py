"""Strict reading of JSON objects: each field with its type and range, and one line that names what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import NoReturn, cast

from slurmckpt.errors import Refused

_MAX_WHOLE = 2**63 - 1


class Fields:
    """The fields of one JSON object. fail() and every reader raise through `refuse` on what is not accepted."""

    def __init__(self, where: str, values: Mapping[str, object], refuse: Callable[[str], NoReturn]) -> None:
        self.where = where
        self._values = values
        self._refuse = refuse
        self._known: set[str] = set()

    def text(self, key: str) -> str:
        value = self._get(key)
        if not isinstance(value, str):
            self.fail(key, "text")
        return value

    def optional_text(self, key: str) -> str | None:
        return None if self._get(key) is None else self.text(key)

    def whole(self, key: str, lowest: int = -_MAX_WHOLE, highest: int = _MAX_WHOLE) -> int:
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            self.fail(key, f"a whole number from {lowest} to {highest}")
        return value

    def optional_whole(self, key: str, lowest: int = -_MAX_WHOLE, highest: int = _MAX_WHOLE) -> int | None:
        return None if self._get(key) is None else self.whole(key, lowest, highest)

    def number(self, key: str) -> float:
        """A number from 0 to 2**63, so never nan or infinite."""
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _MAX_WHOLE:
            self.fail(key, f"a number from 0 to {_MAX_WHOLE}")
        return float(value)

    def flag(self, key: str) -> bool:
        value = self._get(key)
        if not isinstance(value, bool):
            self.fail(key, "true or false")
        return value

    def texts(self, key: str) -> list[str]:
        value = self._get(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.fail(key, "a list of texts")
        return cast("list[str]", value)

    def wholes(self, key: str, lowest: int) -> list[int]:
        """A list of whole numbers."""
        value = self._get(key)
        if not isinstance(value, list):
            self.fail(key, "a list of whole numbers")
        for item in value:
            if not isinstance(item, int) or isinstance(item, bool) or not lowest <= item <= _MAX_WHOLE:
                self.fail(key, f"a list of whole numbers from {lowest} on")
        return value

    def text_map(self, key: str) -> dict[str, str]:
        value = self._get(key)
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            self.fail(key, "an object of texts")
        return cast("dict[str, str]", value)

    def whole_map(self, key: str, lowest: int) -> dict[str, int]:
        value = self._get(key)
        if not isinstance(value, dict) or not all(
            isinstance(item, int) and not isinstance(item, bool) and lowest <= item <= _MAX_WHOLE
            for item in value.values()
        ):
            self.fail(key, f"an object of whole numbers from {lowest}")
        return cast("dict[str, int]", value)

    def objects(self, key: str) -> list[Fields]:
        value = self._get(key)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            self.fail(key, "a list of objects")
        return [
            Fields(f"{self.where}: {key}[{index}]", cast("dict[str, object]", item), self._refuse)
            for index, item in enumerate(value)
        ]

    def optional_object(self, key: str) -> Fields | None:
        value = self._get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.fail(key, "an object or null")
        return Fields(f"{self.where}: {key}", cast("dict[str, object]", value), self._refuse)

    def done(self) -> None:
        """Refuse fields that nobody read: a newer version may have written them for a reason."""
        for key in self._values:
            if key not in self._known:
                self._refuse(f"{self.where}: unknown field {key!r}")

    def fail(self, key: str, accepted: str) -> NoReturn:
        self._refuse(f"{self.where}: {key} = {repr(self._values.get(key))[:120]} is not accepted: {accepted}")

    def _get(self, key: str) -> object:
        if key not in self._values:
            self._refuse(f"{self.where}: field {key!r} is missing")
        self._known.add(key)
        return self._values[key]


def parse_object(what: str, data: bytes) -> dict[str, object]:
    """The JSON object in `data`. Raises Refused with one line when it is something else."""
    try:
        value: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{what} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise Refused(f"{what} is not a JSON object")
    return cast("dict[str, object]", value)
