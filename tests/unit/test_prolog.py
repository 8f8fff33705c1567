"""Prolog, epilog and EpilogSlurmctld: exit 0 on every path, cheap without checkpoints, bounded in time."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "SPANK__SLURM_SPANK_OPTION_slurmckpt_checkpoint_"
OPTIONS = ["interval", "dir", "keep", "recover", "model", "fresh", "pre", "post", "restored"]
SHELLS = [["dash"], ["bash", "--posix"]]
HOOKS = {"prolog": "prolog", "epilog": "epilog", "epilog-slurmctld": "requeue"}


@dataclass
class Node:
    """An installation below a directory of the test's own."""

    root: Path

    def python(self, text: str) -> None:
        """What stands in for the package's Python: a shell script, so that no test waits for a real one."""
        program = self.root / "venv/bin/python"
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)

    def run(
        self, script: str, env: dict[str, str] | None = None, shell: list[str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        command = [shutil.which((shell or ["dash"])[0]) or "dash", *(shell or ["dash"])[1:]]
        return subprocess.run(
            [*command, str(self.root / "usr/libexec/slurmckpt" / script)],
            env={"SLURM_JOB_ID": "42"} | (env or {}),  # and no PATH, as slurmd has it
            capture_output=True,
            text=True,
            timeout=60,
        )

    @property
    def calls(self) -> list[str]:
        path = self.root / "calls"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def log(self) -> list[str]:
        path = self.root / "log"
        return path.read_text().splitlines() if path.exists() else []


def install_hooks(*variables: str) -> None:
    subprocess.run(["make", "-s", "-C", str(ROOT), "install-hooks", *variables], check=True)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    install_hooks(f"PREFIX={tmp_path}/usr", f"VENV={tmp_path}/venv")
    (tmp_path / "run/42").mkdir(parents=True)
    # Paths that no Makefile variable names: only the tests put them elsewhere.
    for script in (tmp_path / "usr/libexec/slurmckpt").iterdir():
        text = script.read_text()
        for path, other in (
            ("/etc/slurmckpt/every-job", "every-job"),
            ("/run/slurmckpt", "run"),
            ("/var/log/slurmckpt.log", "log"),
        ):
            text = text.replace(path, str(tmp_path / other))
        script.write_text(text)
    result = Node(tmp_path)
    result.python(f'echo "$*" >>{tmp_path}/calls')
    return result


def asked(script: str) -> dict[str, str]:
    return {} if script == "epilog" else {PREFIX + "interval": "10m"}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("script", HOOKS)
def test_hands_over_to_its_hook(node: Node, script: str, shell: list[str]) -> None:
    done = node.run(script, asked(script), shell)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert node.calls == [f"-I -m slurmckpt.hooks.{HOOKS[script]}"]
    assert node.log == []


@pytest.mark.parametrize("script", ["prolog", "epilog-slurmctld"])
@pytest.mark.parametrize("option", OPTIONS)
def test_any_one_option_is_enough(node: Node, script: str, option: str) -> None:
    node.run(script, {PREFIX + option: "(null)"})
    assert len(node.calls) == 1


@pytest.mark.parametrize("script", ["prolog", "epilog-slurmctld"])
def test_the_plugin_has_no_option_that_the_hooks_do_not_know(script: str) -> None:
    table = (ROOT / "spank/options.c").read_text()
    names = re.findall(r'\{ \{ "checkpoint-([a-z]+)"', table)
    assert sorted(names) == sorted(OPTIONS)
    folder = "prolog" if script == "prolog" else "epilog"
    text = (ROOT / folder / script).read_text()
    assert sorted(set(re.findall(PREFIX + "([a-z]+)", text))) == sorted(names)


@pytest.mark.parametrize("script", HOOKS)
@pytest.mark.parametrize("shell", SHELLS)
def test_without_checkpoints_nothing_is_started(node: Node, script: str, shell: list[str]) -> None:
    (node.root / "run/42").rmdir()
    assert node.run(script, shell=shell).returncode == 0
    assert node.calls == []


@pytest.mark.parametrize("script", HOOKS)
def test_without_checkpoints_no_process_is_made(node: Node, script: str) -> None:
    strace, dash = shutil.which("strace"), shutil.which("dash")
    if not strace or not dash:
        pytest.skip("strace or dash is not installed")
    (node.root / "run/42").rmdir()
    trace = node.root / "trace"
    subprocess.run(
        [
            strace,
            "-f",
            "-e",
            "trace=process",
            "-o",
            str(trace),
            dash,
            str(node.root / "usr/libexec/slurmckpt" / script),
        ],
        env={"SLURM_JOB_ID": "42"},
        check=True,
    )
    assert len(re.findall(r"\bexecve\(", trace.read_text())) == 1
    assert not re.search(r"\b(v?fork|clone3?)\(", trace.read_text())


@pytest.mark.parametrize("script", ["prolog", "epilog-slurmctld"])
def test_every_job(node: Node, script: str) -> None:
    (node.root / "every-job").touch()
    node.run(script)
    assert len(node.calls) == 1
    node.run(script, {PREFIX + "interval": "off"})
    assert len(node.calls) == 1


@pytest.mark.parametrize("script", ["prolog", "epilog-slurmctld"])
@pytest.mark.parametrize("value", ["-n", "=", "( -e", "$(touch {root}/owned)", "`touch {root}/owned`", "a\nb", "* ;!"])
def test_hostile_values_are_only_text(node: Node, script: str, value: str) -> None:
    text = value.replace("{root}", str(node.root))
    done = node.run(script, {PREFIX + "interval": text, PREFIX + "dir": text})
    assert (done.returncode, done.stderr) == (0, "")
    assert len(node.calls) == 1
    assert not (node.root / "owned").exists()


@pytest.mark.parametrize("job", ["", "x", "4 2", "../../etc", "-1", "42\n43"])
@pytest.mark.parametrize("script", ["prolog", "epilog-slurmctld"])
def test_a_job_id_is_a_number(node: Node, script: str, job: str) -> None:
    assert node.run(script, asked(script) | {"SLURM_JOB_ID": job}).returncode == 0
    assert node.calls == []
    (line,) = node.log
    assert line.endswith(f"slurmckpt {HOOKS[script]}: job unknown: SLURM_JOB_ID is not a number")


@pytest.mark.parametrize(("job", "logged"), [("", 0), (".", 1), ("../run/42", 1)])
def test_the_epilog_needs_one_too(node: Node, job: str, logged: int) -> None:
    """Without an id it is silent: the directory of all jobs is not a job's."""
    assert node.run("epilog", {"SLURM_JOB_ID": job}).returncode == 0
    assert node.calls == []
    assert len(node.log) == logged


STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4} "


@pytest.mark.parametrize("script", HOOKS)
@pytest.mark.parametrize(
    ("python", "says"),
    [
        ("exit 1", "failed with status 1; "),
        ("exit 124", "no answer within 8 seconds; ended"),
        ("kill -SEGV $$", "failed with status 139; "),
        ("kill -KILL $$", "killed: out of memory, or no answer within 8 seconds"),
        ("echo noise; echo noise >&2; exit 3", "failed with status 3; "),
    ],
)
def test_a_failing_python_is_one_line_in_the_log(node: Node, script: str, python: str, says: str) -> None:
    node.python(python)
    done = node.run(script, asked(script))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (line,) = node.log
    assert re.match(STAMP + re.escape(f"slurmckpt {HOOKS[script]}: job 42: {says}"), line), line


@pytest.mark.parametrize("script", HOOKS)
def test_a_missing_python(node: Node, script: str) -> None:
    (node.root / "venv/bin/python").unlink()
    assert node.run(script, asked(script)).returncode == 0
    (line,) = node.log
    assert line.endswith(f"no checkpoints: {node.root}/venv/bin/python is not there or not executable")


@pytest.mark.parametrize("script", HOOKS)
def test_a_broken_interpreter(node: Node, script: str) -> None:
    (node.root / "venv/bin/python").write_text("#!/nowhere/python3\n")
    assert node.run(script, asked(script)).returncode == 0
    assert len(node.log) == 1


@pytest.mark.parametrize("script", HOOKS)
def test_a_missing_hand_over(node: Node, script: str) -> None:
    (node.root / "usr/libexec/slurmckpt/hand-over").unlink()
    done = node.run(script, asked(script))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("script", HOOKS)
def test_a_log_that_cannot_be_written(node: Node, script: str) -> None:
    (node.root / "log").mkdir()
    node.python("exit 1")
    done = node.run(script, asked(script))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deaf", "says"),
    [
        ("", "no answer within 2 seconds; ended"),
        ("trap '' TERM;", "killed: out of memory, or no answer within 2 seconds"),
    ],
)
def test_a_hanging_python_is_ended(node: Node, deaf: str, says: str) -> None:
    # A descriptor of the hook's held open by what it leaves behind must not hold the prolog either.
    node.python(
        f"{deaf} /usr/bin/setsid /bin/sleep 60 & echo $! >{node.root}/left; {deaf} while :; do /bin/sleep 1; done"
    )
    prolog = node.root / "usr/libexec/slurmckpt/prolog"
    text = prolog.read_text()
    assert '" prolog 8 <' in text
    prolog.write_text(text.replace('" prolog 8 <', '" prolog 2 <'))
    before = time.monotonic()
    try:
        done = node.run("prolog", asked("prolog"))
        # Not for as long as what it has left behind, which holds its descriptors.
        assert time.monotonic() - before < 50
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        (line,) = node.log
        assert line.endswith(says)
    finally:
        subprocess.run(["kill", "-KILL", (node.root / "left").read_text().strip()], check=False)


