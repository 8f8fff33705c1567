"""slurmckpt.toml: defaults, what is accepted, and the line that names what is not."""

from __future__ import annotations

import re
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from slurmckpt.config import Fingerprint, Settings, load
from slurmckpt.errors import ConfigError
from slurmckpt.filerules import FileRule
from slurmckpt.units import Interval

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SHIPPED = Path(__file__).parents[2] / "etc" / "slurmckpt.toml"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "slurmckpt.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_missing_file_is_all_defaults(tmp_path: Path) -> None:
    settings = load(tmp_path / "none.toml")
    assert settings == Settings()
    assert settings.schedule.interval == Interval("off")
    assert settings.schedule.mtbf == 604800
    assert settings.store.path == Path("/var/spool/slurmckpt")
    assert (settings.store.keep, settings.store.compression, settings.store.level) == (2, "zstd", 1)
    assert settings.staging.reserve == 2**30
    assert settings.paths.site_key == Path("/etc/slurmckpt/site.key")


def test_empty_file_is_all_defaults(tmp_path: Path) -> None:
    assert load(written(tmp_path, "")) == Settings()


def test_shipped_file_states_every_default() -> None:
    """Key by key: the shipped file documents the settings, so it names all of them, nothing else, with the defaults."""
    assert load(SHIPPED) == Settings()
    shipped = tomllib.loads(SHIPPED.read_text(encoding="utf-8"))
    settings = Settings()
    assert list(shipped) == [section.name for section in fields(settings)]
    for section in fields(settings):
        value = getattr(settings, section.name)
        assert is_dataclass(value)
        assert list(shipped[section.name]) == [key.name for key in fields(value)], section.name


def test_each_shipped_key_counts(tmp_path: Path) -> None:
    """A key that the file has but the reader ignores would pass the comparison with the defaults: change each one."""
    shipped = tomllib.loads(SHIPPED.read_text(encoding="utf-8"))
    other = {
        "interval": '"1h"',
        "compression": '"none"',
        "io_uring": '"allow"',
        "real_id": '"never"',
        "level": "7",
        "enabled": '"off"',
    }
    other |= {"capture": '"off"', "profile": '"sockets"'}
    other |= {"max_read": '"1M"', "max_read_each": '"1M"'}
    other |= {"policy": '"keep"', "rules": '[{ path = "/a", policy = "keep" }]', "carry": '["$TMPDIR"]'}
    for section, keys in shipped.items():
        if section == "fingerprint":
            continue
        for key, value in keys.items():
            changed = other.get(key) if (section, key) != ("log", "level") else '"debug"'
            if changed is None:
                if isinstance(value, bool):
                    changed = "false"
                elif isinstance(value, list):
                    changed = str(value[:-1])
                elif isinstance(value, (int, float)):
                    changed = f"{value * 2}"
                elif re.fullmatch(r"\d+[smdG]", value):
                    changed = f'"{int(value[:-1]) + 1}{value[-1]}"'
                else:
                    changed = f'"{value}-other"'
            settings = load(written(tmp_path, f"[{section}]\n{key} = {changed}\n"))
            assert getattr(getattr(settings, section), key) != getattr(getattr(Settings(), section), key), key


def test_every_key_of_the_shipped_file_is_documented() -> None:
    lines = SHIPPED.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        if re.match(r"[a-z_]+ = ", line):
            assert lines[number - 1].startswith("# "), line
        assert len(line) <= 120, line


