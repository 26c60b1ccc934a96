"""PyTorch's DistributedDataParallel over Gloo, with the model, batch and link of overlap_main.cc.

    link.sh MBIT python3 ddp_peer.py LAYERS WIDTH BATCH STEPS FIRST_BUCKET_MIB BUCKET_MIB

Rank 0 prints a line of JSON. alone_ms is the step without communication; each whole step follows
one, and added_ms is the median of their differences. exposed_ms is DDP's own figure: from the end
of the computation of backward to the end of the last bucket.
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
    modules = [torch.nn.Linear(width, width) for _ in range(layers)]
    dist._DEFAULT_FIRST_BUCKET_BYTES = int(first_mib * 2**20)
    model = DistributedDataParallel(
        torch.nn.Sequential(*modules), bucket_cap_mb=mib, gradient_as_bucket_view=True
    )
    sgd = torch.optim.SGD(model.parameters(), lr=1e-6)
    model._set_ddp_runtime_logging_sample_rate(1)
    torch.manual_seed(dist.get_rank())
    x = torch.randn(batch, width)
    root = torch.randn(batch, width) / (batch * width)

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

    def of_all(ms, op=dist.ReduceOp.SUM):
        t = torch.tensor([ms], dtype=torch.float64)
        dist.all_reduce(t, op=op)
        return t.item()

    def slowest(ms):
        return of_all(ms, dist.ReduceOp.MAX)

    def exposed():
        """For the whole step before the last: DDP computes it in the next forward."""
        log = model._get_ddp_logging_data()
        return 1e-6 * (log["backward_comm_time"] - log["backward_compute_comm_overlap_time"])

    for _ in range(4):
        step()
    alone, whole, added, waited = [], [], [], []
    for _ in range(steps):
        with model.no_sync():
            alone.append(step())
        whole.append(slowest(sum(step())))
        added.append(whole[-1] - slowest(sum(alone[-1])))
        waited.append(of_all(exposed()) / dist.get_world_size())
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
                    "added_ms": median(added),
                    "exposed_ms": median(waited),
                }
            )
        )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
