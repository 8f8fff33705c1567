"""The backend that every Slurm has: `scontrol ... --json` to read, `scontrol update` to write.

The shapes of --json differ between Slurm's data_parser versions; what is read here has kept its name since 21.08, and
values are taken bare or wrapped ({"set": .., "infinite": .., "number": ..}), lists as lists or as text.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import NoReturn

from slurmckpt.errors import NoSuchJobError, SlurmError
from slurmckpt.slurm.port import JobInfo, JobLine, NodeInfo, PartitionInfo

# prolog, epilog and EpilogSlurmctld run without any PATH
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SETTING = re.compile(r"([\w\[\]/]+)\s*= ?(.*)", re.ASCII)
_WORD = re.compile(r"(?:^|\s)(\w+)=(\S*)", re.ASCII)
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)", re.ASCII)


class Scontrol:
    """SlurmPort over the scontrol command. Stateless: no cache, no connection kept."""

    def __init__(self, program: str = "scontrol", timeout: float = 15.0) -> None:
        """program: path, or a name that is looked up in PATH. timeout: seconds that one command may take."""
        self.program = program
        self._timeout = timeout

    async def job(self, job_id: int) -> JobInfo:
        """The job with this raw id; NoSuchJobError when there is none."""
        answer = await self._show("job", str(job_id))
        for record in _records(answer, "jobs"):
            if _number(record.get("job_id")) == job_id:
                return await self._job(record)
        return await self._nothing_said_of(job_id)

    async def array(self, array_id: int) -> list[JobInfo]:
        """All jobs with this number: the tasks of that array that stand for themselves, or the one job with this id."""
        records = _records(await self._show("job", str(array_id)), "jobs")
        found = [
            await self._job(record)
            for record in records
            if array_id in (_number(record.get("job_id")), _number(record.get("array_job_id")))
        ]
        if not found:
            await self._nothing_said_of(array_id)
        return sorted(found, key=lambda job: (job.array_task if job.array_task is not None else -1, job.job_id))

    async def _nothing_said_of(self, job_id: int) -> NoReturn:
        """Raises NoSuchJobError, or SlurmError when that is not known.

        With --json an unknown job and a slurmctld that cannot be reached look the same: no jobs, no errors, exit status
        0 (seen with 26.05.5). Without it they have the messages of slurm_errno.c.
        """
        try:
            await self._run("show", "job", str(job_id))
        except SlurmError as error:
            if "Invalid job id" in str(error):
                raise NoSuchJobError(f"Slurm knows no job {job_id}") from error
            raise
        raise SlurmError(f"scontrol did not say anything of job {job_id}")

    async def job_lines(self) -> list[JobLine]:
        """All jobs that the controller knows. By squeue: the JSON of a hundred thousand jobs is half a gigabyte."""
        squeue = os.path.join(os.path.dirname(self.program), "squeue")
        # The name comes last: it is the user's text, and may hold what looks like another field.
        text = await self._run(
            "--noheader", "--all", "--array", "--states=all", "--format=%A|%F|%K|%T|%j", program=squeue
        )
        return [line for line in map(_job_line, text.splitlines()) if line is not None]

    async def partitions(self) -> list[PartitionInfo]:
        """All partitions. As text: the JSON of 26.05 and older has neither preempt mode nor grace time."""
        found = [
            dict(_WORD.findall(line)) for line in (await self._run("show", "partition", "--oneliner")).splitlines()
        ]
        return [
            PartitionInfo(words["PartitionName"], words.get("PreemptMode", ""), _whole(words.get("GraceTime", "")))
            for words in found
            if "PartitionName" in words
        ]

    async def node(self, name: str) -> NodeInfo:
        """The node with this NodeName; SlurmError when there is none."""
        answer = await self._show("node", _checked("node name", name))
        for record in _records(answer, "nodes"):
            if record.get("name") == name:
                return _node(record)
        raise SlurmError(f"Slurm knows no node {name}")

    async def nodes(self) -> list[NodeInfo]:
        """All nodes of the cluster."""
        return [_node(record) for record in _records(await self._show("node"), "nodes")]

    async def set_job_features(self, job_id: int, text: str, prefer: str | None = None) -> None:
        """Replace the constraint of a pending job ("" removes it), and its preference when one is given."""
        fields = [f"Features={_checked('constraint', text)}"]
        if prefer is not None:
            fields.append(f"Prefer={_checked('preference', prefer)}")
        await self._update_job(job_id, fields)

    async def set_admin_comment(self, job_id: int, text: str) -> None:
        """Replace the job's AdminComment. Only root and SlurmUser may."""
        await self._update_job(job_id, [f"AdminComment={_checked('AdminComment', text)}"])

    async def requeue(self, job_id: int) -> None:
        """End the job here and queue it again under its id. SlurmError when Slurm does not allow it."""
        # As with an update: the raw id of an array's last task would requeue the whole array.
        await self._run("requeue", (await self.job(job_id)).address)

    async def grace_time(self, partition: str) -> float:
        """Seconds that a preempted job of this partition has left; a QOS can give it another time."""
        answer = await self._show("partition", _checked("partition", partition))
        for record in _records(answer, "partitions"):
            if record.get("name") == partition:
                return float(_number(record.get("grace_time")))
        raise SlurmError(f"Slurm knows no partition {partition}")

    async def set_node_features(self, name: str, available: Sequence[str], active: Sequence[str]) -> None:
        """Replace the node's features. `active` must be a subset of `available`. Only root and SlurmUser may."""
        await self._run(
            "update",
            f"NodeName={_checked('node name', name)}",
            f"AvailableFeatures={_checked('features', ','.join(available))}",
            f"ActiveFeatures={_checked('features', ','.join(active))}",
        )

    async def version(self) -> tuple[int, int, int]:
        """The version of the cluster's controller, as (26, 5, 5)."""
        text = (await self.config()).get("SLURM_VERSION", "")
        match = _VERSION.match(text)
        if match is None:
            raise SlurmError(f"Slurm's controller gives no version that can be read: SLURM_VERSION = {text[:80]!r}")
        return int(match[1]), int(match[2]), int(match[3])

    async def config(self) -> dict[str, str]:
        """The controller's configuration as `scontrol show config` prints it; "(null)" is given as ""."""
        settings: dict[str, str] = {}
        for line in (await self._run("show", "config")).splitlines():
            match = _SETTING.fullmatch(line.rstrip())
            if match:
                # cgroup.conf and others follow slurm.conf in the same list
                settings.setdefault(match[1], "" if match[2] == "(null)" else match[2])
        return settings

    async def _job(self, record: Mapping[str, object]) -> JobInfo:
        return JobInfo(
            job_id=_number(record.get("job_id")),
            address=_address(record),
            state=_words(record.get("job_state")),
            user_id=_number(record.get("user_id")),
            features=_text(record.get("features")),
            prefer=_text(record.get("prefer")),
            nodes=await self._hostnames(_text(record.get("nodes"))),
            node_count=_number(record.get("node_count")),
            partition=_text(record.get("partition")),
            restart_count=_number(record.get("restart_cnt")),
            admin_comment=_text(record.get("admin_comment")),
            requeue=bool(_number(record.get("requeue"))),
            name=_text(record.get("name")),
            array_id=_number(record.get("array_job_id")),
            array_task=_array_task(record),
            het_id=_number(record.get("het_job_id")),
            batch=bool(_number(record.get("batch_flag", 1))),
            expedite="EXPEDITED_REQUEUE" in _words(record.get("flags")),
            start_time=_number(record.get("start_time")),
            end_time=_number(record.get("end_time")),
            preempt_time=_number(record.get("preempt_time")),
            time_limit=_number(record.get("time_limit")) or None,
        )

    async def _hostnames(self, expression: str) -> tuple[str, ...]:
        """The names in a host list such as `n[1-3,7],login`; Slurm itself expands it."""
        if "[" not in expression and "," not in expression:
            return (expression,) if expression else ()
        return tuple((await self._run("show", "hostnames", _checked("host list", expression))).split())

    async def _update_job(self, job_id: int, fields: Sequence[str]) -> None:
        # With the raw id of an array's last task, an update would reach the whole array.
        address = (await self.job(job_id)).address
        await self._run("update", f"JobId={address}", *fields)

    async def _show(self, *words: str) -> Mapping[str, object]:
        text = await self._run("show", *words, "--json")
        try:
            answer = json.loads(text)
        except ValueError as error:
            raise SlurmError(f"scontrol show {' '.join(words)} --json gave no JSON: {error}") from error
        if not isinstance(answer, dict):
            raise SlurmError(f"scontrol show {' '.join(words)} --json gave JSON that is not an object")
        return answer

    async def _run(self, *arguments: str, program: str = "") -> str:
        """The standard output of scontrol, or of another program; SlurmError with its own message when it fails."""
        program = program or self.program
        what = f"{os.path.basename(program)} {' '.join(arguments[:2])}"
        try:
            process = await asyncio.create_subprocess_exec(
                program,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment(),
            )
        except OSError as error:
            raise SlurmError(f"{program} cannot be run: {error.strerror}") from error
        try:
            output, errors = await asyncio.wait_for(process.communicate(), self._timeout)
        except asyncio.TimeoutError:
            raise SlurmError(f"{what} did not answer within {self._timeout:g} s") from None
        finally:
            # also when this task is cancelled
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode != 0:
            said = (errors or output).decode("utf-8", "replace").strip().splitlines()
            raise SlurmError(f"{what}: {said[0] if said else f'exit status {process.returncode}'}")
        return output.decode("utf-8", "replace")