def test_values(tmp_path: Path) -> None:
    settings = load(
        written(
            tmp_path,
            """
            [schedule]
            interval = "1:30:00"
            min_interval = 5
            mtbf = "2d12h"
            jitter = 0
            [store]
            path = "/lustre/ckpt"
            compression = "none"
            [staging]
            reserve = 1000
            [restore]
            pasta = ""
            [files]
            rules = [{ path = "~/*.log", policy = "truncate" }, { path = "/**", policy = "keep" }]
            carry = ["$TMPDIR", "/scratch/$SLURM_JOB_ID"]
            [requeue]
            node_feature = false
            [fingerprint.rules]
            "host.*" = "informative"
            "*.uuid" = "equal"
            "*" = "informative"
            [fingerprint.site]
            image = "2026-11"
            """,
        )
    )
    assert settings.schedule.interval == Interval("fixed", 5400.0)
    assert settings.schedule.min_interval == 5.0
    assert settings.schedule.mtbf == 216000.0
    assert settings.schedule.jitter == 0.0
    assert settings.store.path == Path("/lustre/ckpt")
    assert settings.store.compression == "none"
    assert settings.staging.reserve == 1000
    assert settings.restore.pasta == ""
    assert settings.files.rules == (FileRule("~/*.log", "truncate"), FileRule("/**", "keep"))
    assert settings.files.carry == ("$TMPDIR", "/scratch/$SLURM_JOB_ID")
    assert settings.requeue.node_feature is False
    assert settings.fingerprint == Fingerprint(
        rules={"host.*": "informative", "*.uuid": "equal", "*": "informative"}, site={"image": "2026-11"}
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[store]\nkeep = 0", "store.keep = 0 is not accepted: a whole number from 1 to 1000"),
        ("[store]\nkeep = true", "store.keep = true is not accepted: a whole number from 1 to 1000"),
        ("[store]\nkeep = 2.0", "store.keep = 2.0 is not accepted: a whole number from 1 to 1000"),
        ('[store]\nkeep = "2"', "store.keep = '2' is not accepted: a whole number from 1 to 1000"),
        ("[store]\nlevel = 20", "store.level = 20 is not accepted: a whole number from 1 to 19"),
        ('[store]\ncompression = "gzip"', 'store.compression = \'gzip\' is not accepted: "zstd" or "none"'),
        ("[store]\ncompression = []", 'store.compression = [] is not accepted: "zstd" or "none"'),
        (
            '[store]\npath = "relative"',
            "store.path = 'relative' is not accepted: an absolute path without \"..\", as text",
        ),
        (
            '[store]\npath = "/a/../b"',
            "store.path = '/a/../b' is not accepted: an absolute path without \"..\", as text",
        ),
        ('[store]\npath = "/a\\u0000b"', "store.path = '/a\\x00b' is not accepted: an absolute path"),
        (
            '[store]\npaht = "/x"',
            "unknown key store.paht (did you mean path?); accepted: compression, image_days, keep, lease_watch",
        ),
        ("[stroe]\nkeep = 1", "unknown key stroe (did you mean store?); accepted: capture, files"),
        ("store = 1", "store = 1 is not accepted: a section, written [store]"),
        ("[schedule]\njitter = 0.6", "schedule.jitter = 0.6 is not accepted: a number from 0 to 0.5"),
        ("[schedule]\njitter = nan", "schedule.jitter = nan is not accepted: a number from 0 to 0.5"),
        ("[schedule]\nmtbf = inf", "schedule.mtbf = inf is not accepted: a number with units"),
        (
            '[schedule]\nmtbf = "1:30"',
            "schedule.mtbf: duration '1:30' is not understood; accepted: a number with units",
        ),
        ("[schedule]\ninterval = 10", "schedule.interval = 10 is not accepted: text such as"),
        ('[schedule]\ninterval = "10x"', "schedule.interval: interval '10x' is not understood; accepted: 90s, 10m"),
        ('[staging]\nreserve = "lots"', "staging.reserve: size 'lots' is not understood; accepted: bytes"),
        ("[staging]\nreserve = -1", "staging.reserve = -1 is not accepted: bytes"),
        ('[capture]\ncriu = ""', "capture.criu = '' is not accepted: an absolute path without \"..\", or the name"),
        ('[capture]\ncriu = "bin/criu"', "capture.criu = 'bin/criu' is not accepted: an absolute path without"),
        ('[restore]\npasta = "../x"', "restore.pasta = '../x' is not accepted: an absolute path without"),
        ('[requeue]\nnode_feature = "yes"', "requeue.node_feature = 'yes' is not accepted: true or false"),
        (
            '[fingerprint.rules]\nkernel = "informative"',
            "fingerprint.rules.kernel = 'informative' is not accepted: a rule for a key of the fingerprint or a"
            ' pattern, in quotes, as in "host.kernel"; slurmckpt fingerprint lists them',
        ),
        (
            '[fingerprint.rules]\nhost.kernel = "informative"',
            "fingerprint.rules.host = {'kernel': 'informative'} is not accepted: a rule for a key of",
        ),
        (
            '[fingerprint.rules]\n"hots.kernel" = "equal"',
            "fingerprint.rules.hots.kernel = 'equal' is not accepted: a rule",
        ),
        (
            '[fingerprint.rules]\n"gpu.driver" = "same"',
            'fingerprint.rules.gpu.driver = \'same\' is not accepted: "equal" or "at-least" or "informative"',
        ),
        ('[fingerprint.site]\n"a b" = "x"', "fingerprint.site.a b = 'x' is not accepted: a name of at most 64 letters"),
        ("[fingerprint.site]\nimage = 2026", "fingerprint.site.image = 2026 is not accepted: printable text"),
        ('[fingerprint]\nrule = "x"', "unknown key fingerprint.rule (did you mean rules?); accepted: rules, site"),
        ('[log]\nlevel = "loud"', 'log.level = \'loud\' is not accepted: "debug" or "info" or "warning" or "error"'),
        (
            '[files]\npolicy = "move"',
            'files.policy = \'move\' is not accepted: "auto" or "truncate" or "keep" or "save"',
        ),
        ("[files]\nrules = 1", "files.rules = 1 is not accepted: a list of tables, as in [{ path = "),
        ('[files]\nrules = ["/a"]', "files.rules = ['/a'] is not accepted: a list of tables, as in [{ path = "),
        ('[files]\nrules = [{ policy = "keep" }]', "files.rules[0].path: pattern '' is not accepted: a path that"),
        ('[files]\nrules = [{ path = "a" }]', "files.rules[0].path: pattern 'a' is not accepted: a path that"),
        ('[files]\nrules = [{ path = "/a", x = 1 }]', "unknown key files.rules[0].x; accepted: path, policy"),
        ('[files]\ncarry = "$TMPDIR"', "files.carry = '$TMPDIR' is not accepted: a list; each a path that begins"),
        (
            '[files]\nrules = [{ paht = "/a", policy = "keep" }]',
            "unknown key files.rules[0].paht (did you mean path?); accepted: path, policy",
        ),
        (
            '[files]\ncarry = ["/"]',
            "files.carry: directory '/' is not accepted: it must be the job's own, not all of /",
        ),
        ('[files]\ncarry = ["~/"]', "files.carry: directory '~/' is not accepted: it must be the job's own, not all"),
        (
            '[schedule]\nmin_interval = "0s"',
            "schedule.min_interval = '0s' is not accepted: a number with units, as in 90s,"
            " 10m, 1h30m or 7d, or seconds, from 1s to 365d",
        ),
        (
            "[recover]\nhang_after = 1",
            "recover.hang_after = 1 is not accepted: a number with units, as in 90s, 10m, 1h30m"
            " or 7d, or seconds, from 10s to 30d",
        ),
        ('[files]\ncarry = ["tmp"]', "files.carry: directory 'tmp' is not accepted: a path that begins with"),
        ("[store", "not valid TOML: "),
        ("a = 1\na = 2", "not valid TOML: "),
    ],
)
def test_one_line_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


