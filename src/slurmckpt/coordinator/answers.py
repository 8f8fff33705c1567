"""Who waits for which answer of a peer that gives them in order."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Answers:
    """By verb. Who has given up still has its answer to come."""

    _waiting: dict[str, deque[asyncio.Future[None]]] = field(default_factory=lambda: defaultdict(deque))

    @contextlib.contextmanager
    def expected(self, verb: str) -> Iterator[asyncio.Future[None]]:
        """What is done when the answer is there. To be entered before it is asked for, and left then.

        Where the asking fails there is no answer to come.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting[verb]
        waiting.append(future)
        try:
            yield future
        except BaseException:
            with contextlib.suppress(ValueError):
                waiting.remove(future)
            raise

    def are_expected(self, verb: str) -> bool:
        """Whether any such answer is to come."""
        return bool(self._waiting.get(verb))

    def take(self, verb: str) -> None:
        """An expected one has come."""
        future = self._waiting[verb].popleft()
        if not future.done():
            future.set_result(None)

    def end(self, error: Exception) -> None:
        """None comes any more: whoever waits gets this error."""
        for waiting in self._waiting.values():
            while waiting:
                future = waiting.popleft()
                if not future.done():
                    future.set_exception(error)
