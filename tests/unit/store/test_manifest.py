"""The manifest: strict reading."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from slurmckpt.errors import Refused
from slurmckpt.store.manifest import (
    MANIFEST_FORMAT,
    CarriedDirectory,
    Connection,
    LaunchImage,
    Manifest,
    OpenFile,
    OutputFile,
    StepImage,
    StoredFile,
    TaskImage,
)

FULL = Manifest(
    product_version="0.1.0",
    cluster="cluster",
    user="jane",
    uid=1000,
    job_id=4711,
    seq=12,
    epoch=2,
    node="n1",
    created=1_800_000_000.25,
    interval="600s",
    freeze_seconds=0.28,
    steps=[
        StepImage(
            step="batch",
            directory="batch",
            leader_pid=100,
            status_pipe="pipe:[4711]",
            ntasks=1,
            argv_digest="ab" * 32,
            uid=1000,
            gid=100,
            tasks=[
                TaskImage(
                    index=0,
                    gtask=0,
                    pid=101,
                    exited=True,
                    status=256,
                    descriptors={"1": "file[2f:1a]"},
                    held={"1": "61"},
                )
            ],
            addresses=["10.0.0.1"],
            open_files=[
                OpenFile(
                    path="/home/jane/not-\udcff-utf8",
                    size=5,
                    mode=0o644,
                    inode="18446744073709551615",
                    policy="save",
                    modified=1_800_000_000_123_456_789,
                    owner=1000,
                    group=100,
                    content=4096,
                    sample="0123456789abcdef",
                )
            ],
            criu_version="4.2.1",
            shm=True,
            hostname="n1",
            outside=[Connection(local="10.0.0.1:40000", remote="[2001:db8::1]:443")],
            node_addresses=["10.0.0.1", "fd00::1"],
            command="/var/spool/slurmd/job04711/slurm_script",
            launches=[
                LaunchImage(
                    number=3,
                    pid=140,
                    step="2",
                    status=None,
                    signal_pipe="pipe:[71]",
                    status_pipe="pipe:[72]",
                    payload="launches/3",
                    input="launches/3.input",
                )
            ],
            environment="environment",
            script_path="/var/spool/slurmd.n1/job00007/slurm_script",
            script_digest="ef" * 32,
            script_paths=["/var/spool/slurmd.n1/job00007/slurm_script"],
            absent_files=["/home/jane/run.db-journal"],
        )
    ],
    outputs=[OutputFile(path="/home/jane/out", size=14, content="0", holders={"batch/0/1": 14})],
    fingerprint={"host.arch": "x86_64"},
    node_feature="slurmckpt-0123456789ab",
    attempt=2,
    carried=[CarriedDirectory(path="/scratch/4711", archive="carried-0.tar")],
    files=[
        StoredFile(path="batch/images/core-1.img", size=9, mode=0o600, blake3="0" * 64, stored="zstd", stored_size=20)
    ],
)


def values() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(FULL.to_json())
    return content


def reason(content: object) -> str:
    with pytest.raises(Refused) as caught:
        Manifest.from_json(json.dumps(content).encode())
    assert "\n" not in caught.value.reason
    return caught.value.reason


def objects(content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each kind of object in the manifest, once."""
    yield content
    yield content["steps"][0]
    yield content["steps"][0]["tasks"][0]
    yield content["steps"][0]["open_files"][0]
    yield content["steps"][0]["launches"][0]
    yield content["outputs"][0]
    yield content["files"][0]
    yield content["steps"][0]["outside"][0]


KINDS = len(list(objects(values())))


def test_comes_back() -> None:
    assert Manifest.from_json(FULL.to_json()) == FULL
    assert FULL.to_json().isascii()


@pytest.mark.parametrize("kind", range(KINDS))
def test_each_missing_field_is_named(kind: int) -> None:
    for key in list(list(objects(values()))[kind]):
        content = values()
        del list(objects(content))[kind][key]
        assert reason(content).endswith(f"field {key!r} is missing")


