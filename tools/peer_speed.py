#!/usr/bin/env python3
"""Compares the training speed of Lockstep and PyTorch on the CPU, alternating in one run.

  bazel run -c opt //tools:peer_speed -- --python=/path/to/venv/bin/python [--model=gpt2] [--rounds=3]
                                                  [--dtype=bf16]

--python is an interpreter that has torch; it runs tools/torch_gpt2.py, eagerly and compiled, with 1 thread and
with all. Each round runs every contestant once; a figure is the median over rounds of the run's median step.
The floor is the model's FLOPs (6 N + 6 L C T per token) over the measured GEMM rate of that dtype plus AdamW's
28 bytes per parameter (30 with bf16 weights) over the measured copy bandwidth, from //kernels:bench. With bf16
PyTorch runs under autocast, and Lockstep with train.precision=bf16: both keep f32 originals of the weights.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from array import array
from pathlib import Path

MODELS = {
    # n_layer, n_head, n_embd, vocabulary, bias, batch, sequence, steps
    "shakespeare-char-cpu": (4, 4, 128, 65, False, 12, 64, 60),
    "gpt2": (12, 12, 768, 50304, True, 4, 64, 10),
}


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="an interpreter that imports torch")
    parser.add_argument("--model", choices=MODELS, default="shakespeare-char-cpu")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=0, help="steps per run (default: depends on the model)")
    parser.add_argument("--no_compile", action="store_true", help="leave torch.compile out")
    return parser.parse_args()


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"peer_speed: {' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def ours(binary, model, dtype, steps, scratch, threads):
    layers, heads, width, vocabulary, bias, batch, sequence, _ = model
    tokens = scratch / "train.bin"
    if not tokens.exists():
        draw = random.Random(1)
        for name in ("train.bin", "val.bin"):
            with open(scratch / name, "wb") as file:
                array("H", (draw.randrange(vocabulary) for _ in range(100_000))).tofile(file)
    out = Path(tempfile.mkdtemp(dir=scratch))
    run([binary, f"--out_dir={out}", f"--data.path={tokens}", f"--threads={threads}",
         f"--model.n_layer={layers}", f"--model.n_head={heads}", f"--model.n_embd={width}",
         f"--model.vocab_size={vocabulary}", f"--model.bias={str(bias).lower()}",
         f"--model.block_size={sequence}", "--model.dropout=0", f"--train.batch_size={batch}",
         f"--train.steps={steps}", "--train.eval_every=0", "--train.eval_batches=1",
         "--train.sample_every=0", "--train.sample_tokens=1", "--device=cpu", f"--train.precision={dtype}"])
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(line["ms"] for line in lines[3:] if "loss" in line)


def peer(python, script, model, dtype, steps, threads, compiled):
    layers, heads, width, vocabulary, bias, batch, sequence, _ = model
    command = [python, script, f"--n-layer={layers}", f"--n-head={heads}", f"--n-embd={width}",
               f"--vocab={vocabulary}", f"--seq={sequence}", f"--max-seq={sequence}",
               f"--batch={batch}", f"--steps={steps}", f"--threads={threads}", f"--dtype={dtype}"]
    command += [] if bias else ["--no-bias"]
    command += ["--compile"] if compiled else []
    return json.loads(run(command).splitlines()[-1])["ms_median"]


def floor_ms(bench, model, dtype, scratch):
    layers, _, width, vocabulary, _, batch, sequence, _ = model
    path = scratch / "bench.json"
    name, update = {"fp32": ("f32", 28), "bf16": ("bf16", 30)}[dtype]
    run([bench, "--filter=scale", f"--dtype={name}", "--ms=300", f"--json={path}"])
    peaks = json.loads(path.read_text())
    parameters = 12 * layers * width * width + (vocabulary + sequence) * width
    flops = (6 * parameters + 6 * layers * width * sequence) * batch * sequence
    gemm, copy = peaks["gemm_flops_per_second"][name], peaks["copy_bytes_per_second"]
    return 1000 * (flops / gemm + update * parameters / copy), gemm, copy


def main():
    args = parse_args()
    model = MODELS[args.model]
    steps = args.steps or model[-1]
    tokens = model[5] * model[6]
    cores = os.cpu_count()
    root = Path.cwd()  # the runfiles' root, where bazel run starts
    train, bench, script = root / "models/train_gpt", root / "kernels/bench", root / "tools/torch_gpt2.py"
    threads = sorted({1, cores})
    peers = [(t, c) for c in ([False] if args.no_compile else [False, True]) for t in threads]
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        results = {}
        floors = []
        for _ in range(args.rounds):
            floors.append(floor_ms(bench, model, args.dtype, scratch))
            name = f"Lockstep, {cores} threads"
            results.setdefault(name, []).append(ours(train, model, args.dtype, steps, scratch, cores))
            for t, compiled in peers:
                name = f"PyTorch {'compiled' if compiled else 'eager'}, {t} thread{'s' if t > 1 else ''}"
                results.setdefault(name, []).append(peer(args.python, script, model, args.dtype, steps, t, compiled))
    medians = {name: statistics.median(times) for name, times in results.items()}
    best = min(ms for name, ms in medians.items() if name.startswith("PyTorch"))
    floor, gemm, copy = (statistics.median(column) for column in zip(*floors))
    mine = medians[f"Lockstep, {cores} threads"]
    print(f"| {args.model}, {args.dtype}, {tokens} tokens a step | ms a step | tok/s | PyTorch's best / this |")
    print("|---|---|---|---|")
    for name, ms in sorted(medians.items(), key=lambda item: item[1]):
        print(f"| {name} | {ms:.1f} | {tokens / ms * 1000:,.0f} | {best / ms:.2f} |")
    print(f"floor {floor:.1f} ms (GEMM {gemm / 1e9:.0f} GFLOP/s, copy {copy / 1e9:.1f} GB/s): "
          f"Lockstep is at {100 * floor / mine:.0f}% of it")


if __name__ == "__main__":
    main()
