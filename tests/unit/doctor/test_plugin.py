"""plugstack.conf and the plugin that it names."""

from __future__ import annotations

import pytest

from slurmckpt.doctor import plugin
from slurmckpt.doctor.finding import Finding
from slurmckpt.doctor.host import Cluster
from tests.unit.doctor.world import NODE, Compile, World


def stack(world: World, text: str) -> Finding:
    world.write("slurm/plugstack.conf", text.replace("{a}", f"libexec={world.top}/libexec"))
    return plugin.stack(world.host())


def test_as_the_example_has_it(world: World) -> None:
    found = stack(world, "# slurmckpt\n\noptional /usr/lib/slurmckpt/slurmckpt.so {a}\n")
    assert (found.verdict, found.text) == ("ok", f"{world.top}/slurm/plugstack.conf: optional, last")


def test_required_is_dangerous(world: World) -> None:
    found = stack(world, "required /usr/lib/slurmckpt/slurmckpt.so {a}\n")
    assert (found.verdict, found.remedy) == ("problem", "write optional instead of required")


def test_not_last(world: World) -> None:
    found = stack(world, "optional slurmckpt.so {a}\n#\nrequired /usr/lib/slurm/spank_pyxis.so # containers\n")
    assert (found.verdict, "spank_pyxis.so follows" in found.text) == ("warning", True)


@pytest.mark.parametrize("text", ["", "# optional /usr/lib/slurmckpt/slurmckpt.so\n", "optional\n", "x slurmckpt.so\n"])
def test_not_there(world: World, text: str) -> None:
    found = stack(world, text)
    assert (found.verdict, found.remedy) == (
        "problem",
        "add at its end: optional /usr/lib/slurmckpt/slurmckpt.so",
    )
    assert plugin.stack(world.login()).verdict == "problem"
    assert plugin.stack(world.controller()).verdict == "skipped"


def test_included_files_are_read(world: World) -> None:
    included = world.write("slurm/plugstack.conf.d/zz.conf", f"optional slurmckpt.so libexec={world.top}/libexec\n")
    world.write("slurm/plugstack.conf.d/aa.conf", "optional other.so\n")
    assert stack(world, "include plugstack.conf.d/*.conf\n").text == f"{included}: optional, last"
    assert stack(world, f"include {world.top}/slurm/plugstack.conf.d/*\noptional other.so\n").verdict == "warning"


def test_a_file_that_includes_itself(world: World) -> None:
    assert stack(world, "include plugstack.*\noptional slurmckpt.so {a}\n").verdict == "ok"


def test_arguments_must_be_those_of_the_settings(world: World) -> None:
    found = stack(world, "optional slurmckpt.so\n")
    assert found.verdict == "problem"
    assert f"the plugin uses libexec=/usr/libexec/slurmckpt, but paths.libexec in {world.top}" in found.text
    assert stack(world, "optional slurmckpt.so {a} run=/run/other\n").verdict == "problem"
    assert stack(world, "optional slurmckpt.so {a} run=/run/slurmckpt\n").verdict == "ok"


def test_where_slurm_has_its_files(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"optional slurmckpt.so libexec={world.top}/libexec\n"
    elsewhere = world.write("elsewhere/stack", text)
    named = world.configured(PlugStackConfig=str(elsewhere))
    assert plugin.stack(named).text == f"{elsewhere}: optional, last"
    beside = world.write("own/plugstack.conf", text)
    world.write("own/slurm.conf", "")
    monkeypatch.setenv("SLURM_CONF", str(beside.with_name("slurm.conf")))
    assert plugin.stack(world.host(cluster=None)).text == f"{beside}: optional, last"


VERSION = "const unsigned int plugin_version = 0x{:x};"


@pytest.mark.parametrize(
    ("number", "release", "verdict", "text"),
    [
        (0x1A0505, "26.05", "ok", "is for Slurm 26.05, as installed here"),
        (0x1A0500, "26.05", "ok", "is for Slurm 26.05, as installed here"),
        (0x190B02, "26.05", "problem", "is for Slurm 25.11, here is 26.05: Slurm does not load it"),
        (0x1A0505, "unknown", "skipped", "is for Slurm 26.05; scontrol --version does not say what is installed here"),
        (0x170200, "23.02", "problem", "is for Slurm 23.02, which has no spank_prepend_task_argv"),
    ],
)
def test_releases(world: World, compiled: Compile, number: int, release: str, verdict: str, text: str) -> None:
    path = compiled("lib/slurmckpt.so", VERSION.format(number), "-shared -fPIC")
    world.write("slurm/plugstack.conf", f"optional {path}\n")
    found = plugin.plugin(world.host(release=release))
    assert (found.verdict, found.text) == (verdict, f"{path} {text}")


def test_what_is_no_plugin(world: World, compiled: Compile) -> None:
    path = compiled("lib/slurmckpt.so", "int other;", "-shared -fPIC")
    world.write("slurm/plugstack.conf", f"optional {path}\n")
    assert "exports no plugin_version" in plugin.plugin(world.host()).text
    path.write_text("text")
    assert "is no plugin for this machine" in plugin.plugin(world.host()).text
    path.unlink()
    assert plugin.plugin(world.host()).text == f"{path} is missing"


def test_a_controller_needs_none(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "_DEFAULT", world.top / "lib/slurmckpt.so")
    assert plugin.plugin(world.controller()).verdict == "skipped"
    assert plugin.plugin(world.login()).verdict == "problem"
    both = world.host(name="ctl", slurmctld=1, cluster=Cluster(world.config, NODE))
    assert plugin.plugin(both).verdict == "problem"