WRONG: dict[type, list[object]] = {
    str: [None, True, 5, 1.5, ["text"], {"x": 1}],
    type(None): [True, 1.5, "5", [], {}],
    bool: [None, 0, 1, "true", [], {}],
    int: [None, True, 1.0, "5", -(2**63), 2**63, 2**70, float("nan"), [1], {}],
    float: [None, True, "1.5", -0.1, float("inf"), float("nan"), 2**64, 10**400, [1.5], {}],
    list: [None, True, 5, "text", {}, [None], [5], [["text"]], {"0": "text"}],
    dict: [None, True, 5, "text", [], [["1", "x"]], {"1": 1.5}, {"1": None}, {"1": True}],
}


@pytest.mark.parametrize("kind", range(KINDS))
def test_each_ill_typed_field_is_named(kind: int) -> None:
    for key, good in list(objects(values()))[kind].items():
        for wrong in WRONG[type(good)]:
            if key in ("content", "environment", "input") and wrong is None:
                continue
            content = values()
            list(objects(content))[kind][key] = wrong
            with pytest.raises(Refused, match=key):
                pytest.fail(f"{key} = {wrong!r} was read as {Manifest.from_json(json.dumps(content).encode())}")


@pytest.mark.parametrize("kind", range(KINDS))
def test_unknown_field_is_named(kind: int) -> None:
    content = values()
    list(objects(content))[kind]["surprise"] = 1
    assert reason(content).endswith("unknown field 'surprise'")


@pytest.mark.parametrize("version", [0, 1, 99])
def test_other_format(version: int) -> None:
    # A newer format may have any fields: only the version is spoken of.
    assert reason({"format": version, "new": 1}) == (
        f"manifest has format {version}; this version of slurmckpt reads format {MANIFEST_FORMAT}"
    )


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 100_000])
def test_not_json(data: bytes) -> None:
    with pytest.raises(Refused, match=r"^manifest is not valid JSON: "):
        Manifest.from_json(data)


def test_not_an_object() -> None:
    assert reason([1]) == "manifest is not a JSON object"


@pytest.mark.parametrize(
    ("kind", "key", "wrong"),
    [
        (1, "directory", "../x"),
        (1, "directory", "/x"),
        (1, "step", "a/b"),
        (1, "step", ".."),
        (2, "descriptors", {"x": "pipe:[1]"}),
        (2, "descriptors", {"-1": "pipe:[1]"}),
        (3, "path", "relative"),
        (3, "path", "/a/../b"),
        (3, "mode", 0o10000),
        (5, "path", "relative"),
        (5, "content", "../0"),
        (5, "content", "a/b"),
        (5, "content", ""),
        (5, "holders", {"batch/1": "14"}),
        (5, "holders", {"batch/1": -1}),
        (0, "fingerprint", {"host.arch": 1}),
        (6, "path", "a/../b"),
        (6, "mode", 0o4755),
        (6, "blake3", "0" * 63),
        (6, "blake3", "G" * 64),
        (6, "stored", "gzip"),
        *((7, "local", wrong) for wrong in ("10.0.0.1", "10.0.0.1:0", "10.0.0.1:65536", "10.0.0.1:+1", "host:80")),
        *((7, "remote", wrong) for wrong in ("", "::1:80", "[10.0.0.1]:80", "[::1:80", "[::1]", "10.0.0.1:\u0661")),
        (0, "user", "../root"),
        (0, "cluster", "a/b"),
        (0, "job_id", 0),
    ],
)
def test_out_of_range(kind: int, key: str, wrong: object) -> None:
    content = values()
    list(objects(content))[kind][key] = wrong
    assert key in reason(content)


def test_plain_file_has_one_size() -> None:
    content = values()
    content["files"][0]["stored"] = "plain"
    assert "stored_size = 20 is not accepted: the same as size" in reason(content)


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["a", "a"], "'a' is listed twice"),
        (["a", "a/b"], "'a' is listed as a file and as a directory"),
        (["a/b/c", "a/b"], "'a/b' is listed as a file and as a directory"),
        (["manifest.json"], "'manifest.json' is listed twice or has a reserved name"),
        (["manifest.sig"], "reserved name"),
    ],
)
def test_tree_that_cannot_be(paths: list[str], message: str) -> None:
    content = values()
    content["files"] = [content["files"][0] | {"path": path} for path in paths]
    assert message in reason(content)
