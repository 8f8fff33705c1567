"""Which differences forbid a restore, and what a user reads about them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmckpt.config import Rule
from slurmckpt.fingerprint.compare import compare, explain, rule_for

NODE = {
    "host.arch": "x86_64",
    "host.kernel": "6.18.44-amd64",
    "host.os": "Debian 14",
    "host.cpu.model": "Xeon 8480",
    "host.cpu.flags": "avx avx2 sse4_2",
    "host.criu": "4.2.1",
    "gpu.driver": "570.86.15",
    "gpu.count": "2",
    "gpu.0.name": "NVIDIA H200",
}


def test_the_same_node_fits() -> None:
    assert compare(NODE, NODE) == []


@pytest.mark.parametrize(
    ("key", "here", "said"),
    [
        ("gpu.driver", "575.51.03", "driver 570.86.15 -> 575.51.03"),
        ("gpu.count", "4", "GPU count 2 -> 4"),
        ("gpu.0.name", "NVIDIA H100", "GPU 0 name NVIDIA H200 -> NVIDIA H100"),
        ("host.kernel", "6.18.45-amd64", "kernel 6.18.44-amd64 -> 6.18.45-amd64"),
        ("host.criu", "4.1.1", "CRIU 4.2.1 -> 4.1.1"),
        ("host.arch", "aarch64", "architecture x86_64 -> aarch64"),
        ("host.cpu.flags", "avx sse4_2 sha_ni", "CPU features missing: avx2"),
        ("host.os", "Debian 15", ""),
        ("host.cpu.model", "EPYC", ""),
        ("host.criu", "4.2.1", ""),
        ("host.criu", "4.10", ""),
        ("host.criu", "5.0", ""),
        ("host.cpu.flags", "avx avx2 avx512f sse4_2", ""),
    ],
)
def test_one_difference(key: str, here: str, said: str) -> None:
    assert explain(compare(NODE, NODE | {key: here})) == said


def test_what_is_gone() -> None:
    here = {key: value for key, value in NODE.items() if not key.startswith("gpu.")}
    assert (
        explain(compare(NODE, here)) == "GPU count 2 -> none; driver 570.86.15 -> none; GPU 0 name NVIDIA H200 -> none"
    )


def test_what_is_here_besides_does_no_harm() -> None:
    recorded = {key: value for key, value in NODE.items() if not key.startswith("gpu.")}
    assert compare(recorded, NODE) == []


def test_unknown_keys_must_be_equal() -> None:
    assert explain(compare({"site.image": "1"}, {"site.image": "2"})) == "image 1 -> 2"


@pytest.mark.parametrize(
    ("rules", "fits"),
    [
        ({}, False),
        ({"gpu.driver": "informative"}, True),
        ({"gpu.*": "informative"}, True),
        ({"gpu.driver": "at-least"}, True),
        # the first pattern that matches counts
        ({"gpu.driver": "equal", "gpu.*": "informative"}, False),
        ({"gpu.*": "informative", "gpu.driver": "equal"}, True),
    ],
)
def test_the_sites_rules(rules: dict[str, Rule], fits: bool) -> None:
    assert (compare(NODE, NODE | {"gpu.driver": "575.51.03"}, rules) == []) is fits


def test_a_site_can_be_stricter() -> None:
    assert len(compare(NODE, NODE | {"host.os": "Debian 15"}, {"host.os": "equal"})) == 1


def test_at_least_needs_something_that_can_be_ordered() -> None:
    rules: dict[str, Rule] = {"x": "at-least"}
    assert compare({"x": "blue"}, {"x": "green"}, rules)
    assert compare({"x": "blue"}, {"x": "blue"}, rules) == []
    assert compare({"x": "9"}, {"x": "10"}, rules) == []
    assert compare({"x": "10"}, {"x": "9"}, rules)
    assert compare({"x": "1.2"}, {"x": "1"}, rules)


def test_what_says_most_of_another_gpu_comes_first() -> None:
    recorded = {
        "gpu.0.capability": "9.0",
        "gpu.0.memory": "150754820096",
        "gpu.0.name": "NVIDIA H200",
        "gpu.count": "8",
        "gpu.driver": "580.95",
    }
    here = {**recorded, "gpu.0.capability": "8.0", "gpu.0.memory": "85899345920", "gpu.0.name": "NVIDIA A100"}
    assert explain(compare(recorded, {**here, "gpu.driver": "590.1"})) == (
        "driver 580.95 -> 590.1; GPU 0 name NVIDIA H200 -> NVIDIA A100; GPU 0 capability 9.0 -> 8.0; and 1 more"
    )
    assert "GPU 0 memory 151 GB -> 86 GB" in [str(one) for one in compare(recorded, here)]
    assert explain(compare(recorded, {})).startswith("GPU count 8 -> none; driver 580.95 -> none; GPU 0 name NVIDIA")
    # A manifest may hold anything.
    assert explain(compare({"gpu.0.memory": "9" * 5000}, {"gpu.0.memory": "\u0663"})).isprintable()


def test_files_come_after_versions() -> None:
    recorded = {
        "engine.build-id:/v/lib/libtorch.so": "aa",
        "engine.build-id:/usr/lib/libc.so.6": "bb",
        "engine.torch": "2.10.0",
        "model.file:/w/model.safetensors": "7 bytes, blake3 00",
    }
    here = {
        "engine.build-id:/v/lib/libtorch.so": "ab",
        "engine.torch": "2.11.0",
        "model.file:/w/model.safetensors": "7 bytes, blake3 01",
    }
    differences = compare(recorded, here)
    assert (
        explain(differences) == "torch 2.10.0 -> 2.11.0; libc.so.6 bb -> none; libtorch.so is another build; and 1 more"
    )
    assert explain(differences[3:]) == "model.safetensors has other content"


def test_hostile_text_stays_one_short_line() -> None:
    key = "engine.build-id:/x/\x1b[31m" + "y" * 300 + "\n.so"
    said = explain(compare({key: "a", "model.id": "z\n" * 300}, {"model.id": "b"}))
    assert said.isprintable()
    assert len(said) < 250


@given(st.dictionaries(st.text(min_size=1), st.text()), st.dictionaries(st.text(min_size=1), st.text()))
def test_comparison_never_fails_and_is_reflexive(recorded: dict[str, str], here: dict[str, str]) -> None:
    assert compare(recorded, recorded) == []
    differences = compare(recorded, here)
    assert explain(differences).isprintable()
    for difference in differences:
        assert recorded[difference.key] != here.get(difference.key)
        assert rule_for(difference.key) == difference.rule != "informative"


@pytest.mark.parametrize(
    ("recorded", "here", "text"),
    [
        ({}, {"site.image": "2"}, "image none -> 2"),
        ({"site.image": "1"}, {}, "image 1 -> none"),
        ({"site.image": "1"}, {"site.image": "2"}, "image 1 -> 2"),
        ({}, {"gpu.0.name": "H200"}, ""),
    ],
)
def test_a_fact_of_the_site_tells_nodes_apart_whichever_has_it(
    recorded: dict[str, str], here: dict[str, str], text: str
) -> None:
    assert explain(compare(recorded, here)) == text
