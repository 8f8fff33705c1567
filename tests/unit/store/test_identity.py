"""Work in the user's thread. What needs root is in test_root.py."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from slurmckpt.store.identity import UserFiles


def test_run_to_end_ends_after_its_function_also_when_cancelled() -> None:
    started, go, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> str:
        started.set()
        go.wait(60)
        ended.set()
        return "result"

    async def scene() -> None:
        with UserFiles.for_user(os.geteuid(), os.getegid(), os.getgroups()) as files:
            running = asyncio.create_task(files.run_to_end(work))
            await asyncio.to_thread(started.wait, 60)
            running.cancel()
            done, _ = await asyncio.wait([running], timeout=0.1)
            assert not done and not ended.is_set()
            go.set()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert ended.is_set()
            assert await files.run_to_end(work) == "result"

    asyncio.run(scene())


def test_run_to_end_passes_an_error_on() -> None:
    async def scene() -> None:
        with (
            UserFiles.for_user(os.geteuid(), os.getegid(), os.getgroups()) as files,
            pytest.raises(FileNotFoundError),
        ):
            await files.run_to_end(os.stat, "/no/such/file")

    asyncio.run(scene())
