"""A job with files of its own, from the boundary to the restore."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from slurmckpt.capture.inspect.descriptors import Writing, device_name
from slurmckpt.capture.inspect.used import UsedFile
from slurmckpt.capture.preflight import OpenFile, PodScan
from slurmckpt.config import Files
from slurmckpt.coordinator.files import saving
from slurmckpt.coordinator.files.putting_back import Traces
from slurmckpt.coordinator.files.returning import Place, bring_back
from slurmckpt.coordinator.files.rules import Rules
from slurmckpt.coordinator.files.saving import PodFiles, Saver
from slurmckpt.filerules import FileRule
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.manifest import CarriedDirectory
from tests.unit.awaiting import wait_until
from tests.unit.coordinator.parts import GID, UID, no_descriptor_is_lost

ME = (UID, GID) if os.geteuid() == 0 else (os.getuid(), os.getgid())
TEN = b"0123456789"


class Job:
    """A job that writes files below its home, without any process: what a look at it would find is made up."""

    def __init__(self, home: Path, staging: Path, files: UserFiles) -> None:
        self.home = home
        self.staging = staging
        self.files = files
        self.settings = Files()
        self.open: dict[Path, tuple[Writing, bool]] = {}
        self.named_pipes: list[Path] = []
        self.reads: list[UsedFile] = []
        self.shared: set[int] = set()
        self.since = sys.maxsize
        self.left = ""
        self.saved = PodFiles()
        self.carried: list[CarriedDirectory] = []
        self.traces = Traces()
        self.descriptors = contextlib.ExitStack()

    def write(self, name: str, data: bytes = TEN) -> Path:
        path = self.home / name
        path.write_bytes(data)
        os.chown(path, *ME)
        return path

    def opens(self, path: Path, writing: Writing = Writing.ANYWHERE, mapped: bool = False) -> Path:
        self.open[path] = (writing, mapped)
        return path

    def logs(self, path: Path) -> Path:
        """One that is only cut back."""
        self.settings = replace(self.settings, rules=(*self.settings.rules, FileRule(str(path), "truncate")))
        return self.opens(path, Writing.APPENDED)

    def pipes(self, path: Path) -> Path:
        """A named pipe that is open."""
        os.mkfifo(path)
        path.chmod(0o620)
        os.chown(path, *ME)
        self.named_pipes.append(path)
        return path

    def has_read(self, path: Path) -> Path:
        """One that is open for reading: the descriptor lives as long as the test."""
        descriptor = os.open(path, os.O_RDONLY)
        self.descriptors.callback(os.close, descriptor)
        status, link = os.fstat(descriptor), f"/proc/self/fd/{descriptor}"
        self.reads.append(UsedFile(str(path), device_name(status), status.st_ino, "/proc/self/root", links=[link]))
        return path

    def scan(self) -> PodScan:
        found = [_found(path, writing, mapped) for path, (writing, mapped) in self.open.items()]
        pipes = [_found(path, Writing.ANYWHERE, False) for path in self.named_pipes]
        return PodScan([], [], found, [], [], [], [], named_pipes=pipes, used_files=self.reads)

    def rules(self) -> Rules:
        return Rules(self.settings, ME[0], str(self.home), self.staging, self.shared, self.since)

    def save(self, meanwhile: Callable[[], None] = lambda: None) -> PodFiles:
        async def scene() -> None:
            saver = Saver(self.rules(), self.staging, self.files)
            try:
                self.saved = (await saver.save([os.getpid()], [self.scan()], set()))[0]
                meanwhile()
                await saver.finish()
                self.carried, self.left = saver.carried, saver.left
            finally:
                await saver.close()

        self.staging.mkdir(exist_ok=True)
        with no_descriptor_is_lost():
            asyncio.run(scene())
        return self.saved

    def foresee(self) -> int:
        return asyncio.run(saving.foresee([os.getpid()], [self.scan()], self.rules(), self.files))

    def bring_back(self) -> None:
        root = os.open("/", os.O_PATH)
        source = -1
        try:
            if (self.staging / saving.CONTENT).exists():
                source = os.open(self.staging / saving.CONTENT, os.O_RDONLY)
            place = Place(root, source, ME[0], self.traces.files, self.traces.parents)
            self.files.run_sync(bring_back, self.saved.open_files, self.saved.absent, place)
        finally:
            os.close(root)
            if source >= 0:
                os.close(source)


def _found(path: Path, writing: Writing, mapped: bool) -> OpenFile:
    status = os.stat(path)
    return OpenFile(
        str(path),
        status.st_size,
        status.st_mode,
        os.O_RDWR,
        os.getpid(),
        3,
        status.st_dev,
        status.st_ino,
        writing,
        mapped,
        status.st_mtime_ns,
    )


def policies(saved: PodFiles) -> dict[str, str]:
    return {Path(file.path).name: file.policy for file in saved.open_files}


def next_moment(path: Path) -> int:
    """A time after the last change of a file, ns since 1970: by the clock of its file system, which may be behind."""
    before, mark = path.lstat().st_ctime_ns, path.with_name("mark")

    def now() -> int:
        mark.touch()
        return mark.stat().st_ctime_ns

    wait_until(lambda: now() > before, f"a later time than {before}")
    later = mark.stat().st_ctime_ns
    mark.unlink()
    return later
