"""Ranks on a simulated device: real processes over the doubles of NVIDIA's libraries."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.doubles import simulated

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings (pip install slurmckpt[cuda])")
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    return simulated.build(tmp_path_factory.mktemp("libraries"))


@pytest.fixture
def hardware(libraries: Path, tmp_path: Path) -> simulated.Hardware:
    return simulated.Hardware(tmp_path / "hardware", libraries)


class Rank:
    """One process with CUDA state."""

    def __init__(self, hardware: simulated.Hardware, device: int = 0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "doubles" / "cuda_rank.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | hardware.environment | {"DEVICE": str(device)},
        )
        self.pid = self._process.pid
        assert self.answer() == f"ready {self.pid}"

    def answer(self, seconds: float = 60.0) -> str:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        assert ready, "the rank does not answer"
        return self._process.stdout.readline().strip()

    def silent(self, seconds: float = 0.3) -> bool:
        """Whether it says nothing: what it was told to do last does not end."""
        assert self._process.stdout is not None
        return not select.select([self._process.stdout], [], [], seconds)[0]

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def do(self, line: str) -> str:
        self.tell(line)
        return self.answer()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


StartRank = Callable[..., Rank]


@pytest.fixture
def start_rank(hardware: simulated.Hardware) -> Iterator[StartRank]:
    ranks: list[Rank] = []

    def start(device: int = 0) -> Rank:
        ranks.append(Rank(hardware, device))
        return ranks[-1]

    yield start
    for rank in ranks:
        rank.kill()
