"""What the texts and numbers in a manifest may be, beyond their type. Each refuses through its `fields`."""

from __future__ import annotations

import ipaddress

from slurmckpt.errors import Refused
from slurmckpt.identity import check_name
from slurmckpt.store.fields import Fields


def is_plain_path(text: str) -> bool:
    """Whether `text` is a relative, normalised path that stays below the directory it is joined to."""
    return bool(text) and "\0" not in text and all(part not in ("", ".", "..") for part in text.split("/"))


def name(fields: Fields, key: str) -> str:
    """A cluster, user or step (slurmckpt.identity)."""
    try:
        return check_name(key, fields.text(key))
    except ValueError as error:
        raise Refused(f"{fields.where}: {error}") from error


def relative(fields: Fields, key: str) -> str:
    """A path below the directory it is joined to."""
    text = fields.text(key)
    if not is_plain_path(text):
        fields.fail(key, "a relative path without '.', '..' and empty parts")
    return text


def absolute(fields: Fields, key: str) -> str:
    """A path from the root, without ".."."""
    text = fields.text(key)
    if not text.startswith("/") or "\0" in text or ".." in text.split("/"):
        fields.fail(key, "an absolute path without '..'")
    return text


def file_name(fields: Fields, key: str) -> str | None:
    """A relative path, or None."""
    text = fields.optional_text(key)
    if text is not None and not is_plain_path(text):
        fields.fail(key, "a relative path without '.', '..' and empty parts, or null")
    return text


def mode(fields: Fields) -> int:
    """Permission bits in the field `mode`."""
    return fields.whole("mode", lowest=0, highest=0o7777)


def endpoint(fields: Fields, key: str) -> str:
    """One end of a connection: address and port."""
    text = fields.text(key)
    address, _, port = text.rpartition(":")
    try:
        version = ipaddress.ip_address(address.removeprefix("[").removesuffix("]")).version
        valid = address.startswith("[") == address.endswith("]") == (version == 6) and 0 < int(port) < 65536
    except ValueError:
        valid = False
    if not (valid and port.isascii() and port.isdigit()):
        fields.fail(key, "address:port, or [address]:port for IPv6")
    return text


def digits(fields: Fields, key: str) -> str:
    """A whole number that may be too large for a field of numbers, or an empty text."""
    text = fields.text(key)
    if text and not (text.isascii() and text.isdigit()):
        fields.fail(key, "decimal digits")
    return text


def absolutes(fields: Fields, key: str) -> list[str]:
    """A list of paths from the root, without ".."."""
    texts = fields.texts(key)
    if not all(text.startswith("/") and "\0" not in text and ".." not in text.split("/") for text in texts):
        fields.fail(key, "absolute paths without '..'")
    return texts
