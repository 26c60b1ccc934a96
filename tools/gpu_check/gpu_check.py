#!/usr/bin/env python3
"""Checks and measures Lockstep on this machine's GPU, without Bazel. Part of the bundle.

  bazel build -c opt --config=cuda //tools:bundle    # bazel-bin/tools/lockstep-bundle.tar.gz
  tar xf lockstep-bundle.tar.gz && lockstep/gpu_check [--budget=540] [--only=ops,speed/b16] [--out=gpu_check.json]

It plays small slices, the most valuable first, and writes each result as soon as it is known: the figures into
the JSON file, logs and the programs' own files into an archive beside it (gpu_check.tar.gz). Called again with
the same --out it goes on: what was stopped comes first, then what has not run, then what failed or was skipped.
With --budget=SECONDS it starts nothing that would not fit and ends in time; killed, it loses the slice that ran.
At the end it prints a table, a line a part, and of what failed where its log is and what to do. The programs in
lockstep/bin find what it found after `source env.sh`, a file that it writes beside the JSON file.

--simulated rehearses everything on a simulated GPU (a bundle built without --config=cuda), with little work and
PyTorch on the CPU. Exits with 0 if all has passed or cannot run here, 1 if something failed, 2 if nothing could be
run, 3 if nothing failed and something is left. Needs Python 3.9 only; with torch in it (or in --python), losses
and training speed stand beside PyTorch's.
"""
import argparse
import contextlib
import os
import shlex
import signal
import sys
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Callable, NamedTuple

import host
import parts
import ranks
from record import Record
from runner import HERE, Clock, Failed, Runner, Skip, Unfinished


class Slice(NamedTuple):
    run: Callable
    seconds: int  # its expected duration on a GPU
    simulated_seconds: int

    def expected(self, simulated):
        return self.simulated_seconds if simulated else self.seconds


