"""The files of the captured pods at the boundary: measured, and copied where a restore needs their content.

The ranks stand still meanwhile, so a copy costs their time. A large file is cloned instead where its file system can
(FICLONE), and copied from the clone when they run again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import threading
from collections.abc import Awaitable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from slurmckpt import faults
from slurmckpt.capture import procfs
from slurmckpt.capture.inspect.mounts import Mount, mounts_of
from slurmckpt.capture.preflight import OpenFile as Found
from slurmckpt.capture.preflight import PodScan
from slurmckpt.coordinator import company
from slurmckpt.coordinator.files import carrying, companions, content, reading, temporary
from slurmckpt.coordinator.files.records import opened, record
from slurmckpt.coordinator.files.rules import Pod, Rules, Treatment, began, decide
from slurmckpt.errors import SlurmckptError
from slurmckpt.store.identity import UserFiles, beat
from slurmckpt.store.manifest import CarriedDirectory, OpenFile

T = TypeVar("T")

CONTENT = "files.data"

# How long the ranks may stand still for one part of it, beside the dump.
_FREEZE_SECONDS = 60.0
_ALIGNMENT = 4096
# A clone first writes what has not reached the disk; of a small file a copy in memory is faster.
_CLONE_BYTES = 16 << 20
_MAX_CLONES = 64
# Each is an open(), which a file server may answer in a millisecond only.
_MAX_SAMPLES = 4096


@dataclass(frozen=True)
class PodFiles:
    """What a manifest says of the files of one pod. absent: paths of files that belong to one of them and were not."""

    open_files: list[OpenFile] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)


async def foresee(init_pids: Sequence[int], scans: Sequence[PodScan], rules: Rules, files: UserFiles) -> int:
    """How many bytes save() will write. While the ranks run. Raises Refused, with what is too large, or OSError."""
    with contextlib.ExitStack() as stack:
        pods = await asyncio.to_thread(_pods, init_pids, scans, stack)
        named = await asyncio.to_thread(carrying.find, pods, rules)
        read = await asyncio.to_thread(reading.find, pods, rules)
        directories = await files.run_to_end(carrying.choose, named, rules.home)
        total = read.bytes + await files.run_to_end(carrying.measure, directories, rules.settings.max_carry)
        for pod, each in zip(pods, decide(pods, rules, carried=[one.path for one in directories]), strict=True):
            saved = [file for file, treatment in each.items() if treatment == "save"]
            total += sum(file.size for file in saved)
            await files.run_to_end(_try_clones, pod.root, [file.path for file in saved if file.size >= _CLONE_BYTES])
        return total


class Saver:
    """Saves the files of one cut below `directory`, in staging. To be used once, and closed.

    carried: the directories that come along, after save(). left: what a restore on another node will miss, in one line.
    """

    def __init__(self, rules: Rules, directory: Path, files: UserFiles) -> None:
        self.carried: list[CarriedDirectory] = []
        self._rules = rules
        self._directory = directory
        self._files = files
        self._stack = contextlib.ExitStack()
        self._stop = threading.Event()
        self._target = -1
        self._end = 0
        self._total = 0
        self._samples = 0
        self._places: dict[tuple[int, int], int] = {}
        # source, place in the target, size, path
        self._clones: list[tuple[int, int, int, str]] = []
        self._reader = reading.Reader(self._reserve, self._places)
        self._stack.callback(self._reader.close)
        self._temporary = temporary.Temporary()

    @property
    def left(self) -> str:
        found = self._temporary
        texts = reading.describe(self._reader.left), temporary.describe(found.left, found.partial)
        return "; ".join(text for text in texts if text)

    async def save(
        self,
        init_pids: Sequence[int],
        scans: Sequence[PodScan],
        without: Collection[tuple[int, int]],
        scripts: Collection[str] = (),
    ) -> list[PodFiles]:
        """One for each pod. To be called while they stand still and nothing is under way to their files.

        without: device and inode of files that are brought back in another way; scripts: paths of such, that are read.
        Raises SlurmckptError or OSError.
        """
        faults.at("capture.files")
        pods = await asyncio.to_thread(_pods, init_pids, scans, self._stack)
        named = await asyncio.to_thread(carrying.find, pods, self._rules)
        directories = await self._within(self._files.run(carrying.choose, named, self._rules.home))
        carried = [one.path for one in directories]
        treated = decide(pods, self._rules, without, carried)
        read = await asyncio.to_thread(reading.find, pods, self._rules, without, carried, scripts)
        self._reader.left += read.left
        self._temporary = await self._find_temporary(pods, init_pids, read, carried, without)
        for number, each in enumerate(directories):
            archive = f"carried-{number}.tar"
            target = self._create(archive)
            limit = self._rules.settings.max_carry
            await self._within(self._files.run(carrying.save, each, target, limit, self._go_on))
            self.carried.append(CarriedDirectory(each.path, archive))
        if (
            any(read.wanted)
            or self._temporary.files
            or self._temporary.links
            or any(treatment == "save" for each in treated for treatment in each.values())
        ):
            self._target = self._create(CONTENT)
        saved = [
            await self._within(self._files.run(self._save_pod, pod, each))
            for pod, each in zip(pods, treated, strict=True)
        ]
        for pod, wanted, one in zip(pods, read.wanted, saved, strict=True):
            await self._within(
                self._files.run(self._reader.save, pod, wanted, self._target, one.open_files, self._go_on)
            )
        if pods:
            await self._within(self._files.run(self._save_temporary, pods[0], saved[0].open_files))
        return saved

    async def finish(self) -> None:
        """Copy what was only cloned; the ranks run again. Raises SlurmckptError or OSError."""
        await self._files.run(self._copy_clones)
        await self._files.run(self._reader.finish, self._target, self._go_on)

    async def close(self) -> None:
        """Let go of everything, in the user's thread: until then that may be using it."""
        self._stop.set()
        with contextlib.suppress(SlurmckptError):
            await asyncio.shield(self._files.run(self._stack.close))

    async def _within(self, work: Awaitable[T]) -> T:
        try:
            return await asyncio.wait_for(work, _FREEZE_SECONDS)
        except asyncio.TimeoutError:
            raise SlurmckptError(f"the job's files could not be saved within {_FREEZE_SECONDS:.0f} s") from None

    def _create(self, name: str) -> int:
        descriptor = os.open(self._directory / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._stack.callback(os.close, descriptor)
        return descriptor

    def _go_on(self) -> None:
        if self._stop.is_set():
            raise SlurmckptError("the checkpoint was given up")

    def _save_pod(self, pod: Pod, treated: dict[Found, Treatment]) -> PodFiles:
        root, saved = pod.root, PodFiles()
        known = {file.path for file in treated}
        for file, treatment in treated.items():
            if treatment == "save" and not (self._rules.may_cut(file) and _is_closed(root, file.path)):
                saved.open_files.append(self._save(root, file.path, file, known, saved))
            else:
                instead: Treatment = "truncate" if treatment == "save" else treatment
                saved.open_files.append(self._measure(root, file, instead))
        saved.open_files.extend(self._pipes(pod))
        return saved

    async def _find_temporary(
        self,
        pods: Sequence[Pod],
        init_pids: Sequence[int],
        read: reading.Found,
        carried: Sequence[str],
        without: Collection[tuple[int, int]],
    ) -> temporary.Temporary:
        """What lies in /tmp and is nobody's but the job's. All its pods see the same."""
        rules, scans = self._rules, [pod.scan for pod in pods]
        pids = {process.pid for scan in scans for process in scan.processes}
        if not pods or not rules.settings.max_read:
            return temporary.Temporary()
        alone = await asyncio.to_thread(company.is_alone, rules.uid, init_pids, pids)
        named = await asyncio.to_thread(carrying.values, pods, "TMPDIR")
        directories = {procfs.link(f"{procfs.PROC}/{pid}/cwd") or "" for pid in pids}
        where = temporary.places(pods[0], directories, named, alone)
        apart = [*carried, "/dev/shm"]
        known = {(file.device, file.inode) for scan in scans for file in (*scan.open_files, *scan.named_pipes)}
        known |= read.seen | set(without)
        return await self._within(self._files.run(temporary.find, pods[0], rules, where, apart, known, read.bytes))

    def _save_temporary(self, pod: Pod, noted: list[OpenFile]) -> None:
        found = self._temporary
        self._reader.save(pod, found.files, self._target, noted, self._go_on, "temporary")
        for path, status, leads_to in found.links:
            place = self._reserve(len(leads_to))
            os.pwrite(self._target, leads_to, place)
            noted.append(replace(record(path, status, "link", place), size=len(leads_to)))
        # After what is in them: they may be closed for writing.
        noted += [record(path, status, "directory") for path, status in found.directories]

    def _pipes(self, pod: Pod) -> Iterator[OpenFile]:
        """What is in them CRIU has; it needs them to be there."""
        for pipe in (one for one in pod.scan.named_pipes if self._rules.concern(one.path)):
            with contextlib.suppress(OSError):
                status = os.stat(pipe.path.lstrip("/"), dir_fd=pod.root, follow_symlinks=False)
                if (status.st_dev, status.st_ino) == (pipe.device, pipe.inode):
                    yield record(pipe.path, status, "pipe")

    def _measure(self, root: int, file: Found, treatment: Treatment) -> OpenFile:
        """A file of which only the size, or that nobody writes it, has to be known."""
        try:
            if treatment == "unchanged":
                # What was written through a mapping counts as a modification from now on: its pages are clean again.
                with opened(root, file.path, os.O_RDONLY) as descriptor:
                    os.fsync(descriptor)
            status = os.stat(file.path.lstrip("/"), dir_fd=root, follow_symlinks=False)
        except OSError as error:
            raise SlurmckptError(f"{file.path}, which the job writes, cannot be looked at: {error.strerror}") from error
        _check_is(status, file)
        return record(file.path, status, treatment, sample=self._sample(root, file, status.st_size, treatment))

    def _sample(self, root: int, file: Found, size: int, treatment: Treatment) -> str:
        """Of a file that is going to be cut back; empty where the user may write it, and not read it."""
        if treatment != "truncate" or self._samples >= _MAX_SAMPLES:
            return ""
        self._samples += 1
        self._go_on()
        with contextlib.suppress(OSError), opened(root, file.path, os.O_RDONLY) as descriptor:
            return content.sample(descriptor, size)
        return ""

    def _save(self, root: int, path: str, file: Found | None, known: set[str], saved: PodFiles) -> OpenFile:
        """A file with its content, and what belongs to it. file: None when no process has it open."""
        try:
            with opened(root, path, os.O_RDONLY) as descriptor:
                before = os.fstat(descriptor)
                if file is not None:
                    _check_is(before, file)
                place = self._places.get((before.st_dev, before.st_ino))
                if place is None:
                    place = self._add(root, path, descriptor, before.st_size)
                    self._places[before.st_dev, before.st_ino] = place
                status = os.fstat(descriptor)
                if (status.st_mtime_ns, status.st_size) != (before.st_mtime_ns, before.st_size):
                    raise SlurmckptError(f"{path} is written from outside the job's pods while it is saved")
                belonging = companions.of(path, descriptor) if file is not None else []
        except OSError as error:
            raise SlurmckptError(
                f"{path} is written in place and cannot be saved with the checkpoint: {error.strerror}"
            ) from error
        for other in belonging:
            if other not in known:
                known.add(other)
                self._save_companion(root, other, known, saved)
        return record(path, status, "save", place)

    def _save_companion(self, root: int, path: str, known: set[str], saved: PodFiles) -> None:
        try:
            mode = os.stat(path.lstrip("/"), dir_fd=root, follow_symlinks=False).st_mode
        except FileNotFoundError:
            saved.absent.append(path)
            return
        if stat.S_ISREG(mode):
            saved.open_files.append(self._save(root, path, None, known, saved))

    def _add(self, root: int, path: str, source: int, size: int) -> int:
        """Put the content at the end of the target, now or in finish(). Gives its place."""
        self._total += size
        if self._total > self._rules.settings.max_save:
            raise SlurmckptError(f"{path} and what else is written in place is more than may be saved (files.max_save)")
        place = self._reserve(size)
        if size >= _CLONE_BYTES and len(self._clones) < _MAX_CLONES:
            copied = content.clone(source, os.path.dirname(path).lstrip("/"), root)
            if copied is not None:
                self._stack.callback(os.close, copied)
                self._clones.append((copied, place, size, path))
                return place
        content.copy(source, self._target, place, size, self._go_on)
        return place

    def _reserve(self, size: int) -> int:
        place = self._end
        self._end += -(-size // _ALIGNMENT) * _ALIGNMENT
        os.ftruncate(self._target, self._end)
        return place

    def _copy_clones(self) -> None:
        for source, place, size, path in self._clones:
            try:
                content.copy(source, self._target, place, size, self._go_on)
            except OSError as error:
                raise SlurmckptError(f"{path} cannot be saved with the checkpoint: {error.strerror}") from error


def _pods(init_pids: Sequence[int], scans: Sequence[PodScan], stack: contextlib.ExitStack) -> list[Pod]:
    """The pods as the rules see them; their descriptors belong to `stack`. Raises OSError."""
    pods = []
    for pid, scan in zip(init_pids, scans, strict=True):
        root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, root)
        mounts = list(mounts_of(pid).values())
        pods.append(Pod(scan, root, began(pid), _vague(mounts), mounts))
    return pods


def _vague(mounts: Iterable[Mount]) -> frozenset[int]:
    """Of the file systems in memory: shmem has no page_mkwrite() (mm/shmem.c), so writes to its pages leave no time."""
    devices = {mount.device for mount in mounts if mount.kind == "tmpfs"}
    return frozenset(os.makedev(*(int(number) for number in device.split(":"))) for device in devices)


def _try_clones(root: int, paths: Sequence[str]) -> None:
    """Clone large files once before it counts: what has not reached the disk is then written while the ranks run."""
    for path in paths[:_MAX_CLONES]:
        with contextlib.suppress(OSError), opened(root, path, os.O_RDONLY) as descriptor:
            beat()
            copied = content.clone(descriptor, os.path.dirname(path).lstrip("/"), root)
            if copied is not None:
                os.close(copied)


def _is_closed(root: int, path: str) -> bool:
    """Whether the user may not read the file, though it writes it."""
    try:
        with opened(root, path, os.O_RDONLY):
            return False
    except PermissionError:
        return True
    except OSError:
        return False


def _check_is(status: os.stat_result, file: Found) -> None:
    if (status.st_dev, status.st_ino) != (file.device, file.inode):
        raise SlurmckptError(f"{file.path}, which the job writes, was replaced by another file of that name")
