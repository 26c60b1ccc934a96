#!/usr/bin/env python3
"""Kills and stops random ranks of one elastic run, again and again.

    bazel build -c opt //tools:launch //models:train_gpt
    tests/dist/launch/elastic_soak.py --kills=200 --stops=20

Four ranks train under launch --elastic, and must never begin again: those that live go on, and those that were killed are started again and join. Rank 0 is hit as often as
any. At the end the weights and the optimizer's state must be those of an undisturbed run, to the
bit, no step may be lost, and no checkpoint may have been read. Prints how long no step was made
after each hit; exits with 1 if anything failed.
"""
import argparse
import hashlib
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

RANKS = 4


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--launch", default="bazel-bin/tools/launch")
    parser.add_argument("--train_gpt", default="bazel-bin/models/train_gpt")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--stops", type=int, default=10)
    parser.add_argument("--steps", type=int, default=0, help="of the run; 0: enough")
    parser.add_argument("--heartbeat", type=int, default=3, help="seconds (dist.heartbeat)")
    parser.add_argument("--median", type=float, default=2.0, help="limit, seconds; 0: none")
    parser.add_argument("--most", type=float, default=5.0, help="limit, seconds; 0: none")
    parser.add_argument("--gap", type=float, default=0.5, help="most seconds between a join and the next hit")
    parser.add_argument("--spare", action="store_true",
                        help="never hit the first process, whose memory, threads and descriptors must not grow")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--machine", action="append", default=[],
                        help="a command that runs its arguments on a machine; the first is 10.78.0.1")
    parser.add_argument("--stop_launcher", action="store_true",
                        help="at the end stop the last machine's launcher, whose ranks must then end")
    parser.add_argument("--straight", type=int, default=1, help="processes of the undisturbed run")
    parser.add_argument("--option", action="append", default=[], help="one more for train_gpt")
    return parser.parse_args()


def commands(args, out, steps, elastic):
    """Of each machine."""
    train = [os.path.abspath(args.train_gpt)] + [
        f"--out_dir={out}", f"--train.steps={steps}", "--device=cpu", "--model.n_layer=2",
        "--model.n_head=2", "--model.n_embd=32", "--model.block_size=32", "--train.batch_size=2",
        "--train.global_batch_size=8", "--train.eval_every=40", "--train.eval_batches=4",
        "--train.sample_tokens=0", "--train.log_every=1", "--checkpoint.every=25",
        "--dist.reduction=ordered", "--dist.bucket_mib=0.02", "--dist.first_bucket_mib=0.01",
        f"--dist.heartbeat={args.heartbeat}", "--threads=1",
        f"--dist.elastic={'true' if elastic else 'false'}"] + args.option
    if not elastic:
        return [train + [f"--nproc={args.straight}"] if args.straight > 1 else train]
    launch = [os.path.abspath(args.launch), "--elastic", "--max_restarts=100000"]
    if not args.machine:
        return [launch + [f"--nproc={RANKS}", "--"] + train]
    count = len(args.machine)
    return [shlex.split(machine) + launch + [f"--nnodes={count}", f"--node_rank={node}", "--rdzv=10.78.0.1:29500",
                                             f"--nproc={RANKS // count}", "--"] + train
            for node, machine in enumerate(args.machine)]


def state_hash(out, steps):
    digest = hashlib.sha256()
    step = pathlib.Path(out) / "checkpoints" / f"step-{steps:08d}"
    for name in ("model.safetensors", "optimizer.safetensors"):
        digest.update((step / name).read_bytes())
    return digest.hexdigest()


def losses(out):
    lines = (pathlib.Path(out) / "metrics.jsonl").read_text().splitlines()
    return [(j["step"], j.get("loss"), j.get("val_loss")) for j in map(json.loads, lines)]


