"""ELF files as the compiler makes them, and as an enemy would."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmckpt.doctor.elf import NotElf, constant, is_static
from tests.unit.doctor.world import Compile

PLUGIN = """
extern int slurm_error(const char *, ...);
const char plugin_type[] = "spank";
const unsigned int plugin_version = 0x1a0505;
const unsigned int plugin_version_of_another = 7;
int slurm_spank_init(void) { return slurm_error("x"); }
"""


@pytest.mark.parametrize("more", ["", "-Wl,--hash-style=sysv", "-s"])
def test_the_constant_of_a_plugin(compiled: Compile, more: str) -> None:
    """Also of one that wants symbols that only Slurm has, and of a stripped one: Slurm itself could not do without."""
    path = compiled("plugin.so", PLUGIN, f"-shared -fPIC {more}")
    assert constant(path, "plugin_version") == 0x1A0505
    assert constant(path, "plugin_versio") is None
    assert constant(path, "version") is None
    assert constant(path, "slurm_error") is None


@pytest.mark.parametrize(("options", "static"), [("-static", True), ("-static-pie", True), ("", False)])
def test_static_programs(compiled: Compile, options: str, static: bool) -> None:
    path = compiled("program", "int main(void) { return 0; }", options)
    assert is_static(path) is static
    subprocess.run([str(path)], check=True)


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"\x7fELF", b"\x7fELF\x01\x01" + bytes(100), bytes(100)])
def test_other_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(NotElf):
        is_static(path)
    with pytest.raises(NotElf):
        constant(path, "plugin_version")


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(FileNotFoundError):
        is_static(tmp_path / "fifo")


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 63), st.integers(0, 255)), max_size=20),
    st.binary(max_size=400),
    st.integers(0, 500),
)
def test_no_file_does_more_than_be_refused(changes: list[tuple[int, int]], rest: bytes, size: int) -> None:
    data = bytearray(b"\x7fELF\x02\x01" + bytes(58) + rest)
    for place, value in changes:
        if place > 5:
            data[place] = value
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "file"
        path.write_bytes(data[:size])
        for look in (is_static, lambda path: constant(path, "plugin_version")):
            with contextlib.suppress(NotElf):
                assert look(path) in (True, False, None)