def environment() -> dict[str, str]:
    """What Slurm's commands are run with: PATH, SLURM_CONF and a language that we can read, nothing else of ours."""
    own = os.environ.get("PATH")
    environment = {"PATH": f"{own}:{_SYSTEM_PATH}" if own else _SYSTEM_PATH, "LC_ALL": "C.UTF-8"}
    if "SLURM_CONF" in os.environ:
        environment["SLURM_CONF"] = os.environ["SLURM_CONF"]
    return environment


def _checked(what: str, text: str) -> str:
    """`text`, when it can be one argument of a command."""
    if "\0" in text:
        raise SlurmError(f"{what} {text[:80]!r} cannot be handed to scontrol: it holds a NUL")
    return text


def _records(answer: Mapping[str, object], key: str) -> list[Mapping[str, object]]:
    found = answer.get(key)
    if isinstance(found, list):
        return [record for record in found if isinstance(record, dict)]
    raise SlurmError(f"scontrol's JSON has no list '{key}'")


def _node(record: Mapping[str, object]) -> NodeInfo:
    features = _list(record.get("features"))
    return NodeInfo(
        name=_text(record.get("name")),
        hostname=_text(record.get("hostname")),
        state=_words(record.get("state")) | _words(record.get("state_flags")),
        features=features,
        active_features=_list(record.get("active_features")),
        partitions=frozenset(_list(record.get("partitions"))),
    )