def children(pids):
    """The ranks' processes."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) in pids and fields[0] not in "Z":
            found.append(int(entry.name))
    return sorted(found)


def size_of(pid):
    """Descriptors, threads and resident KiB."""
    folder = pathlib.Path(f"/proc/{pid}")
    return (len(list((folder / "fd").iterdir())), len(list((folder / "task").iterdir())),
            int((folder / "statm").read_text().split()[1]) * 4)


class Run:
    def __init__(self, commands):
        self.lines, self.progress = [], time.monotonic()
        self.step, self.world = 0, 1
        self.gaps = []  # (end, seconds) without a step
        self.processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                           errors="replace") for command in commands]
        self.readers = [threading.Thread(target=self.read, args=[p], daemon=True) for p in self.processes]
        for reader in self.readers:
            reader.start()

    def ranks(self):
        return children([p.pid for p in self.processes])

    def runs(self):
        return all(p.poll() is None for p in self.processes)

    def read(self, process):
        for line in process.stdout:
            self.lines.append(line.rstrip("\n"))
            world = re.search(r"world (\d+) of (\d+) rank", line)
            if world:
                self.world, self.size = int(world[1]), int(world[2])
            step = re.search(r"step +(\d+)/", line)
            if step:
                now = time.monotonic()
                self.gaps.append((now, now - self.progress))
                self.progress, self.step = now, int(step[1])


def main():
    args = arguments()
    rng = random.Random(args.seed)
    folder = tempfile.mkdtemp(prefix="elastic-soak-")
    steps = args.steps or 400 + 120 * (args.kills + args.stops)
    problems = []
    if args.spare:
        # Each world has threads of its own, and glibc gives threads arenas, which fill up one by one.
        os.environ["MALLOC_ARENA_MAX"] = "1"
    begin = time.monotonic()
    run = Run(commands(args, os.path.join(folder, "out"), steps, elastic=True))
    stalls = {signal.SIGKILL: [], signal.SIGSTOP: []}
    hits = [signal.SIGKILL] * args.kills + [signal.SIGSTOP] * args.stops
    rng.shuffle(hits)
    try:
        while run.step < 1 and run.runs():
            time.sleep(0.01)
        spared, sizes = run.ranks()[:1], []
        for number, kind in enumerate(hits):
            time.sleep(rng.random() * args.gap)
            ranks = run.ranks()
            if not run.runs() or not ranks:
                problems.append(f"the run ended before hit {number}")
                break
            if args.spare:
                ranks.remove(spared[0])
            victim = rng.choice(ranks)
            at = time.monotonic()
            step = run.step
            try:
                os.kill(victim, kind)
            except ProcessLookupError:
                continue
            # Until there is progress again, and all are there again.
            deadline = at + 120
            while time.monotonic() < deadline and run.runs():
                time.sleep(0.01)
                here = run.ranks()
                if victim not in here and len(here) == RANKS and run.step > step and run.progress > at + 0.05:
                    break
            else:
                if run.runs():
                    problems.append(f"hang after hit {number}")
                break
            if args.spare:
                sizes.append(size_of(spared[0]))
            stalls[kind].append(max((gap for end, gap in run.gaps if end > at), default=0))
        if args.stop_launcher and run.runs():
            launcher, step = run.processes.pop(), run.step
            launcher.send_signal(signal.SIGSTOP)
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and (children([launcher.pid]) or run.step < step + 3):
                time.sleep(0.1)
            if children([launcher.pid]):
                problems.append("the ranks of a stopped launcher live on")
            launcher.kill()
        if args.spare:
            half = len(sizes) // 2
            # Connections that are just being made come and go.
            early, late = ([statistics.median(c) for c in zip(*part)] for part in (sizes[:half], sizes[half:]))
            print(f"descriptors, threads, KiB of the spared process: {early}, then {late}")
            if late[0] > early[0] or late[1] > early[1] or late[2] > early[2] + 4096:
                problems.append("the spared process grows")
        codes = [p.wait(1200) for p in run.processes]
        for reader in run.readers:
            reader.join(30)
        if any(codes):
            problems.append(f"exit codes {codes}")
        if run.step < steps:
            problems.append(f"it ended after step {run.step} of {steps}")
        straight = subprocess.run(commands(args, os.path.join(folder, "straight"), steps, elastic=False)[0],
                                  capture_output=True, text=True)
        if straight.returncode != 0:
            problems.append("the undisturbed run failed:\n" + straight.stdout + straight.stderr)
        elif not problems:
            if state_hash(os.path.join(folder, "out"), steps) != state_hash(os.path.join(folder, "straight"), steps):
                problems.append("weights differ from the undisturbed run's")
            a, b = losses(os.path.join(folder, "out")), losses(os.path.join(folder, "straight"))
            if a != b:
                at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
                problems.append(f"metrics differ from line {at}: {a[at:at + 2]} and {b[at:at + 2]}")
        text = "\n".join(run.lines)
        if re.search(r"resum", text):
            problems.append("a checkpoint was read")
    finally:
        for process in run.processes:
            if process.poll() is None:
                process.kill()
        if problems:
            print("\n".join(run.lines[-200:]))
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"{len(stalls[signal.SIGKILL])} kills, {len(stalls[signal.SIGSTOP])} stops, {steps} steps, "
          f"{run.world} worlds, {time.monotonic() - begin:.0f} s")
    for kind, name, extra in ((signal.SIGKILL, "kills", 0), (signal.SIGSTOP, "stops", args.heartbeat)):
        if stalls[kind]:
            median, most = statistics.median(stalls[kind]), max(stalls[kind])
            print(f"{name}: without a step {median:.2f} s in the median, {most:.2f} s at most")
            if args.median and median > args.median + extra or args.most and most > args.most + extra:
                problems.append(f"{name}: that is too long")
    for problem in problems:
        print(problem)
    print("all ok" if not problems else "FAILED")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
