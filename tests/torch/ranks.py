"""One of two ranks, over gloo: trains a net, DistributedDataParallel's and fully_shard's, on its half
of each batch; rank 0 saves what came of it. Run by test_torch_training.py."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

import opd.torch

WORLD = 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.widen = nn.Conv2d(1, 3, 1)
        self.depthwise = opd.torch.DepthwiseConv2d(3, stride=2, padding=1, bias=True)
        self.enlarge = opd.torch.UpsampleBilinear2d(scale_factor=2)
        self.narrow = nn.Conv2d(3, 1, 1)

    def forward(self, x):
        y = opd.torch.ops.gelu(self.depthwise(self.widen(x)), approximate="tanh")
        return self.narrow(self.enlarge(y))


def train(model, part=slice(None)):
    """Losses of some steps, on that part of each batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(3):
        x = torch.randn(4, 1, 6, 6, generator=generator)[part]
        loss = (model(x) - x.flip(3)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def shard(model):
    mesh = init_device_mesh("cpu", (WORLD,))
    fully_shard(model.depthwise, mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert isinstance(model.depthwise, FSDPModule)
    assert model.depthwise.weight.to_local().shape[0] < 3
    return model


def main(rank, folder):
    dist.init_process_group(
        "gloo", rank=rank, world_size=WORLD, init_method=f"file://{folder}/meeting"
    )
    part = slice(2 * rank, 2 * rank + 2)
    model = DistributedDataParallel(Net())
    train(model, part)
    results = {"ddp": model.module.state_dict()}
    model = shard(Net())
    train(model, part)
    results["fsdp"] = {name: p.full_tensor() for name, p in model.state_dict().items()}
    if rank == 0:
        torch.save(results, f"{folder}/results.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
