"""Fingerprints and how two of them are compared.

A fingerprint is flat: key to value, both text. Keys are namespaced by dots, from general to special; what follows a
colon is a path: `host.kernel`, `gpu.0.name`, `engine.torch`, `engine.build-id:/usr/lib/libc.so.6`, `model.id`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from slurmckpt.config import Rule
from slurmckpt.errors import one_line
from slurmckpt.units import format_bytes

Fingerprint = dict[str, str]

# The first pattern that matches counts. What no pattern names must be equal.
DEFAULT_RULES: Mapping[str, Rule] = {
    "host.os": "informative",
    "host.cpu.model": "informative",
    "host.cpu.flags": "at-least",
    # CRIU reads the images of its earlier releases, not of later ones.
    "host.criu": "at-least",
    "gpu.*.uuid": "informative",
    # Switched on and off by administrators; a restore does without it, as the caller has initialised CUDA.
    "gpu.*.persistence": "informative",
}

# What people call a key, where its last part would not do.
_NAMES = {
    "host.arch": "architecture",
    "host.kernel": "kernel",
    "host.page-size": "page size",
    "host.cpu.vendor": "CPU vendor",
    "host.cpu.flags": "CPU features",
    "host.libc": "C library",
    "host.criu": "CRIU",
    "gpu.driver": "driver",
    "gpu.count": "GPU count",
    "gpu.mps": "MPS",
    "gpu.confidential": "confidential computing",
    "model.id": "model",
}
# What says most comes first, as only the beginning is shown: another GPU has other memory as well.
_FIRST = ("gpu.count", "gpu.driver", "gpu.*.name")
_SHOWN = 3
_VALUE_LENGTH = 60


@dataclass(frozen=True)
class Difference:
    """One key that keeps a checkpoint from being restored here. recorded, here: None when there is no such value."""

    key: str
    recorded: str | None
    here: str | None
    rule: Rule

    def __str__(self) -> str:
        """The difference for people, such as `driver 570.86 -> 575.51`."""
        name = short_name(self.key)
        if self.here is None or self.recorded is None:
            was, now = (_readable(self.key, value) if value else "none" for value in (self.recorded, self.here))
            return f"{name} {was} -> {now}"
        if self.key == "host.cpu.flags":
            missing = sorted(set(self.recorded.split()) - set(self.here.split()))
            return f"{name} missing: {_short(' '.join(missing))}"
        if self.key.startswith("engine.build-id:"):
            return f"{name} is another build"
        if self.key.startswith("model.file:"):
            return f"{name} has other content"
        return f"{name} {_readable(self.key, self.recorded)} -> {_readable(self.key, self.here)}"


def rule_for(key: str, rules: Mapping[str, Rule] | None = None) -> Rule:
    """The rule for `key`: the site's rules (patterns as in fnmatch, first match) before the defaults."""
    for table in (rules or {}, DEFAULT_RULES):
        for pattern, rule in table.items():
            if fnmatchcase(key, pattern):
                return rule
    return "equal"


def compare(
    recorded: Mapping[str, str], here: Mapping[str, str], rules: Mapping[str, Rule] | None = None
) -> list[Difference]:
    """The differences that forbid a restore here of what was recorded there; empty: it fits.

    Only recorded keys count: a GPU or a package that is here besides does no harm. But a fact that the site gives for
    one of the two nodes only (`site.*`) tells them apart, whichever has it. Single files come last, because a version
    says more than the build ids that change with it.
    """
    differences = []
    keys = {*recorded, *(key for key in here if key.startswith("site."))}
    for key in sorted(keys, key=lambda key: (":" in key, _place(key), key)):
        rule = rule_for(key, rules)
        if rule != "informative" and not _fits(key, recorded.get(key), here.get(key), rule):
            differences.append(Difference(key, recorded.get(key), here.get(key), rule))
    return differences


def explain(differences: Sequence[Difference]) -> str:
    """The differences in one line, the first three in words: `driver 570.86 -> 575.51; kernel ... and 4 more`."""
    shown = "; ".join(str(difference) for difference in differences[:_SHOWN])
    rest = len(differences) - _SHOWN
    return f"{shown}; and {rest} more" if rest > 0 else shown


def short_name(key: str) -> str:
    """What people call a key: `gpu.0.name` is `GPU 0 name`, a path is its last part."""
    if key in _NAMES:
        return _NAMES[key]
    head, _, path = key.partition(":")
    if path:
        return _short(path.rsplit("/", 1)[-1])
    parts = head.split(".")
    if parts[0] == "gpu" and len(parts) == 3:
        return f"GPU {parts[1]} {parts[2]}"
    return _short(".".join(parts[1:]) or head)


def _place(key: str) -> int:
    return next((place for place, pattern in enumerate(_FIRST) if fnmatchcase(key, pattern)), len(_FIRST))


def _readable(key: str, value: str) -> str:
    is_size = key.startswith("gpu.") and key.endswith(".memory") and value.isdecimal() and len(value) < 20
    return format_bytes(int(value)) if is_size else _short(value)


def _fits(key: str, recorded: str | None, here: str | None, rule: Rule) -> bool:
    if recorded is None or here is None or recorded == here:
        return recorded == here
    if rule == "equal":
        return False
    if key.endswith(".flags"):
        return set(recorded.split()) <= set(here.split())
    numbers = _numbers(recorded)
    return bool(numbers) and numbers <= _numbers(here)


def _numbers(text: str) -> tuple[int, ...]:
    """The numbers in a version or a size, in their order: (6, 18, 44) of 6.18.44-amd."""
    return tuple(int(digits) for digits in re.findall(r"\d+", text, re.ASCII))


def _short(text: str) -> str:
    return one_line(text, _VALUE_LENGTH)
