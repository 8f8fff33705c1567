"""examples/train.py, but it heeds `hold` (programs/holding.py): on a quick machine it would be over before the test has done its part."""

import runpy
import sys

import torch
from holding import hold  # type: ignore[import-not-found]

count = int(sys.argv[sys.argv.index("--steps") + 1])


class Held(torch.optim.AdamW):  # type: ignore[misc]
    """Each step of the optimizer is one of the training."""

    number = 0

    def step(self, closure: object = None) -> object:
        hold(self.number, count)
        self.number += 1
        return super().step(closure)


torch.optim.AdamW = Held
runpy.run_path("train.py", run_name="__main__")
