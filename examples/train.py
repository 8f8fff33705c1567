"""A small language model, trained with DistributedDataParallel on real text.

It saves nothing and knows nothing of checkpoints. Started once per rank by srun or torchrun. Rank 0 prints the loss of
every step, exactly (hexadecimal), and at the end the SHA-256 of the weights of each rank.
"""

import argparse
import hashlib
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class CharacterModel(torch.nn.Module):
    """Predicts the next character: embedding, GRU, projection."""

    def __init__(self, symbols: int, width: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(symbols, width)
        self.rnn = torch.nn.GRU(width, width, num_layers=2, batch_first=True, dropout=0.1)
        self.head = torch.nn.Linear(width, symbols)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Logits (batch, length, symbols) of text (batch, length)."""
        return self.head(self.rnn(self.embedding(text))[0])


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", default="/usr/share/common-licenses/GPL-3")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--width", type=int, default=128)
    options = parser.parse_args()

    # srun names ranks its own way, torchrun sets the names that PyTorch reads.
    os.environ.setdefault("RANK", os.environ.get("SLURM_PROCID", "0"))
    os.environ.setdefault("WORLD_SIZE", os.environ.get("SLURM_NTASKS", "1"))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    with open(options.text, encoding="utf-8") as file:
        text = file.read()
    symbols = sorted(set(text))
    index = {symbol: number for number, symbol in enumerate(symbols)}
    data = torch.tensor([index[symbol] for symbol in text])

    model = DistributedDataParallel(CharacterModel(len(symbols), options.width))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    batches = torch.Generator().manual_seed(100 + rank)
    length = 64
    for step in range(1, options.steps + 1):
        starts = torch.randint(0, len(data) - length - 1, (16,), generator=batches).tolist()
        window = torch.stack([data[start : start + length + 1] for start in starts])
        logits = model(window[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, len(symbols)), window[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if rank == 0:
            print(f"step {step} loss {loss.item().hex()}", flush=True)

    weights = hashlib.sha256(b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters()))
    digests = [""] * dist.get_world_size()
    dist.all_gather_object(digests, weights.hexdigest())
    if rank == 0:
        for each, digest in enumerate(digests):
            print(f"rank {each} weights {digest}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
