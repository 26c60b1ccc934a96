"""PyTorch's DistributedDataParallel over Gloo, with the model, batch and link of overlap_main.cc.

    link.sh MBIT python3 ddp_peer.py LAYERS WIDTH BATCH STEPS FIRST_BUCKET_MIB BUCKET_MIB

Rank 0 prints a line of JSON. alone_ms is the step without communication.
"""

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    layers, width, batch, steps = map(int, sys.argv[1:5])
    first_mib, mib = map(float, sys.argv[5:7])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    modules = []
    for _ in range(layers):
        modules += [torch.nn.Linear(width, width), torch.nn.ReLU()]
    dist._DEFAULT_FIRST_BUCKET_BYTES = int(first_mib * 2**20)
    model = DistributedDataParallel(
        torch.nn.Sequential(*modules), bucket_cap_mb=mib, gradient_as_bucket_view=True
    )
    sgd = torch.optim.SGD(model.parameters(), lr=1e-6)
    x = torch.full((batch, width), 0.01 * (dist.get_rank() + 1))
    root = torch.full((batch, width), 1.0 / (batch * width))

    def step():
        dist.barrier()
        times = [time.perf_counter()]
        y = model(x)
        times.append(time.perf_counter())
        y.backward(root)
        times.append(time.perf_counter())
        sgd.step()
        sgd.zero_grad()
        times.append(time.perf_counter())
        return [1e3 * (b - a) for a, b in zip(times, times[1:])]

    def slowest(ms):
        t = torch.tensor([ms], dtype=torch.float64)
        dist.all_reduce(t, op=dist.ReduceOp.MAX)
        return t.item()

    for _ in range(4):
        step()
    alone = []
    for _ in range(steps):
        with model.no_sync():
            alone.append(step())
    whole = []
    for _ in range(steps):
        whole.append(slowest(sum(step())))
    median = statistics.median
    alone_backward = slowest(median(a[1] for a in alone))
    slowest_alone = slowest(median(sum(a) for a in alone))
    if dist.get_rank() == 0:
        print(
            json.dumps(
                {
                    "torch": torch.__version__,
                    "forward_ms": median(a[0] for a in alone),
                    "backward_ms": alone_backward,
                    "alone_ms": slowest_alone,
                    "step_ms": median(whole),
                }
            )
        )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
