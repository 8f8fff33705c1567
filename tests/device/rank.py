"""A rank of the device check: trains a small model on one GPU with NCCL, and prints a hash of the weights in each step.

    rank.py STEPS MEMBERS MEMBER PLACE

Both ranks use GPU 0. PLACE: a directory for the rendezvous file.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time


def main() -> None:
    steps, members, member, place = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    # Two ranks on one GPU: NCCL must take them for two hosts.
    os.environ.update({"NCCL_HOSTID": f"rank{member}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_MULTI_RANK_GPU_ENABLE": "1"})
    import torch
    import torch.distributed as dist

    torch.use_deterministic_algorithms(True)
    torch.manual_seed(7 + member)
    dist.init_process_group("nccl", init_method=f"file://{place}/rendezvous", rank=member, world_size=members)
    device = torch.device("cuda:0")
    torch.cuda.set_device(device)
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Linear(512, 512)).to(device)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(1, steps + 1):
        batch = torch.randn(64, 512, generator=torch.Generator().manual_seed(step * members + member)).to(device)
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        if member == 0:
            weights = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
            print("step", step, hashlib.sha256(weights).hexdigest()[:16], flush=True)
        time.sleep(0.02)


if __name__ == "__main__":
    main()
