#!/usr/bin/env python3
"""What sharding costs on a slow link, here and in PyTorch, for PERFORMANCE.md.

    measure_sharded.py --python=PYTHON [--train=bazel-bin/models/train_gpt] [--rate=200] [--rounds=5]

PYTHON has torch. Two ranks with a thread each train the same GPT-2 on the same batches' shapes: ours with
parallel.shard=none, optimizer and full, PyTorch's (tools/torch_gpt2.py) with DDP and FSDP2, each block a unit, over Gloo.
They take turns, --rounds times. A run's figure is the median of its steps after the first three; the table has
the median and the range of the runs' figures.
"""

import argparse
import json
import os
import statistics
import tempfile

from measure import HERE, header, on_link, row

TORCH = os.path.join(HERE, "../../../tools/torch_gpt2.py")
VOCABULARY, LENGTH, SKIP = 96, 64, 3  # those of the embedded corpus and the default model


def ours(options, shard):
    with tempfile.TemporaryDirectory() as out:
        on_link(2, options.rate, [
            options.train, f"--out_dir={out}/run", "--device=cpu", "--threads=1",
            f"--parallel.shard={shard}", f"--model.n_layer={options.layers}",
            f"--model.n_embd={options.width}", "--model.n_head=4", f"--model.block_size={LENGTH}",
            "--model.bias=false", "--model.dropout=0", f"--train.batch_size={options.batch}",
            f"--train.steps={options.steps}", "--train.eval_every=0", "--train.eval_batches=1",
            "--train.sample_every=0", "--train.sample_tokens=1",
        ])  # fmt: skip
        with open(f"{out}/run/metrics.jsonl", encoding="utf-8") as lines:
            steps = [step for step in map(json.loads, lines) if "loss" in step]
    return statistics.median(step["ms"] for step in steps[SKIP:])


def torch(options, shard):
    out = on_link(2, options.rate, [
        options.python, TORCH, "--threads=1", f"--n-layer={options.layers}", f"--n-embd={options.width}",
        "--n-head=4", f"--vocab={VOCABULARY}", f"--seq={LENGTH}", f"--max-seq={LENGTH}", "--no-bias",
        f"--batch={options.batch}", f"--steps={options.steps}", f"--skip={SKIP}", *shard,
    ])  # fmt: skip
    last = json.loads(out.splitlines()[-1])
    return last["ms_median"]


RUNS = {
    "data parallel": lambda options: ours(options, "none"),
    "`parallel.shard=optimizer`": lambda options: ours(options, "optimizer"),
    "`parallel.shard=full`": lambda options: ours(options, "full"),
    "PyTorch: DDP": lambda options: torch(options, []),
    "PyTorch: FSDP2": lambda options: torch(options, ["--shard"]),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", default="bazel-bin/models/train_gpt")
    parser.add_argument("--python", required=True, help="an interpreter that has torch")
    parser.add_argument("--rate", type=int, default=200, help="Mbit/s")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--batch", type=int, default=4, help="sequences per rank and step")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    figures = {name: [] for name in RUNS}
    for _ in range(options.rounds):
        for name, run in RUNS.items():
            figures[name].append(run(options))
    medians = {name: statistics.median(ms) for name, ms in figures.items()}
    header(f"{options.rate} Mbit/s", "ms a step", "runs", "to data parallel here", "FSDP2 / this")
    for name, ms in figures.items():
        row(
            name,
            f"{medians[name]:,.0f}",
            f"{min(ms):,.0f} to {max(ms):,.0f}",
            f"{medians[name] / medians['data parallel']:.2f}",
            f"{medians['PyTorch: FSDP2'] / medians[name]:.2f}",
        )


if __name__ == "__main__":
    main()