_ONE_OP = "lockstep/bin/op_test --gtest_filter=NAME repeats one test; the log names op, sample and dtype"
# What to do when a slice of the part fails.
FIXES = {
    "loader": "the log has the output of train_gpt",
    "peaks": "lockstep/bin/bench --filter=scale repeats it",
    "smoke": "LOCKSTEP_CUDA_SYNC=1 lockstep/gpu_check --only=smoke names the kernel that failed; see the parts ops and "
             "train, too",
    "bits": "cuBLASLt gives different bits for equal calls: the archive's bench.json names the product",
    "speed": "see the part train first; a GPU with less memory needs a smaller batch",
    "train": "see the parts ops and cudnn first; --train.cuda_graphs=false and LOCKSTEP_ATTENTION=flash tell whether "
             "graphs or cuDNN make the difference, and runs that only poison changes read what nobody has written",
    "parity": "see the parts ops and gradients first: a kernel is wrong at this shape",
    "kernels": "lockstep/bin/bench --filter=OP repeats one",
    "cudnn": f"LOCKSTEP_ATTENTION=flash trains without cuDNN; {_ONE_OP}",
    "ops": _ONE_OP,
    "gradients": "lockstep/bin/gradcheck --filter=OP repeats one op; the log names it",
    "ranks": "the log has what each rank said, NCCL's warnings among it; the GPU's compute mode must be Default "
             "(nvidia-smi --compute-mode=0), so that two processes may use it",
    "sanitizer": "the log names kernel, thread and address",
}
_COMPILED = ("--compile",)
_FLASH = {"LOCKSTEP_ATTENTION": "flash"}
# By name, PART/WHAT or PART, the most valuable first: the first ten minutes tell whether results are right, then how
# fast they come and what may make them faster.
SLICES = {
    "loader": Slice(parts.loader, 10, 2),
    "smoke": Slice(parts.smoke, 20, 2),
    "ops/attention": Slice(partial(parts.ops, group="attention"), 60, 5),
    "cudnn": Slice(parts.cudnn, 40, 5),
    "ops/rows": Slice(partial(parts.ops, group="rows"), 60, 5),
    "parity/fp32": Slice(parts.parity, 25, 6),
    "speed/b16": Slice(partial(parts.speed, batch=16), 20, 2),
    "train/124M": Slice(parts.train_gpt2, 45, 2),
    "kernels/step": Slice(parts.step_kernels, 30, 8),
    "speed/b16-torch-compiled-cudnn": Slice(
        partial(parts.peer_speed, batch=16, more=(*_COMPILED, "--cudnn-attention")), 80, 2),
    "speed/b16-eager": Slice(partial(parts.speed, batch=16, more=("--train.cuda_graphs=false",)), 20, 2),
    "peaks": Slice(parts.peaks, 15, 5),
    "ops/products": Slice(partial(parts.ops, group="products"), 60, 5),
    **{f"speed/b16-workspace-{mib}": Slice(partial(parts.speed_in_workspace, batch=16, mib=mib), 20, 2)
       for mib in (24, 48, 96)},
    **{f"gradients/{group}": Slice(partial(parts.gradients, group=group), 40, 2) for group in parts.OPS},
    "ops/rest": Slice(partial(parts.ops, group="rest"), 60, 5),
    "ranks/bits": Slice(ranks.bits, 60, 10),
    "ranks/failures": Slice(ranks.failures, 90, 40),
    "ranks/two-gpus": Slice(ranks.two_gpus, 40, 10),
    "speed/b64": Slice(partial(parts.speed, batch=64), 30, 2),
    "sanitizer/memcheck": Slice(partial(parts.sanitizer, kind="memcheck"), 100, 1),
    "sanitizer/racecheck": Slice(partial(parts.sanitizer, kind="racecheck"), 100, 1),
    "train/bf16": Slice(partial(parts.train, precision="bf16"), 25, 4),
    "train/fp32": Slice(partial(parts.train, precision="fp32"), 25, 4),
    "parity/bf16": Slice(parts.parity_bf16, 40, 8),
    "bits": Slice(parts.bits, 30, 2),
    "speed/b16-torch-compiled": Slice(partial(parts.peer_speed, batch=16, more=_COMPILED), 60, 20),
    "speed/b16-torch": Slice(partial(parts.peer_speed, batch=16), 20, 5),
    "speed/b16-flash": Slice(partial(parts.speed, batch=16, environment=_FLASH), 20, 2),
    "kernels/ncu": Slice(parts.ncu, 60, 3),
    "speed/b64-torch-compiled-cudnn": Slice(
        partial(parts.peer_speed, batch=64, more=(*_COMPILED, "--cudnn-attention")), 90, 2),
    "speed/b64-torch-compiled": Slice(partial(parts.peer_speed, batch=64, more=_COMPILED), 70, 20),
    "speed/b8": Slice(partial(parts.speed, batch=8), 20, 2),
    "speed/b8-torch-compiled-cudnn": Slice(
        partial(parts.peer_speed, batch=8, more=(*_COMPILED, "--cudnn-attention")), 80, 2),
    "speed/b8-torch-compiled": Slice(partial(parts.peer_speed, batch=8, more=_COMPILED), 60, 20),
    "speed/b8-torch": Slice(partial(parts.peer_speed, batch=8), 20, 5),
    "speed/b8-fp32": Slice(partial(parts.speed, batch=8, precision="fp32"), 30, 2),
    "kernels/attention-flash": Slice(
        partial(parts.step_kernels, more=("--filter=attention",), environment=_FLASH), 10, 2),
    "kernels/attention-d128": Slice(
        partial(parts.step_kernels, heads=6, more=("--filter=attention",)), 10, 2),
    "kernels/step-b64": Slice(partial(parts.step_kernels, batch=64), 60, 10),
    "kernels/ops": Slice(parts.ops_bench, 120, 5),
}
SUMMARIES = {"speed": parts.summary_of_speed}  # a part -> additional text from all of its slices


def part_of(name):
    return name.split("/")[0]


def turn(known):
    """A slice's rank, from what is known of it: lower runs first, and the order of value decides among equals. A slice
    that was stopped twice must not keep the others from running."""
    state, tries = known.get("state"), known.get("tries", 0)
    if state == "unfinished":
        return 0 if tries < 2 else 4
    return {None: 1, "failed": 2, "skipped": 3}[state]


