"""Paths of files and directories as the settings name them: patterns for rules, and variables of the job's environment.

A pattern is an absolute path, or one that begins with `~/`, the home of the job's user. In a name `*` stands for any
characters and `?` for one; `**` as a name stands for any number of directories.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Policy = Literal["auto", "truncate", "keep", "save"]
POLICIES: tuple[Policy, ...] = ("auto", "truncate", "keep", "save")

ACCEPTED_PATTERNS = 'a path that begins with "/" or "~/", without "..", with * and ? in names and ** for directories'
ACCEPTED_DIRECTORIES = 'a path that begins with "/", "~/" or "$NAME", without ".."; $NAME is a variable of the job'

_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))", re.ASCII)


@dataclass(frozen=True)
class FileRule:
    """What is done with files whose path fits a pattern."""

    path: str
    policy: Policy

    def fits(self, path: str, home: str) -> bool:
        """Whether `path`, absolute and without links, fits. home: of the job's user; empty when it has none."""
        pattern = self.path
        if pattern.startswith("~/"):
            if not home:
                return False
            return path.startswith(home.rstrip("/") + "/") and _fits(pattern[1:], path[len(home.rstrip("/")) :])
        return _fits(pattern, path)


def check_pattern(text: str) -> str:
    """`text`, when it is a pattern; otherwise ValueError that says what is accepted."""
    if not text.startswith(("/", "~/")) or not _is_plain(text):
        raise ValueError(f"pattern {text[:120]!r} is not accepted: {ACCEPTED_PATTERNS}")
    return text


def check_directory(text: str) -> str:
    """`text`, when it names a directory, maybe with variables; otherwise ValueError that says what is accepted."""
    begins = text.startswith(("/", "~/")) or _VARIABLE.match(text) is not None
    if not begins or not _is_plain(text) or "$" in _VARIABLE.sub("", text):
        raise ValueError(f"directory {text[:120]!r} is not accepted: {ACCEPTED_DIRECTORIES}")
    if [part for part in text.split("/") if part] in ([], ["~"]):
        raise ValueError(
            f"directory {text[:120]!r} is not accepted: it must be the job's own, not all of / or of a home"
        )
    return text


def expand(text: str, environment: Mapping[str, str], home: str) -> str:
    """The directory that `text` names in this environment; empty where a variable is missing or it names none."""
    missing = False

    def value(match: re.Match[str]) -> str:
        nonlocal missing
        found = environment.get(match[1] or match[2], "")
        missing = missing or not found
        return found

    path = _VARIABLE.sub(value, text)
    if path.startswith("~/"):
        missing = missing or not home
        path = home + path[1:]
    parts = [part for part in path.split("/") if part]
    if missing or not path.startswith("/") or not parts or ".." in parts or "." in parts or "\0" in path:
        return ""
    return "/" + "/".join(parts)


def _is_plain(text: str) -> bool:
    return text.isprintable() and len(text) <= 4095 and all(part not in (".", "..") for part in text.split("/"))


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    text = ""
    parts = [part for part in pattern.split("/") if part]
    for number, part in enumerate(parts):
        if part == "**":
            # As the last name it stands for everything below, and not for the directory itself.
            text += "(?:/[^/]+)+" if number == len(parts) - 1 else "(?:/[^/]+)*"
        else:
            text += "/" + "".join({"*": "[^/]*", "?": "[^/]"}.get(sign, re.escape(sign)) for sign in part)
    return re.compile(text, re.DOTALL)


def _fits(pattern: str, path: str) -> bool:
    return _compiled(pattern).fullmatch(path) is not None
