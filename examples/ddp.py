"""Data-parallel training under PyTorch's own engine, with operators of opd in the model.

Every rank is a process with its own half of the data and the same model; DistributedDataParallel
averages the gradients. opd takes no part in that: each rank calls the daemon of its host, as it
would alone. At the end the ranks compare their parameters bit by bit.

    PYTHONPATH=client/python python3 examples/ddp.py
    PYTHONPATH=client/python torchrun --nproc-per-node 2 examples/ddp.py

The first is the second with a daemon of its own. By torchrun the ranks use the daemon at
$OPD_SOCKET, else the default one, which is started if none runs. gloo on CPUs, NCCL where each rank
has a GPU of its own.
"""

import os
import subprocess
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import opd.torch
from _daemon import serve

STEPS, BATCH = 20, 8


class Net(torch.nn.Module):
    """Depthwise and pointwise convolutions, gelu, up-sampling back to the input's size."""

    def __init__(self):
        super().__init__()
        self.widen = torch.nn.Conv2d(1, 8, 1)
        self.depthwise = opd.torch.DepthwiseConv2d(8, kernel_size=3, stride=2, padding=1, bias=True)
        self.narrow = torch.nn.Conv2d(8, 1, 1)
        self.enlarge = opd.torch.UpsampleBilinear2d(scale_factor=2)

    def forward(self, x):
        x = opd.torch.ops.gelu(self.depthwise(self.widen(x)), approximate="tanh")
        return self.enlarge(self.narrow(x))


def main():
    gpus = torch.cuda.device_count()
    own_gpu = gpus >= int(os.environ["LOCAL_WORLD_SIZE"])
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local) if own_gpu else torch.device("cpu")
    if own_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if own_gpu else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(rank)  # different weights, until DDP takes those of rank 0
    model = DistributedDataParallel(Net().to(device), device_ids=[local] if own_gpu else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.Generator().manual_seed(100 + rank)
    for step in range(STEPS):
        x = torch.rand(BATCH, 1, 16, 16, generator=data)
        target = torch.nn.functional.avg_pool2d(x, 3, 1, 1).to(device)
        loss = torch.nn.functional.mse_loss(model(x.to(device)), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step:2d}: loss {loss.item():.4f} on rank 0", flush=True)

    mine = torch.cat([p.detach().flatten() for p in model.parameters()]).view(torch.int32)
    all_of_them = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(all_of_them, mine)
    same = all(torch.equal(mine, other) for other in all_of_them)
    # gloo's threads give back what was gathered before the group ends: its end waits for them while
    # it holds Python's lock, which they would need.
    dist.barrier()
    del model, all_of_them, mine
    if rank == 0:
        backend = dist.get_backend()
        print(f"{world} ranks over {backend} on {device.type}: parameters agree bit by bit: {same}")
    dist.destroy_process_group()
    if not same or not loss.item() < 0.1:
        sys.exit("the ranks disagree, or the loss did not fall")


def launch():
    """Without torchrun: two ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", __file__]
    with serve() as client:
        status = subprocess.run(command, env={**os.environ, "OPD_SOCKET": client.socket}).returncode
    sys.exit(status)


if __name__ == "__main__":
    main() if "LOCAL_RANK" in os.environ else launch()