def play(name, one, runner, record, patience):
    """Runs a slice. Its state is recorded before it begins, so that after a kill one knows what was running."""
    before = record.slices.get(name, {})
    tries = before.get("tries", 0) + 1 if before.get("state") == "unfinished" else 1
    record.slices[name] = {"state": "unfinished", "text": "was running when gpu_check was killed", "tries": tries,
                           "seconds": 0}
    record.write()
    begin = time.monotonic()
    # A slice that was stopped before gets more time.
    runner.clock.limit = begin + (60 + 3 * one.expected(runner.simulated)) * patience * tries
    runner.kept, runner.figures = {}, {}
    log = ""
    try:
        values, text = one.run(runner)
        done = {"state": "passed", "text": text, "values": values}
    except Skip as reason:
        done = {"state": "skipped", "text": str(reason)}
    except Unfinished as reason:
        done = {"state": "unfinished", "text": str(reason), "tries": tries}
    except Failed as error:
        done = {"state": "failed", "text": str(error), "fix": error.fix or FIXES[part_of(name)]}
        log = error.log
    # The output of some program could not be understood.
    except Exception:
        log = traceback.format_exc()
        done = {"state": "failed", "text": log.splitlines()[-1], "fix": FIXES[part_of(name)]}
    if done["state"] in ("failed", "unfinished") and runner.figures:
        done["values"] = runner.figures  # what was measured before
    done["seconds"] = round(time.monotonic() - begin, 1)
    done["on"] = runner.machine["name"]
    if log:
        runner.kept["log"] = log.encode()
        done["last_lines"] = log.splitlines()[-12:]
    files = record.keep(name, runner.kept)
    if runner.kept:
        done["files"] = files
    record.slices[name] = done
    record.write()
    if runner.kept:
        record.write_archive()
    print(f"{name}: {done['state']} in {done['seconds']} s: {done['text']}", file=sys.stderr, flush=True)


def play_all(names, runner, record, args):
    """Runs what has not passed, as far as time allows."""
    started = False
    for name in sorted(names, key=lambda n: turn(record.slices.get(n, {}))):
        if runner.clock.why_stop():
            return
        # An earlier run, even a stopped one, tells best how long a slice takes. A slice that fits
        # no budget is tried with all of it.
        expected = max(SLICES[name].expected(args.simulated), record.slices.get(name, {}).get("seconds", 0))
        if started and expected > runner.clock.left():
            continue
        started = True
        with tempfile.TemporaryDirectory(dir=runner.scratch) as folder:
            runner.folder = Path(folder)
            play(name, SLICES[name], runner, record, args.patience)


def tell(record, names, machine, seconds, command):
    """Prints the table and what to do; `command` repeats this call, but for what is to run."""
    print(f"on {machine}, {seconds:.0f} s; all figures are in {record.path}, logs and files in {record.archive}")
    print(f"{'part':<10} {'passed':>6} {'failed':>6} {'skipped':>7} {'left':>4} {'seconds':>8}")
    for part in dict.fromkeys(map(part_of, names)):
        wanted = [name for name in names if part_of(name) == part]
        slices = {name: record.slices[name] for name in wanted if name in record.slices}
        states = [done["state"] for done in slices.values()]
        counts = [states.count(state) for state in ("passed", "failed", "skipped")]
        said = [f"{name[len(part) + 1:]} {done['text']}".strip() for name, done in slices.items()
                if done["state"] == "passed" and done["text"]]
        said += SUMMARIES.get(part, lambda _: [])(slices)
        spent = sum(done["seconds"] for done in slices.values())
        print("{:<10} {:>6} {:>6} {:>7} {:>4} {:>8.1f}  {}".format(part, *counts, len(wanted) - sum(counts), spent,
                                                                  "; ".join(said)))
    known = {name: record.slices[name] for name in names if name in record.slices}
    for name, done in known.items():
        if done["state"] in ("skipped", "unfinished"):
            print(f"{name} {done['state']}: {done['text']}")
    for name, done in known.items():
        if done["state"] == "failed":
            print(f"{name} failed: {done['text']}\n  {done['fix']}")
            if "files" in done:
                print(f"  its log: tar xOf {record.archive} {done['files']}/log")
            print(f"  again: {command} --only={name}")
    left = [name for name in names if known.get(name, {"state": "unfinished"})["state"] == "unfinished"]
    if left:
        print(f"left for the next call: {', '.join(left)}")
    return 1 if any(done["state"] == "failed" for done in known.values()) else 3 if left else 0


