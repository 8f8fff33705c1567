"""Where a process is in the cgroup hierarchies, from /proc trees as kernels write them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurmckpt.coordinator.cgroups import procs_files
from tests.unit.coordinator.parts import proc_tree


def place(tmp_path: Path, mountinfo: str, cgroup: str, groups: list[str]) -> list[str]:
    """procs_files() in a tree where `groups` exist below tmp_path; CG in the texts stands for tmp_path."""
    for group in groups:
        (tmp_path / group).mkdir(parents=True, exist_ok=True)
        (tmp_path / group / "cgroup.procs").touch()
    proc = proc_tree(
        tmp_path / "proc",
        {"self/mountinfo": mountinfo.replace("CG", str(tmp_path)), "42/cgroup": cgroup},
    )
    return [str(path.relative_to(tmp_path)) for path in procs_files(42, proc)]


V2 = "30 23 0:26 / CG/unified rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = """\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
31 23 0:27 / CG/cpu,cpuacct rw shared:5 - cgroup cgroup rw,cpu,cpuacct
32 23 0:28 / CG/memory rw shared:6 - cgroup cgroup rw,memory
33 23 0:29 / CG/freezer rw shared:7 - cgroup cgroup rw,freezer
34 23 0:30 / CG/systemd rw shared:8 - cgroup cgroup rw,xattr,name=systemd
"""
JOB = "system.slice/slurmstepd.scope/job_7/step_0/user/task_0"


def test_v2(tmp_path: Path) -> None:
    assert place(tmp_path, V2, f"0::/{JOB}\n", [f"unified/{JOB}"]) == [f"unified/{JOB}/cgroup.procs"]


def test_v1_each_controller_in_its_own_hierarchy(tmp_path: Path) -> None:
    cgroup = "4:memory:/slurm/uid_1/job_7\n3:cpu,cpuacct:/slurm/job_7\n2:freezer:/slurm\n1:name=systemd:/system.slice\n"
    groups = ["memory/slurm/uid_1/job_7", "cpu,cpuacct/slurm/job_7", "freezer/slurm", "systemd/system.slice"]
    assert place(tmp_path, V1, cgroup, groups) == [f"{group}/cgroup.procs" for group in groups]


def test_hybrid(tmp_path: Path) -> None:
    found = place(tmp_path, V1 + V2, "1:name=systemd:/a\n0::/b\n", ["systemd/a", "unified/b", "unified/a"])
    assert found == ["systemd/a/cgroup.procs", "unified/b/cgroup.procs"]


def test_a_hierarchy_that_is_not_mounted_is_left_out(tmp_path: Path) -> None:
    assert place(tmp_path, V1, "5:pids:/a\n4:memory:/m\n", ["memory/m"]) == ["memory/m/cgroup.procs"]


def test_a_controller_is_not_taken_for_another_whose_name_begins_alike(tmp_path: Path) -> None:
    assert place(tmp_path, V1, "5:cpu:/a\n6:mem:/m\n", ["cpu,cpuacct/a", "memory/m"]) == ["cpu,cpuacct/a/cgroup.procs"]


def test_a_mount_of_a_part_of_the_hierarchy(tmp_path: Path) -> None:
    """A container sees its own part at the mount point; what is not below that part is not reachable."""
    mountinfo = "30 23 0:26 /docker/abc CG/cg rw - cgroup2 cgroup rw\n"
    assert place(tmp_path, mountinfo, "0::/docker/abc/job_7\n", ["cg/job_7"]) == ["cg/job_7/cgroup.procs"]
    assert place(tmp_path, mountinfo, "0::/docker/abc\n", ["cg"]) == ["cg/cgroup.procs"]
    assert place(tmp_path, mountinfo, "0::/docker/abcd\n", ["cg/d", "cgd"]) == []


def test_outside_of_our_cgroup_namespace(tmp_path: Path) -> None:
    assert place(tmp_path, V2, "0::/../other\n", ["unified", "other"]) == []


def test_the_second_mount_counts_where_the_first_does_not_show_the_group(tmp_path: Path) -> None:
    mountinfo = "30 23 0:26 / CG/a rw - cgroup2 cgroup rw\n31 23 0:26 / CG/b rw - cgroup2 cgroup rw\n"
    assert place(tmp_path, mountinfo, "0::/job\n", ["a", "b/job"]) == ["b/job/cgroup.procs"]


def test_octal_escapes(tmp_path: Path) -> None:
    mountinfo = r"30 23 0:26 /a\040b CG/with\040space\134 rw - cgroup2 cgroup rw" + "\n"
    assert place(tmp_path, mountinfo, "0::/a b/job\n", ["with space\\/job"]) == ["with space\\/job/cgroup.procs"]


def test_a_colon_in_the_name(tmp_path: Path) -> None:
    assert place(tmp_path, V2, "0::/a:b/c\n", ["unified/a:b/c"]) == ["unified/a:b/c/cgroup.procs"]


def test_a_removed_group_is_left_out(tmp_path: Path) -> None:
    assert place(tmp_path, V2, "0::/job_7 (deleted)\n", ["unified"]) == []


def test_this_very_process() -> None:
    for path in procs_files(os.getpid()):
        assert path.name == "cgroup.procs" and path.exists()


def test_a_process_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        procs_files(43, proc_tree(tmp_path, {"self/mountinfo": ""}))
