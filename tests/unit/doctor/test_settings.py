"""slurmckpt.toml, site.key, every-job."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from slurmckpt import config
from slurmckpt.config import Schedule
from slurmckpt.doctor import settings, trusted
from slurmckpt.errors import ConfigError, StoreError
from slurmckpt.units import parse_interval
from tests.unit.doctor.world import World


def test_settings(world: World) -> None:
    assert settings.settings_file(world.host()).text.endswith("is not there: every setting has its default")
    path = world.write("etc/slurmckpt.toml", "")
    found = settings.settings_file(world.host())
    assert (found.verdict, found.text) == ("ok", f"{path} is understood")


def test_faulty_settings_are_told_with_file_key_and_value(world: World) -> None:
    path = world.write("etc/slurmckpt.toml", "[store]\nkeep = 0\n")
    with pytest.raises(ConfigError) as raised:
        config.load(path)
    found = settings.settings_file(world.host(why_no_settings=str(raised.value)))
    assert found.verdict == "problem"
    assert found.text == f"{path}: store.keep = 0 is not accepted: a whole number from 1 to 1000"


def test_settings_that_users_cannot_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    path = world.write("etc/slurmckpt.toml", "", 0o640)
    monkeypatch.setattr(trusted, "unreadable", lambda path: "cannot be read by other users (mode 0640)")
    found = settings.settings_file(world.host())
    assert (found.verdict, found.remedy) == ("problem", f"chmod 0644 {path}")


def test_settings_that_users_can_change(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    path = world.write("etc/slurmckpt.toml", "")
    monkeypatch.setattr(trusted, "fault", lambda path: "is owned by uid 7, not by root")
    found = settings.settings_file(world.host())
    assert (found.verdict, found.text) == ("problem", f"{path} is owned by uid 7, not by root")


def test_site_key(world: World) -> None:
    path = world.write("etc/site.key", "0123456789abcdef", 0o400)
    if os.geteuid() == 0:
        assert settings.site_key(world.host()).verdict == "ok"
        path.chmod(0o644)
        assert settings.site_key(world.host()).verdict == "problem"
        path.chmod(0o400)
        path.write_text("short")
        assert settings.site_key(world.host()).verdict == "problem"
    path.unlink()
    found = settings.site_key(world.host())
    assert found.verdict == "problem"
    assert found.remedy.startswith(f"copy it from another node to {path}")


def test_who_cannot_see_the_site_key(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise StoreError("not reached")

    monkeypatch.setattr(settings, "load_site_key", refuse)
    assert settings.site_key(world.host(root=False)).verdict == "skipped"
    assert settings.site_key(world.login()).verdict == "skipped"
    assert settings.site_key(world.controller()).verdict == "skipped"


@pytest.mark.parametrize(
    ("marker", "interval", "verdict"),
    [(False, "off", "ok"), (True, "off", "warning"), (False, "10m", "warning"), (True, "10m", "ok")],
)
def test_the_marker_and_the_interval_belong_together(world: World, marker: bool, interval: str, verdict: str) -> None:
    world.settings = dataclasses.replace(world.settings, schedule=Schedule(interval=parse_interval(interval)))
    if marker:
        world.write("etc/every-job", "")
    assert settings.every_job(world.host()).verdict == verdict
    assert settings.every_job(world.controller()).verdict == verdict
    assert settings.every_job(world.login()).verdict == "skipped"
