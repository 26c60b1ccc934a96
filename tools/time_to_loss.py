#!/usr/bin/env python3
"""How soon is a model good? Seconds of training to a validation loss, beside nanoGPT's recipe in PyTorch.

  bazel run -c opt //tools:time_to_loss -- --python=/path/to/venv/bin/python --text=$PWD/input.txt [--seeds=5]
                                           [--page=$PWD/loss.html] [-- OPTION OF train_gpt ...]

--python is an interpreter that has torch; it runs tools/nanogpt_recipe.py, eagerly or compiled, with 1 thread or
all, whichever a short trial shows to be fastest. The recipes take turns, each with a seed of its own each time. The
target is the peer's own final loss, in the mean over its seeds, or --target. A recipe reaches the target if the
mean of its final losses is at or below it at p < 0.01 (a t-test over the seeds, as for modded-nanogpt's records):
so our run is one of fixed length, whose options, --train.steps among them, stand after `--`. Its validation loss is
over the same windows. Evaluations, samples and checkpoints do not count as training, on either side.
"""
import argparse
import html
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path


def parse_args():
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="an interpreter that imports torch")
    parser.add_argument("--text", required=True, help="a text file; both read it by characters")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--target", type=float, help="a validation loss (default: the peer's own final one)")
    parser.add_argument("--steps", type=int, default=2000, help="of the peer")
    parser.add_argument("--page", help="write a page with all curves, loss over seconds")
    args = parser.parse_args(sys.argv[1:at])
    args.ours = sys.argv[at + 1:]
    return args


def run(command):
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"time_to_loss: {' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def peer(args, script, variant, seed, *more):
    lines = run([args.python, script, f"--text={args.text}", f"--seed={seed}", *variant, *more]).splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def fastest(args, script):
    """The options with which PyTorch is fastest here."""
    variants = [[f"--threads={threads}", *compiled] for threads in sorted({1, os.cpu_count()})
                for compiled in ([], ["--compile"])]
    return min(variants, key=lambda v: peer(args, script, v, 1, "--steps=60", "--eval-every=0")[-1]["seconds"])


def ours(args, binary, seed, folder):
    out = Path(folder) / f"seed-{seed}"
    run([binary, f"--data.path={args.text}", f"--seed={seed}", f"--out_dir={out}", "--train.eval_batches=0",
         "--train.sample_tokens=0", "--device=cpu", *args.ours])
    seconds, curve = 0.0, []
    for line in map(json.loads, (out / "metrics.jsonl").read_text().splitlines()):
        seconds += line.get("ms", 0) / 1000
        if "val_loss" in line:
            curve.append({"step": line["step"], "seconds": seconds, "loss": line["val_loss"]})
    return curve


def chance(losses, target):
    """p of a one-sided t-test: how probable such losses are if their true mean is above the target."""
    n, spread = len(losses), statistics.stdev(losses)
    if spread == 0:
        return 0.0 if losses[0] < target else 1.0
    t, df = (target - statistics.mean(losses)) / (spread / math.sqrt(n)), n - 1
    # Student's density, integrated from 0 to t by Simpson's rule.
    scale = math.gamma((df + 1) / 2) / (math.sqrt(df * math.pi) * math.gamma(df / 2))
    steps, end = 2000, min(abs(t), 200.0)
    points = [scale * (1 + (end * i / steps) ** 2 / df) ** (-(df + 1) / 2) for i in range(steps + 1)]
    area = end / steps / 3 * (points[0] + points[-1] + 4 * sum(points[1:-1:2]) + 2 * sum(points[2:-1:2]))
    return 0.5 - area if t > 0 else 0.5 + area


def page(curves, target):
    """An HTML page: a polyline for each run."""
    width, height, pad = 860, 420, 60
    points = [q for _, runs in curves for curve in runs for q in curve]
    last = max(q["seconds"] for q in points) or 1
    low = min(min(q["loss"] for q in points), target)
    high = min(max(q["loss"] for q in points), low + 1.5)
    x = lambda s: pad + s / last * (width - 2 * pad)
    y = lambda v: height - pad - (min(v, high) - low) / (high - low) * (height - 2 * pad)
    lines = [f'<line x1="{pad}" x2="{width - pad}" y1="{y(target):.1f}" y2="{y(target):.1f}" stroke="gray" '
             f'stroke-dasharray="4"/><text x="{width - pad}" y="{y(target) - 5:.1f}" text-anchor="end">target '
             f'{target:.3f}</text>']
    for (name, runs), colour in zip(curves, ("#c2410c", "#1d4ed8")):
        for curve in runs:
            places = " ".join(f'{x(q["seconds"]):.1f},{y(q["loss"]):.1f}' for q in curve)
            lines.append(f'<polyline points="{places}" fill="none" stroke="{colour}"/>')
        end = runs[0][-1]
        lines.append(f'<text x="{x(end["seconds"]):.1f}" y="{y(end["loss"]) + 18:.1f}" text-anchor="end" '
                     f'fill="{colour}">{html.escape(name)}</text>')
    for i in range(6):
        s, v = last * i / 5, low + (high - low) * i / 5
        lines.append(f'<text x="{x(s):.1f}" y="{height - pad + 20}" text-anchor="middle">{s:.0f} s</text>')
        lines.append(f'<text x="{pad - 8}" y="{y(v) + 4:.1f}" text-anchor="end">{v:.2f}</text>')
    return ('<!doctype html><meta charset="utf-8"><title>Time to loss</title><h1>Validation loss over seconds of '
            f'training</h1><svg viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">'
            + "".join(lines) + "</svg>\n")


def main():
    args = parse_args()
    if args.seeds < 2:
        sys.exit("time_to_loss: --seeds must be at least 2: a t-test needs a spread")
    root = Path.cwd()  # the runfiles' root, where bazel run starts
    script, binary = root / "tools/nanogpt_recipe.py", root / "models/train_gpt"
    variant = fastest(args, script)
    name = f"nanoGPT's recipe, PyTorch ({' '.join(variant)})"
    curves = {name: [], "Lockstep": []}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1, args.seeds + 1):
            curves[name].append(peer(args, script, variant, seed, f"--steps={args.steps}"))
            curves["Lockstep"].append(ours(args, binary, seed, folder))
            print(f"seed {seed}: " + ", ".join(f"{runs[-1][-1]['loss']:.4f} after {runs[-1][-1]['seconds']:.1f} s"
                                               for runs in curves.values()), flush=True)
    finals = {who: [curve[-1]["loss"] for curve in runs] for who, runs in curves.items()}
    seconds = {who: statistics.mean(curve[-1]["seconds"] for curve in runs) for who, runs in curves.items()}
    target = args.target if args.target is not None else statistics.mean(finals[name])
    print(f"| {args.seeds} seeds | seconds of training | final validation loss | spread | p (above {target:.4f}) |")
    print("|---|---|---|---|---|")
    for who, losses in finals.items():
        print(f"| {who} | {seconds[who]:.1f} | {statistics.mean(losses):.4f} | {statistics.stdev(losses):.4f} | "
              f"{chance(losses, target):.2g} |")
    reached = chance(finals["Lockstep"], target) < 0.01
    print(f"Lockstep takes {seconds['Lockstep']:.1f} s for {seconds[name]:.1f}: {seconds[name] / seconds['Lockstep']:.1f} "
          f"times as soon{'' if reached else ', but it does not reach the target: give it more steps'}.")
    if args.page:
        Path(args.page).write_text(page(list(curves.items()), target), encoding="utf-8")
    sys.exit(0 if reached else 1)


if __name__ == "__main__":
    main()
