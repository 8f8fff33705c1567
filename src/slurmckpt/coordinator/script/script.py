"""The batch script of this incarnation and all the sruns that it has started."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurmckpt.coordinator.cgroups import procs_files
from slurmckpt.coordinator.payload import Payload
from slurmckpt.coordinator.script import environment, nodelist
from slurmckpt.coordinator.script.find import find_srun
from slurmckpt.coordinator.script.launch import Launch, LaunchError, Pipes, Surroundings, modes_of
from slurmckpt.coordinator.script.marks import Marks
from slurmckpt.units import format_bytes

log = logging.getLogger(__name__)

_END_SECONDS = 10
_MAX_HELD = 128 * 2**20  # some ten thousand sruns at once; this memory is root's, not the job's
STAND_IN = "srun"
POD_DIRECTORY = "pod"


@dataclass
class Script:
    """surroundings: of its sruns. then, now: SLURM_* as they were when the script began, and as they are now.

    marks: for their steps. arriving: stand-ins that have not got their pipes yet. numbered: how many sruns there have
    been, over all incarnations in which the script goes on. former: names of nodes on which it was before.
    """

    surroundings: Surroundings
    stand_in: Path
    directory: Path
    target: Path
    then: dict[bytes, bytes]
    now: dict[bytes, bytes]
    marks: Marks
    launches: dict[int, Launch] = field(default_factory=dict)
    arriving: int = 0
    numbered: int = 0
    former: frozenset[bytes] = frozenset()

    @property
    def binds(self) -> list[tuple[Path, Path]]:
        """What pod init mounts where, in order: the directory of the real srun, that srun, and the stand-in over it."""
        program = self.surroundings.program
        return [(self.directory, self.target), (program, self.target / STAND_IN), (self.stand_in, program)]

    @property
    def coming(self) -> tuple[int, int]:
        """How many sruns there have been, and how many of them are just coming: what holds them may be met."""
        return self.numbered, self.arriving

    async def launch(self, payload: Payload, descriptors: Sequence[int], stand_in: int) -> tuple[Launch, Pipes]:
        """Start a real srun for the stand-in that is process `stand_in`. The caller closes descriptors and pipes.

        Raises LaunchError.
        """
        self._drop_old()
        held = payload.cost + sum(launch.payload.cost for launch in self.launches.values())
        if held > _MAX_HELD:
            raise LaunchError(
                f"arguments and environments of all sruns of the script take {format_bytes(held)};"
                f" at most {format_bytes(_MAX_HELD)} are kept in memory"
            )
        number, self.numbered = self.numbered, self.numbered + 1
        pipes = Pipes.new()
        launch = Launch(
            number=number,
            payload=payload,
            modes=modes_of(payload.numbers("fds"), descriptors),
            signal_key=pipes.signal_key,
            status_key=pipes.status_key,
            stand_in=stand_in,
        )
        self.launches[number] = launch
        try:
            await self.run(launch, pipes, descriptors)
        except BaseException:
            self.launches.pop(number, None)
            pipes.close()
            raise
        return launch, pipes

    async def run(self, launch: Launch, pipes: Pipes, descriptors: Sequence[int]) -> None:
        """Start the srun of a launch, in the environment of this incarnation. Raises LaunchError."""
        payload = launch.payload
        variables = environment.translate(payload.environment, self.then, self.now, self.marks.issue(launch))
        argv = payload.argv
        if node := nodelist.node_of_now(self.now):
            argv, renamed = nodelist.renamed(argv, self.former | {nodelist.node_of_now(self.then)}, node)
            launch.renamed = os.fsdecode(renamed)
        if launch.renamed:
            log.info("srun %d names node %s, where the job was before; it runs here", launch.number, launch.renamed)
        await launch.start(self.surroundings, payload.with_words(argv, variables), pipes, descriptors)

    def running(self) -> list[Launch]:
        """The launches whose srun runs."""
        return [launch for launch in list(self.launches.values()) if not launch.ended.is_set()]

    async def end(self) -> None:
        """End every srun of the script, and wait for it; but not for ever: the end of the job waits for us."""
        running = self.running()
        for launch in running:
            launch.kill()
        ends = [asyncio.create_task(launch.ended.wait()) for launch in running]
        if ends and (late := (await asyncio.wait(ends, timeout=_END_SECONDS))[1]):
            log.error("%d sruns of the script do not end", len(late))
            for end in late:
                end.cancel()

    def _drop_old(self) -> None:
        """Forget the launches whose stand-ins have gone: a script may start very many."""
        for number, launch in list(self.launches.items()):
            if launch.ended.is_set() and not os.path.exists(f"/proc/{launch.stand_in}"):
                del self.launches[number]


def prepare(
    payload: Payload,
    shim_pid: int,
    identity: tuple[int, int, Sequence[int]],
    libexec: Path,
    run: Path,
    then: Mapping[bytes, bytes] | None,
    marks: Marks,
) -> Script | None:
    """What a batch script needs so that it can be captured while it waits in srun; None where there is no srun to use.

    payload: of the batch task. identity: uid, gid and supplementary groups. run: the job's directory. then: SLURM_* as
    they were when the script began, None when it begins now. Raises OSError.
    """
    uid, gid, groups = identity
    program = find_srun(payload.environment, uid, {gid, *groups})
    if program is None:
        return None
    directory = run / POD_DIRECTORY
    directory.mkdir(mode=0o755, exist_ok=True)
    directory.chmod(0o755)
    # Something to mount the real one on.
    (directory / STAND_IN).touch(mode=0o755)
    now = environment.slurm_variables(payload.environment)
    return Script(
        surroundings=Surroundings(
            launcher=libexec / "launcher",
            notes=run / "pods",
            program=program,
            shm=run / "shm",
            shim_pid=shim_pid,
            cgroups=procs_files(shim_pid),
            uid=uid,
            gid=gid,
            groups=groups,
        ),
        stand_in=libexec / STAND_IN,
        directory=directory,
        target=libexec / POD_DIRECTORY,
        then=dict(now if then is None else then),
        now=now,
        marks=marks,
    )