def test_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "slurmckpt.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8 text: invalid start byte at byte 0"):
        load(path)


def test_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('events = "crash"', 'recover.events = \'crash\' is not accepted: a list of "nodefail", "preempt", '),
        ('events = ["crash", "boredom"]', "recover.events = ['crash', 'boredom'] is not accepted: a list of"),
        ('events = [["crash"]]', "recover.events = [['crash']] is not accepted: a list of"),
        ("exit_codes = [0]", "recover.exit_codes = [0] is not accepted: a list of whole numbers from 1 to 255"),
        ("exit_codes = [true]", "recover.exit_codes = [True] is not accepted: a list of whole numbers from 1 to 255"),
        ("exit_codes = 137", "recover.exit_codes = 137 is not accepted: a list of whole numbers from 1 to 255"),
        ('hang_after = "5s"', "recover.hang_after = '5s' is not accepted: "),
    ],
)
def test_what_recover_does_not_take(tmp_path: Path, line: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        load(written(tmp_path, f"[recover]\n{line}\n"))


def test_nothing_may_be_recovered_from(tmp_path: Path) -> None:
    recover = load(written(tmp_path, "[recover]\nevents = []\nexit_codes = []\n")).recover
    assert (recover.events, recover.exit_codes) == (frozenset(), frozenset())
