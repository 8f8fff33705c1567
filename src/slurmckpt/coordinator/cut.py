"""Where the participants of one group checkpoint wait for each other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class CutAborted(Exception):
    """Another participant failed. Its own error says why."""


class Rendezvous:
    """A meeting of `count` participants. The last to arrive does `action` once; then all go on, or all fail."""

    def __init__(self, count: int, action: Callable[[], Awaitable[None]]) -> None:
        self._missing = count
        self._action = action
        self._outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Whoever arrives after an abort reads the outcome; when nobody does, it is no error of its own.
        self._outcome.add_done_callback(lambda outcome: outcome.cancelled() or outcome.exception())

    async def arrive(self) -> None:
        """Wait for the others. Raises CutAborted when one of them has failed; the action's own error in whom it ran."""
        self._missing -= 1
        if self._missing == 0 and not self._outcome.done():
            try:
                await self._action()
            except BaseException:
                self.abort()
                raise
            if not self._outcome.done():
                self._outcome.set_result(None)
        await asyncio.shield(self._outcome)

    def abort(self) -> None:
        """One participant will not come: whoever waits or arrives gets CutAborted."""
        if not self._outcome.done():
            self._outcome.set_exception(CutAborted())