def prepare(args):
    """The machine, the bundle and the programs' environment; Failed names everything that is missing."""
    bundle = host.read_bundle()
    environment = host.find_cuda(args.python, bundle)
    machine, no_gpu = None, []
    try:
        machine = host.describe_machine(args.simulated)
    except Failed as error:
        no_gpu = [(str(error), error.fix)]
    problems = host.check_host(args.simulated, bundle, machine, environment) + no_gpu
    if not problems and not args.simulated:
        problems = host.cuda_problems(environment)
    if problems:
        raise Failed("\n".join(f"gpu_check: {what}\n  {fix}" for what, fix in problems))
    return bundle, machine, environment


def chosen(only, parser):
    """The slices that --only names, by themselves or by their part, in its order."""
    names = []
    for wanted in filter(None, only.split(",")):
        of_it = [name for name in SLICES if wanted in (name, part_of(name))]
        if not of_it:
            parser.error(f"--only: there is no part or slice '{wanted}'; choose from {', '.join(FIXES)} and "
                         f"{', '.join(name for name in SLICES if '/' in name)}")
        names += of_it
    return list(dict.fromkeys(names)) or list(SLICES)


def command_of(args, parser):
    """The command that calls gpu_check with the same files and interpreter."""
    given = [f"--{name}={getattr(args, name)}" for name in ("out", "python")
             if getattr(args, name) != parser.get_default(name)]
    return shlex.join([str(HERE / "gpu_check"), *(["--simulated"] if args.simulated else []), *given])


def above_zero(text):
    with contextlib.suppress(ValueError):
        if float(text) > 0:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text} is not a number above 0")


def main():
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulated", action="store_true", help="rehearse on a simulated GPU")
    parser.add_argument("--out", default="gpu_check.json", help="the JSON file (default: %(default)s)")
    parser.add_argument("--budget", type=above_zero, default=0, help="end within this many seconds (default: no limit)")
    parser.add_argument("--only", default="", help=f"parts of {','.join(FIXES)}, or slices (default: all)")
    parser.add_argument("--again", action="store_true", help="also run slices that have passed")
    parser.add_argument("--patience", type=above_zero, default=1, help="multiplies the slices' time limits (default: 1)")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that imports torch")
    args = parser.parse_args()
    if "/" in args.python:
        args.python = os.path.abspath(args.python)  # slices run in folders of their own
    clock = Clock(args.budget)
    names = chosen(args.only, parser)
    try:
        bundle, machine, environment = prepare(args)
        record = Record(Path(args.out).absolute(), machine["kind"], bundle["build"])
        to_source = record.path.with_name("env.sh")
        host.write_environment(to_source, environment)
    except Failed as error:
        print(f"gpu_check: {error}\n  {error.fix}" if error.fix else error, file=sys.stderr)
        return 2
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, clock.stop)
    if args.again:
        for name in names:
            record.slices.pop(name, None)
    to_play = [name for name in names if record.slices.get(name, {}).get("state") != "passed"]
    with tempfile.TemporaryDirectory() as folder:
        play_all(to_play, Runner(args, Path(folder), environment, machine, bundle["build"], clock), record, args)
    record.write()
    record.write_archive()
    status = tell(record, names, machine["name"], time.monotonic() - clock.begin, command_of(args, parser))
    print(f"source {to_source}: then train_gpt and the other programs of the bundle can be called by their names")
    return status


if __name__ == "__main__":
    sys.exit(main())