def test_install_writes_the_paths(tmp_path: Path) -> None:
    install_hooks(f"DESTDIR={tmp_path}", "PREFIX=/opt/p", "VENV=/opt/v")
    folder = tmp_path / "opt/p/libexec/slurmckpt"
    assert sorted(path.name for path in folder.iterdir()) == ["epilog", "epilog-slurmctld", "hand-over", "prolog"]
    for path in folder.iterdir():
        assert path.stat().st_mode & 0o777 == 0o755
        expected = "VENV=/opt/v" if path.name == "hand-over" else "LIBEXEC=/opt/p/libexec/slurmckpt"
        assert expected in path.read_text().splitlines()


@pytest.mark.parametrize("leads", ["somewhere", "nowhere"])
def test_the_epilog_follows_the_link_of_a_run_directory_elsewhere(node: Node, leads: str) -> None:
    """paths.run of slurmckpt.toml: the shell script cannot read that."""
    (node.root / "run/42").rmdir()
    assert node.run("epilog").returncode == 0 and node.calls == []
    (node.root / "run/42").symlink_to(node.root if leads == "somewhere" else node.root / "nowhere")
    assert node.run("epilog").returncode == 0
    assert node.calls == ["-I -m slurmckpt.hooks.epilog"]


@pytest.mark.parametrize("spelled", ["{root}", "{root}/", "{root}/opt/..", "{relative}"])
def test_installing_into_another_root_leaves_no_trace_of_it(tmp_path: Path, spelled: str) -> None:
    """pip writes the path of its Python into the first line of what it installs, venv writes it into its own files."""
    there = tmp_path / "root"
    program = there / "opt/venv/bin/python"
    program.parent.mkdir(parents=True)
    (there / "opt/venv/pyvenv.cfg").write_text(f"command = /usr/bin/python3 -m venv {there}/opt/venv\n")
    script = there / "opt/venv/bin/slurmckpt"
    # Stands in for pip: what a real one does to the first line of a script.
    program.write_text(
        f"""#!/bin/sh
printf '#!%s\\nprint(1)\\n' "$0" >"${{0%/*}}/slurmckpt"
echo "$*" >{tmp_path}/calls
"""
    )
    program.chmod(0o755)
    destdir = spelled.format(root=there, relative=os.path.relpath(there, ROOT))
    command = ["make", "-s", "-C", str(ROOT), "install-package", f"DESTDIR={destdir}", "VENV=/opt/venv"]
    subprocess.run(command, check=True)
    assert script.read_text() == "#!/opt/venv/bin/python\nprint(1)\n"
    assert (there / "opt/venv/pyvenv.cfg").read_text() == "command = /usr/bin/python3 -m venv /opt/venv\n"
    assert (tmp_path / "calls").read_text().split()[:3] == ["-m", "pip", "install"]
    subprocess.run(["make", "-s", "-C", str(ROOT), "install-package", f"VENV={there}/opt/venv"], check=True)
    assert script.read_text() == f"#!{program}\nprint(1)\n"
