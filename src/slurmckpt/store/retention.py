"""What is kept: the newest committed checkpoints. A removal starts with a rename: a half-removed one is none."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

from slurmckpt.errors import StoreError
from slurmckpt.store.files import TEMPORARY_SUFFIX, remove_tree
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.layout import DELETED_SUFFIX, PARTIAL_SUFFIX, JobStore

# A temporary file lives for the moment of one small write; clocks of nodes may differ.
_TEMPORARY_SECONDS = 3600.0


async def prune(store: JobStore, files: UserFiles, keep: int, protect: set[int]) -> list[int]:
    """Remove all committed checkpoints but the newest `keep` (1 or more) and those in `protect`; gives what it removed.

    protect: numbers in use, among them the one being written. Partials that a crash left go too, once a newer number is
    committed or protected: one above may belong to an incarnation that is writing it now.
    Raises StoreError with one line when something could not be removed; what could be is removed all the same.
    """
    if keep < 1:
        raise ValueError(f"keep = {keep} is not accepted: at least 1 checkpoint is kept")
    return await files.run(_prune, store, keep, frozenset(protect))


async def remove_all(store: JobStore, files: UserFiles) -> list[int]:
    """Remove all checkpoints, also partial ones; record and lease stay. Gives the committed ones that were removed.

    Raises StoreError with one line as prune() does.
    """
    return await files.run(_remove_all, store)


def _prune(store: JobStore, keep: int, protect: frozenset[int]) -> list[int]:
    committed = store.sequence_numbers()
    newest = max([*committed, *protect], default=0)
    old = [seq for seq in committed[:-keep] if seq not in protect]
    stale = [seq for seq in store.numbers(PARTIAL_SUFFIX) if seq not in protect and seq < newest]
    _remove(store, old, stale)
    return old


def _remove_all(store: JobStore) -> list[int]:
    committed = store.sequence_numbers()
    _remove(store, committed, store.numbers(PARTIAL_SUFFIX))
    return committed


def _remove(store: JobStore, committed: Iterable[int], partials: Iterable[int]) -> None:
    failures: list[OSError] = []
    for path in [store.checkpoint(seq) for seq in committed] + [store.partial(seq) for seq in partials]:
        deleted = path.with_name(path.name.removesuffix(PARTIAL_SUFFIX) + DELETED_SUFFIX)
        try:
            remove_tree(deleted)
            os.rename(path, deleted)
        except FileNotFoundError:
            continue
        except OSError as error:
            failures.append(error)
    leftovers = [store.deleted(seq) for seq in store.numbers(DELETED_SUFFIX)]
    for path in leftovers + _old_temporaries(store):
        try:
            remove_tree(path)
        except OSError as error:
            failures.append(error)
    if failures:
        first = failures[0]
        raise StoreError(
            f"{len(failures)} of the old checkpoints in {store.dir} cannot be removed: "
            f"{first.filename or ''}: {first.strerror or first}"
        )


def _old_temporaries(store: JobStore) -> list[Path]:
    """Temporary files of writers that crashed."""
    found = []
    with contextlib.suppress(FileNotFoundError), os.scandir(store.dir) as entries:
        for entry in entries:
            if entry.name.startswith(".") and entry.name.endswith(TEMPORARY_SUFFIX):
                with contextlib.suppress(FileNotFoundError):
                    if entry.stat(follow_symlinks=False).st_mtime < time.time() - _TEMPORARY_SECONDS:
                        found.append(Path(entry.path))
    return found
