#!/usr/bin/env python3
"""What checkpoints cost a training run: alternates runs that save at the end alone, every 10 steps, and every 10
steps with checkpoint.async=false.

  bazel build -c opt //models:train_gpt && tools/checkpoint_cost.py bazel-bin/models/train_gpt [options of train_gpt]

Medians over 7 rounds (or as many as the environment variable ROUNDS says): processor time of a whole run, and the
median step; over saves: how long the loop stood still (checkpoint_ms of metrics.jsonl). On a busy machine the wall time
of a run says little.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROUNDS, STEPS, EVERY = int(os.environ.get("ROUNDS", "7")), 200, 10
KINDS = {
    "at the end": ["--checkpoint.every=0"],
    "every 10 steps": [f"--checkpoint.every={EVERY}"],
    "every 10, async=false": [f"--checkpoint.every={EVERY}", "--checkpoint.async=false"],
}


def run(train_gpt, options):
    with tempfile.TemporaryDirectory() as out:
        before = os.times()
        subprocess.run([train_gpt, f"--out_dir={out}/out", f"--train.steps={STEPS}", "--train.eval_every=0",
                        "--train.eval_batches=1", "--train.sample_tokens=0", "--train.log_every=100", *options],
                       check=True, stdout=subprocess.DEVNULL)
        after = os.times()
        with open(f"{out}/out/metrics.jsonl") as file:
            lines = [json.loads(line) for line in file]
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    step = statistics.median(line["ms"] for line in lines if "loss" in line)
    # The first save takes the memory that later ones use.
    saves = [line["checkpoint_ms"] for line in lines if line.get("checkpoint_ms", 0) > 0][1:]
    return cpu, step, saves


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    results = {kind: [] for kind in KINDS}
    for _ in range(ROUNDS):
        for kind, options in KINDS.items():
            results[kind].append(run(sys.argv[1], options + sys.argv[2:]))
    print("| saved | processor time, s | median step, ms | hold-up per save, ms | of the steps between |")
    print("|---|---|---|---|---|")
    for kind, runs in results.items():
        cpu, step = (statistics.median(r[i] for r in runs) for i in range(2))
        saves = [ms for r in runs for ms in r[2]]
        held = statistics.median(saves) if saves else 0
        print(f"| {kind} | {cpu:.2f} | {step:.1f} | {held:.2f} | {100 * held / (EVERY * step):.1f}% |")


if __name__ == "__main__":
    main()
