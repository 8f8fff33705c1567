# mypy: ignore-errors
"""loader.py STEPS SECONDS: DistributedDataParallel fed by DataLoader workers, which hand tensors over in shared memory.

With CRASH=FILE in its environment rank 1 dies as soon as there is such a file, which it removes.
"""

from __future__ import annotations

import os
import sys
import time
import warnings

import torch
import torch.distributed as dist
from holding import hold
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

warnings.filterwarnings("ignore")  # pinned memory is asked for, and there is no accelerator
steps, pause = int(sys.argv[1]), float(sys.argv[2])


class Numbers(Dataset[torch.Tensor]):
    """Each item is made by a worker from its index."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(64, generator=torch.Generator().manual_seed(index))


def main() -> None:
    os.environ.setdefault("RANK", os.environ.get("SLURM_PROCID", "0"))
    os.environ.setdefault("WORLD_SIZE", os.environ.get("SLURM_NTASKS", "1"))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    numbers = Numbers()
    sampler: DistributedSampler[torch.Tensor] = DistributedSampler(numbers, seed=3)
    loader = DataLoader(
        numbers, 16, sampler=sampler, num_workers=2, pin_memory=True, persistent_workers=True, prefetch_factor=2
    )
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = epoch = 0
    while step < steps:
        sampler.set_epoch(epoch)
        for batch in loader:
            hold(step, steps)
            loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total = loss.detach().clone()
            dist.all_reduce(total)
            step += 1
            if rank == 0:
                print("step", step, total.item().hex(), flush=True)
            crash = os.environ.get("CRASH", "")
            if crash and rank == 1 and os.path.exists(crash):
                os.remove(crash)
                os._exit(7)
            time.sleep(pause)
            if step == steps:
                break
        epoch += 1
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
