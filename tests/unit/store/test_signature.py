"""The signature of a manifest, and the site key."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmckpt.errors import StoreError
from slurmckpt.store.signature import load_site_key, sign, verify


def test_signature_is_hmac_sha256() -> None:
    # RFC 4231, test case 2.
    signature = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    assert sign(b"what do ya want for nothing?", b"Jefe") == signature
    assert verify(b"what do ya want for nothing?", signature, b"Jefe")


@given(st.binary(max_size=50), st.text(max_size=70))
def test_nothing_else_verifies(data: bytes, signature: str) -> None:
    key = b"0123456789abcdef"
    assert verify(data, sign(data, key), key)
    assert verify(data, signature, key) == (signature == sign(data, key))
    assert not verify(data + b"x", sign(data, key), key)
    assert not verify(data, sign(data, key) + "0", key)
    assert not verify(data, sign(data, key), key + b"x")


def key_file(tmp_path: Path, content: bytes = b"0123456789abcdef\n", mode: int = 0o600) -> Path:
    path = tmp_path / "site.key"
    path.write_bytes(content)
    path.chmod(mode)
    return path


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="the key is root's")


@needs_root
@pytest.mark.root
@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_key(tmp_path: Path, mode: int) -> None:
    assert load_site_key(key_file(tmp_path, b"\n 0123456789abcdef \n", mode)) == b"0123456789abcdef"


@needs_root
@pytest.mark.root
@pytest.mark.parametrize("content", [b"", b"0123456789abcde\n", b" " * 100, b"x" * 70_000])
def test_key_of_wrong_length(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(StoreError, match=r"^site key .* holds \d+ bytes; accepted: 16 to 65536$"):
        load_site_key(key_file(tmp_path, content))


@needs_root
@pytest.mark.root
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o666])
def test_key_open_to_others(tmp_path: Path, mode: int) -> None:
    with pytest.raises(StoreError, match=rf"^site key .* has mode {mode:04o}; group and others must have no access"):
        load_site_key(key_file(tmp_path, mode=mode))


def test_key_of_somebody_else(tmp_path: Path) -> None:
    path = key_file(tmp_path)
    if os.geteuid() == 0:
        os.chown(path, 1000, 1000)
    owner = path.stat().st_uid
    with pytest.raises(StoreError, match=rf"^site key .* is owned by uid {owner}; it must be owned by root$"):
        load_site_key(path)


def test_key_that_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"^site key .* cannot be read: No such file or directory$"):
        load_site_key(tmp_path / "none")
    with pytest.raises(StoreError, match="is not a regular file"):
        load_site_key(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(StoreError, match="is not a regular file"):
        load_site_key(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(key_file(tmp_path))
    with pytest.raises(StoreError, match="cannot be read: Too many levels of symbolic links"):
        load_site_key(tmp_path / "link")
