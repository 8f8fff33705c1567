"""What a pod has from outside: known, and given again at a restore, or a reason against a capture."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.capture.looking import PYTHON, MakePod, look, one_refusal

pytestmark = pytest.mark.root


def external_key(file: Any) -> str:
    for line in Path(f"/proc/self/fdinfo/{file.fileno()}").read_text(encoding="ascii").splitlines():
        if line.startswith("mnt_id:"):
            return f"file[{int(line.split()[1]):x}:{os.fstat(file.fileno()).st_ino:x}]"
    raise AssertionError


def test_files_from_outside_are_external_and_must_be_known(make_pod: MakePod, tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as out, open("/dev/null", "w", encoding="ascii") as null:
        pod = make_pod("ready()", pass_fds=(out.fileno(), null.fileno()))
        keys = (external_key(out), external_key(null))
        found = look(pod, keys)
        assert found.refusals == []
        assert sorted(found.external) == sorted(keys)
        # Not a file of the pod's own mounts, though it is open for writing.
        assert found.open_files == []
        assert one_refusal(pod, keys[1:]) == (
            f"process 2 {PYTHON} holds {tmp_path / 'out'} (descriptor {out.fileno()}), which was opened outside"
            " the pod and cannot be given back at a restore: close it, or open it in the program itself"
        )


def test_a_pipe_to_outside_is_external_and_must_be_known(make_pod: MakePod) -> None:
    reader, writer = os.pipe()
    try:
        pod = make_pod("ready()", pass_fds=(writer,))
        key = f"pipe:[{os.fstat(writer).st_ino}]"
        assert (look(pod, (key,)).external, look(pod, (key,)).refusals) == ([key], [])
        assert one_refusal(pod) == (
            f"process 2 {PYTHON} holds a pipe that it writes to (descriptor {writer}), which was opened outside"
            " the pod and cannot be given back at a restore: close it, or open it in the program itself"
        )
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("end", ["r", "w"])
def test_a_pipe_whose_other_end_nobody_holds_is_not_external(make_pod: MakePod, end: str) -> None:
    pod = make_pod(f"r, w = os.pipe()\nos.close({'w' if end == 'r' else 'r'})\nready()")
    found = look(pod)
    assert (found.external, found.refusals) == ([], [])


def test_what_is_on_its_way_inside_a_message_is_not_outside(make_pod: MakePod) -> None:
    pod = make_pod(
        """
a, b = socket.socketpair()
r, w = os.pipe()
inner, far = socket.socketpair()
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
socket.send_fds(a, [b"x"], [r, inner.fileno(), server.fileno()])
os.close(r)
inner.close()
server.close()
ready()
"""
    )
    found = look(pod)
    assert (found.external, found.refusals, found.outside) == ([], [], [])
    assert len(found.inside) == 1, "as much of the connection as the pod holds"
    (sentence,) = found.passing
    assert "is connected by TCP to a socket that is on its way in a message (SCM_RIGHTS)" in sentence


def test_a_pipe_that_is_read_from_outside(make_pod: MakePod) -> None:
    reader, writer = os.pipe()
    try:
        pod = make_pod("ready()", pass_fds=(reader,))
        assert f"holds a pipe that it reads from (descriptor {reader})" in one_refusal(pod)
    finally:
        os.close(reader)
        os.close(writer)
