#!/usr/bin/env python3
"""Kills and stops random ranks of train_gpt at random moments, again and again.

    bazel build -c opt //tools:launch //models:train_gpt
    tests/dist/launch/soak.py --kills=100 --stops=20 --pauses=20

Three ranks train under the launcher, with a restart. Each round one of them gets
  kills   SIGKILL: every survivor must name it within --name_limit seconds
  stops   SIGSTOP: every survivor must name it within --heartbeat seconds
  pauses  SIGSTOP, and SIGCONT long before the limit: nothing may happen
Afterwards no process may be left over, and the weights and the optimizer's state must be those of an
undisturbed run, to the bit. Prints a line for each round; exits with 1 if any of them failed.
--name_limit=0 sets no limit.
"""
import argparse
import hashlib
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

RANKS = 3
STEPS = 120
# No rank is hit after this step, so that the run does not end first.
LAST = 100


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--launch", default="bazel-bin/tools/launch")
    parser.add_argument("--train_gpt", default="bazel-bin/models/train_gpt")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--stops", type=int, default=20)
    parser.add_argument("--pauses", type=int, default=20)
    parser.add_argument("--heartbeat", type=int, default=3, help="seconds (dist.heartbeat)")
    parser.add_argument("--name_limit", type=float, default=2.0, help="seconds; 0: none")
    parser.add_argument("--hang_limit", type=float, default=240.0, help="seconds of a round")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


class Run:
    """A launched run, and its ranks' output with times."""

    def __init__(self, args, out, restarts, heartbeat):
        command = [os.path.abspath(args.launch), f"--nproc={RANKS}", f"--max_restarts={restarts}",
                   "--", "bash", "-c", 'echo process $$; exec "$@"', "rank",
                   os.path.abspath(args.train_gpt), f"--out_dir={out}", f"--train.steps={STEPS}",
                   "--device=cpu", "--model.n_layer=2", "--model.n_head=2", "--model.n_embd=32",
                   "--model.block_size=32", "--train.batch_size=2", "--train.global_batch_size=12",
                   "--train.eval_every=0", "--train.sample_tokens=0", "--train.log_every=1",
                   "--checkpoint.every=10", "--dist.reduction=ordered", "--dist.bucket_mib=0.02",
                   "--dist.first_bucket_mib=0.01", f"--dist.heartbeat={heartbeat}", "--threads=1"]
        self.lines = []  # (time, text)
        self.changed = threading.Condition()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True, errors="replace")
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append((time.monotonic(), line.rstrip("\n")))
                self.changed.notify_all()
        with self.changed:
            self.lines.append((time.monotonic(), None))
            self.changed.notify_all()

    def wait_for(self, pattern, limit, begin=0):
        """(index, time, match) of the first matching line from `begin` on; None at the end."""
        deadline, at = time.monotonic() + limit, begin
        with self.changed:
            while True:
                for i in range(at, len(self.lines)):
                    when, text = self.lines[i]
                    if text is None:
                        return None
                    match = re.search(pattern, text)
                    if match:
                        return i, when, match
                at = len(self.lines)
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self.changed.wait(left)

    def text(self):
        return "\n".join(text for _, text in self.lines if text is not None)


def state_hash(out):
    digest = hashlib.sha256()
    step = pathlib.Path(out) / "checkpoints" / f"step-{STEPS:08d}"
    for name in ("model.safetensors", "optimizer.safetensors"):
        digest.update((step / name).read_bytes())
    return digest.hexdigest()


def runs(pid):
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


class Round:
    def __init__(self, args, kind, rng, folder, expected):
        self.args, self.kind, self.expected = args, kind, expected
        self.victim = rng.randrange(RANKS)
        self.step = rng.randrange(1, LAST)
        self.after = rng.random() * 0.03
        self.pause = rng.uniform(0.1, 1.5)
        self.out = os.path.join(folder, "out")
        self.problems = []
        self.named = []

    def play(self):
        heartbeat = 60 if self.kind == "pauses" else self.args.heartbeat
        run = Run(self.args, self.out, restarts=1, heartbeat=heartbeat)
        try:
            pids = [int(run.wait_for(rf"^\[{r}\] process (\d+)$", 60)[2][1]) for r in range(RANKS)]
            if not run.wait_for(rf"^\[0\] step +{self.step}/{STEPS} ", self.args.hang_limit):
                self.problems.append("the run did not reach its step")
                return
            time.sleep(self.after)
            self.hit(run, pids[self.victim])
            try:
                code = run.process.wait(self.args.hang_limit)
            except subprocess.TimeoutExpired:
                self.problems.append("hang")
                return
            run.reader.join(30)
            if code != 0:
                self.problems.append(f"exit code {code}")
            pids += [int(m) for m in re.findall(r"^\[\d+\] process (\d+)$", run.text(), re.M)]
            left = [pid for pid in pids if runs(pid)]
            if left:
                self.problems.append(f"left over: {left}")
            restarted = "restarting all ranks" in run.text()
            if restarted == (self.kind == "pauses"):
                self.problems.append("there was a restart" if restarted else "there was no restart")
            if not self.problems and state_hash(self.out) != self.expected:
                self.problems.append("weights differ from the undisturbed run's")
        finally:
            if run.process.poll() is None:
                run.process.kill()
                run.process.wait()
            self.text = run.text()

    def hit(self, run, pid):
        with run.changed:
            begin = len(run.lines)
        now = time.monotonic()
        os.kill(pid, signal.SIGKILL if self.kind == "kills" else signal.SIGSTOP)
        if self.kind == "pauses":
            time.sleep(self.pause)
            os.kill(pid, signal.SIGCONT)
            return
        v = self.victim
        limit = self.args.heartbeat if self.kind == "stops" else self.args.name_limit
        for r in range(RANKS):
            if r == v:
                continue
            # A survivor must say which rank is gone or stalled.
            found = run.wait_for(rf"^\[{r}\] train_gpt: .*rank {v} is (gone|stalled)",
                                 self.args.hang_limit, begin)
            if not found:
                self.problems.append(f"rank {r} did not name rank {v}")
                continue
            self.named.append(found[1] - now)
            if self.args.name_limit and self.named[-1] > limit:
                self.problems.append(f"rank {r} named rank {v} after {self.named[-1]:.2f} s")


def main():
    args = arguments()
    rng = random.Random(args.seed)
    folder = tempfile.mkdtemp(prefix="soak-")
    failed = 0
    try:
        straight = Run(args, os.path.join(folder, "straight"), restarts=0, heartbeat=60)
        if straight.process.wait(args.hang_limit) != 0:
            sys.exit("the undisturbed run failed:\n" + straight.text())
        expected = state_hash(os.path.join(folder, "straight"))
        print(f"undisturbed: {expected[:16]}", flush=True)
        for kind in ("kills", "stops", "pauses"):
            named, count = [], getattr(args, kind)
            for i in range(count):
                shutil.rmtree(os.path.join(folder, "out"), ignore_errors=True)
                r = Round(args, kind, rng, folder, expected)
                r.play()
                named += r.named
                after = ", ".join(f"{t:.2f} s" for t in r.named)
                print(f"{kind} {i + 1}/{count}: rank {r.victim} after step {r.step}"
                      f"{': named after ' + after if after else ''}: "
                      f"{'; '.join(r.problems) or 'ok'}", flush=True)
                if r.problems:
                    failed += 1
                    print(r.text, flush=True)
            if named:
                print(f"{kind}: {len(named)} times named, median {statistics.median(named):.2f} s, "
                      f"slowest {max(named):.2f} s", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{failed} rounds failed" if failed else "all rounds ok")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