def _address(record: Mapping[str, object]) -> str:
    if (task := _array_task(record)) is not None:
        return f"{_number(record.get('array_job_id'))}_{task}"
    if component := _number(record.get("het_job_id")):
        return f"{component}+{_number(record.get('het_job_offset'))}"
    return str(_number(record.get("job_id")))


def _array_task(record: Mapping[str, object]) -> int | None:
    """The task's number in its array; None for a job that is no task, or stands for all tasks that still wait."""
    task = record.get("array_task_id")
    return _number(task) if _number(record.get("array_job_id")) and _is_set(task) else None


def _job_line(line: str) -> JobLine | None:
    fields = line.split("|", 4)
    if len(fields) != 5 or not (fields[0].isascii() and fields[0].isdigit()):
        return None
    job_id, array, task, state, name = fields
    return JobLine(int(job_id), f"{array}_{task}" if task.isdigit() else "", state.strip().upper(), name)


def _is_set(value: object) -> bool:
    if isinstance(value, dict):
        return bool(value.get("set")) and not value.get("infinite")
    return value is not None


def _number(value: object) -> int:
    """A number, bare or wrapped; 0 when it is unset or no number."""
    if isinstance(value, dict):
        value = value.get("number") if _is_set(value) else 0
    return int(value) if isinstance(value, (int, float)) else 0


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _list(value: object) -> tuple[str, ...]:
    """A list of words, as a list or as text with commas."""
    if isinstance(value, str):
        return tuple(word for word in value.split(",") if word)
    return tuple(word for word in value if isinstance(word, str)) if isinstance(value, list) else ()


def _words(value: object) -> frozenset[str]:
    """A set of states, as a list or as text with plus signs; upper case."""
    words = value.split("+") if isinstance(value, str) else _list(value)
    return frozenset(word.strip().upper() for word in words if word.strip())
