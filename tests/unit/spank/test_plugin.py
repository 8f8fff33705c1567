"""The plugin in each SPANK context, loaded by a double of Slurm."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.unit.spank.plugged import lines, run

ROOT = Path(__file__).resolve().parents[3]
OPTIONS = ["interval", "dir", "keep", "recover", "model", "fresh", "pre", "post", "restored"]


# The file itself


def test_exports_what_slurm_calls_and_nothing_else(plugin: Path) -> None:
    table = subprocess.run(["nm", "-D", "--defined-only", str(plugin)], capture_output=True, text=True, check=True)
    assert {line.split()[-1] for line in table.stdout.splitlines()} == {
        "plugin_name",
        "plugin_type",
        "plugin_version",
        "spank_plugin_version",
        "slurm_spank_init",
        "slurm_spank_init_post_opt",
        "slurm_spank_task_init_privileged",
        "slurm_spank_task_init",
    }


def test_links_libc_only(plugin: Path) -> None:
    dynamic = subprocess.run(["readelf", "-d", str(plugin)], capture_output=True, text=True, check=True).stdout
    assert re.findall(r"NEEDED.*\[(.*)\]", dynamic) == ["libc.so.6"]


def test_prepend_is_a_weak_reference(plugin: Path) -> None:
    table = subprocess.run(["nm", "-D", "--undefined-only", str(plugin)], capture_output=True, text=True, check=True)
    assert " w spank_prepend_task_argv" in table.stdout


def test_missing_headers_are_one_line(tmp_path: Path) -> None:
    if Path("/usr/include/slurm/spank.h").exists():
        pytest.skip("Slurm's headers are installed")
    done = subprocess.run(
        ["make", "-C", str(ROOT / "spank"), f"BUILD={tmp_path}", "SLURM_CFLAGS=-I/nowhere"],
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert [line for line in done.stderr.splitlines() if "slurm/spank.h not found" in line] == [done.stderr.strip()]


def test_install_respects_destdir_and_prefix(build: Path, plugin: Path, tmp_path: Path) -> None:
    double = ROOT / "tests/unit/spank/double"
    command = ["make", "-s", "-C", str(ROOT / "spank"), "install", f"BUILD={build}", f"SLURM_CFLAGS=-I{double}"]
    subprocess.run([*command, f"DESTDIR={tmp_path}", "PREFIX=/opt/x"], check=True)
    assert (tmp_path / "opt/x/lib/slurmckpt/slurmckpt.so").read_bytes() == plugin.read_bytes()


# Options


@pytest.mark.parametrize("context", ["local", "allocator", "remote", "slurmd", "script"])
def test_every_context_registers_every_option(host: Path, plugin: Path, context: str) -> None:
    registered = lines(run(host, plugin, context, "step=0", "job=1", "arg=run=/nonexistent"), "registered")
    assert [entry.split("|")[0] for entry in registered] == [f"checkpoint-{name}" for name in OPTIONS]


def test_help_stays_in_slurms_columns(host: Path, plugin: Path) -> None:
    for entry in lines(run(host, plugin, "allocator"), "registered"):
        name, argument, has_argument, usage = entry.split("|")
        shown = f"      --{name}" + (f"={argument}" if argument else "")
        assert len(shown) < 30, shown  # spank_print_options(stdout, 6, 30)
        assert bool(argument) == (has_argument == "1")
        assert usage and usage[0].islower() and not usage.endswith(".")


@pytest.mark.parametrize("context", ["local", "allocator"])
@pytest.mark.parametrize(
    ("option", "value", "accepted"),
    [
        ("interval", "10x", "90s"),
        ("dir", "here", "absolute"),
        ("keep", "0", "1 to 1000"),
        ("recover", "sometimes", "nodefail"),
        ("model", "a b", "255"),
    ],
)
def test_a_wrong_value_stops_the_submission_with_one_line(
    host: Path, plugin: Path, context: str, option: str, value: str, accepted: str
) -> None:
    done = run(host, plugin, context, f"opt=checkpoint-{option}={value}")
    assert lines(done, "option") == [f"checkpoint-{option} -1"]
    (line,) = lines(done, "error")
    assert line.startswith(f"--checkpoint-{option}={value} is not accepted; accepted: ")
    assert accepted in line


def test_a_hostile_value_stays_on_one_line(host: Path, plugin: Path) -> None:
    done = run(host, plugin, "allocator", "opt=checkpoint-model=a\nb\x1b[31m" + "x" * 500)
    (line,) = lines(done, "error")
    assert line.startswith("--checkpoint-model=a?b?[31mxxx")
    assert len(line) < 300


def test_a_wrong_value_never_fails_on_the_node(host: Path, plugin: Path, tmp_path: Path) -> None:
    words = [f"opt=checkpoint-{name}=\n" for name in OPTIONS]
    done = run(host, plugin, "remote", "job=1", "step=0", f"arg=run={tmp_path}", *words, "--", "/bin/true")
    assert lines(done, "option") == [f"checkpoint-{name} 0" for name in OPTIONS]
    assert lines(done, "slurm_spank_task_init") == ["0"]


@pytest.mark.parametrize("value", [None, "", "(null)"])
def test_the_flag_ignores_what_slurm_passes_as_its_value(host: Path, plugin: Path, value: str | None) -> None:
    """Slurm itself puts "(null)" into the job's environment and an empty string into the step's."""
    word = "opt=checkpoint-fresh" + ("" if value is None else f"={value}")
    assert lines(run(host, plugin, "local", word), "option") == ["checkpoint-fresh 0"]


# srun inside a job


def job_environment(**values: str) -> dict[str, str]:
    prefix = "SLURM_SPANK__SLURM_SPANK_OPTION_slurmckpt_checkpoint_"
    return {"SLURM_JOB_ID": "7"} | {prefix + name: value for name, value in values.items()}


def test_srun_names_options_without_effect_on_a_step(host: Path, plugin: Path) -> None:
    words = ["opt=checkpoint-interval=10m", "opt=checkpoint-interval=5m", "opt=checkpoint-keep=3"]
    done = run(host, plugin, "local", *words, env=job_environment(interval="10m"))
    (line,) = lines(done, "info")
    assert line.startswith("slurmckpt: --checkpoint-interval, --checkpoint-keep: ")


@pytest.mark.parametrize(
    ("words", "env"),
    [
        (["opt=checkpoint-interval=10m"], job_environment(interval="10m")),
        (["opt=checkpoint-interval=10m", "opt=checkpoint-interval=off"], job_environment(interval="10m")),
        (["opt=checkpoint-interval=5m", "opt=checkpoint-interval=10m"], job_environment(interval="10m")),
        (["opt=checkpoint-fresh=(null)"], job_environment(fresh="(null)")),
        (["opt=checkpoint-interval=off"], {}),
        ([], {}),
    ],
)
def test_srun_is_silent_otherwise(host: Path, plugin: Path, words: list[str], env: dict[str, str]) -> None:
    assert lines(run(host, plugin, "local", *words, env=env), "info") == []


# What is said at the submission

INTERVAL = "opt=checkpoint-interval=10m"
NO_REQUEUE = "slurmckpt: Slurm will not requeue this job (--no-requeue): its checkpoints will not bring it back "


def submit(host: Path, plugin: Path, name: str, *words: str, **env: str) -> list[str]:
    """What the plugin says in an allocator of this name."""
    program = host.with_name(name)
    if not program.exists():
        program.symlink_to(host)
    return lines(run(program, plugin, "allocator", *words, env=env), "info")


@pytest.mark.parametrize(
    ("words", "env"),
    [
        (["optind=9", "--no-requeue"], {}),
        (["optind=9", "--requeue", "--no-requeue"], {}),
        ([], {"SBATCH_NO_REQUEUE": "1"}),
        (["optind=9", "--no-requeue"], {"SBATCH_REQUEUE": "1"}),
    ],
)
def test_a_job_that_is_not_requeued_is_told_so(host: Path, plugin: Path, words: list[str], env: dict[str, str]) -> None:
    (line,) = submit(host, plugin, "sbatch", INTERVAL, *words, **env)
    assert line.startswith(NO_REQUEUE)


@pytest.mark.parametrize(
    ("words", "env"),
    [
        ([], {}),
        (["optind=9", "--no-requeue", "--requeue"], {}),
        (["optind=9", "--no-requeue", "--requeue=expedite"], {}),
        (["optind=9", "--requeue"], {"SBATCH_NO_REQUEUE": "1"}),
        ([], {"SBATCH_NO_REQUEUE": "1", "SBATCH_REQUEUE": "1"}),
        # What stands behind the script's name is the script's.
        (["optind=5", "--no-requeue"], {}),
    ],
)
def test_a_job_that_is_requeued_is_told_nothing(
    host: Path, plugin: Path, words: list[str], env: dict[str, str]
) -> None:
    assert submit(host, plugin, "sbatch", INTERVAL, *words, **env) == []


def test_a_heterogeneous_job_is_told_once(host: Path, plugin: Path) -> None:
    assert submit(host, plugin, "sbatch", INTERVAL, "components=3") == [
        "slurmckpt: no checkpoints for this job: heterogeneous jobs are not supported yet"
    ]


ONLY_BATCH = "slurmckpt: no checkpoints for this job: only batch jobs (sbatch) can be requeued and restored"


def test_salloc_says_it_once(host: Path, plugin: Path) -> None:
    assert submit(host, plugin, "salloc", INTERVAL, "components=2") == [ONLY_BATCH]


def test_srun_says_it_for_a_job_of_its_own(host: Path, plugin: Path) -> None:
    assert lines(run(host, plugin, "local", INTERVAL, "components=2"), "info") == [ONLY_BATCH]


@pytest.mark.parametrize("words", [[], ["opt=checkpoint-interval=off"]])
@pytest.mark.parametrize("name", ["sbatch", "salloc"])
def test_who_asks_for_nothing_is_told_nothing(host: Path, plugin: Path, name: str, words: list[str]) -> None:
    assert submit(host, plugin, name, *words, "components=2", SBATCH_NO_REQUEUE="1") == []


# Arguments in plugstack.conf


@pytest.mark.parametrize("argument", ["colour=blue", "run=relative", "run=/" + "x" * 200, "libexec=", "runs=/x", "run"])
def test_slurmd_names_a_wrong_argument_once(host: Path, plugin: Path, argument: str) -> None:
    (line,) = lines(run(host, plugin, "slurmd", "arg=run=/run/x", f"arg={argument}"), "error")
    assert f"'{argument}'" in line


@pytest.mark.parametrize("context", ["local", "allocator", "remote"])
def test_users_are_not_bothered_with_it(host: Path, plugin: Path, context: str) -> None:
    done = run(host, plugin, context, "arg=colour=blue", "job=4294967295", "--", "/bin/true")
    assert lines(done, "error") == []
    assert done.stderr == ""
