#!/usr/bin/env python3
"""Checks and measures Lockstep on this machine's GPU, without Bazel: part of the bundle.

  bazel build -c opt --config=cuda //tools:bundle    # bazel-bin/tools/lockstep-bundle.tar.gz
  tar xf lockstep-bundle.tar.gz && lockstep/gpu_check [--only=ops,train] [--out=gpu_check.json]

Writes a JSON file after each part, and a table at the end, a line per part: called again with the same
--out, it goes on with the parts that have not passed. Each part has a time limit. Of a part that failed
it says what was found, where all of it is written, and what to do. --simulated rehearses everything on a
simulated GPU (a bundle built without --config=cuda), with little work and PyTorch on the CPU. Exits with
1 if a part failed, with 2 if nothing could be run. Needs python3 alone; with torch in it (or in
--python), losses and training speed stand beside PyTorch's.
"""
import argparse
import json
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Callable, NamedTuple

import host
import parts
import ranks
from runner import HERE, Failed, Runner, Skip


class Part(NamedTuple):
    run: Callable
    seconds: int  # its time limit on a GPU
    simulated_seconds: int
    fix: str  # what to do when it fails


_ONE_OP = "lockstep/bin/op_test --gtest_filter=NAME repeats one test; the log names op, sample and dtype"
PARTS = {
    "ops": Part(parts.ops, 1200, 120, _ONE_OP),
    "gradients": Part(parts.gradients, 600, 40, "lockstep/bin/gradcheck --filter=OP repeats one op; the log names it"),
    "cudnn": Part(parts.cudnn, 600, 20, f"LOCKSTEP_ATTENTION=flash trains without cuDNN; {_ONE_OP}"),
    "sanitizer": Part(parts.sanitizer, 1200, 5, "the log names kernel, thread and address"),
    "train": Part(parts.train, 300, 60, "see the parts ops and cudnn first; --train.cuda_graphs=false and "
                  "LOCKSTEP_ATTENTION=flash tell whether graphs or cuDNN make the difference"),
    "parity": Part(parts.parity, 600, 60, "see the parts ops and gradients first: a kernel is wrong at this shape"),
    "ranks": Part(ranks.ranks, 600, 90, "the log has what each rank said, NCCL's warnings among it; the GPU's "
                  "compute mode must be Default (nvidia-smi --compute-mode=0), so that two processes may use it"),
    "bench": Part(parts.bench, 1200, 50, "lockstep/bin/bench --filter=OP repeats one"),
    "speed": Part(parts.speed, 1800, 150, "see the part train first; a GPU of less memory needs a smaller batch"),
}


def write_json(path, results):
    """Whole or not at all: the file is what a run that was stopped goes on from."""
    whole = path.with_name(path.name + ".new")
    whole.write_text(json.dumps(results, indent=1) + "\n")
    whole.replace(path)


def run_part(name, part, runner, log):
    """What the JSON file says of it."""
    begin = time.monotonic()
    runner.deadline = begin + (part.simulated_seconds if runner.simulated else part.seconds) * runner.patience
    try:
        values, text = part.run(runner)
        done = {"state": "passed", "text": text, "values": values}
    except Skip as reason:
        done = {"state": "skipped", "text": str(reason)}
    except Failed as error:
        done = {"state": "failed", "text": str(error), "fix": error.fix or part.fix}
        if error.log:
            log.write_text(error.log)
            done["log"] = str(log)
    except (OSError, LookupError, ValueError) as error:  # a program's output is not what it should be
        log.write_text(traceback.format_exc())
        done = {"state": "failed", "text": f"{type(error).__name__}: {error}", "fix": part.fix, "log": str(log)}
    done["seconds"] = round(time.monotonic() - begin, 1)
    print(f"{name}: {done['state']}", file=sys.stderr, flush=True)
    return done


def tell(machine, out, states):
    print(f"on {machine}; all figures are in {out}")
    for name, done in states.items():
        print("{:<10} {state:<8} {seconds:7.1f} s  {text}".format(name, **done))
    for name, done in states.items():
        if done["state"] == "failed":
            print(f"{name}: {done['fix']}; its log is {done.get('log', 'empty')}\n"
                  f"  again: {HERE / 'gpu_check'} --only={name}")


def prepare(args):
    """The machine, the bundle and the programs' environment; or Failed."""
    bundle = host.read_bundle()
    machine = host.describe_machine(args.simulated)
    environment = host.find_cuda(args.python)
    problems = host.check_host(args.simulated, bundle, machine, environment)
    if problems:
        raise Failed("; ".join(what for what, _ in problems), fix="; ".join(fix for _, fix in problems))
    return bundle, machine, environment


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulated", action="store_true", help="rehearse on a simulated GPU")
    parser.add_argument("--out", default="gpu_check.json", help="the JSON file (default: %(default)s)")
    parser.add_argument("--only", default="", help=f"parts to run, of {','.join(PARTS)} (default: all)")
    parser.add_argument("--again", action="store_true", help="also run parts that are done")
    parser.add_argument("--patience", type=float, default=1, help="times the parts' time limits (default: 1)")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that imports torch")
    args = parser.parse_args()
    wanted = [p for p in args.only.split(",") if p] or list(PARTS)
    unknown = [p for p in wanted if p not in PARTS]
    if unknown:
        parser.error(f"--only: there is no part '{unknown[0]}'; there are {', '.join(PARTS)}")
    out = Path(args.out).absolute()
    try:
        bundle, machine, environment = prepare(args)
    except Failed as error:
        print(f"gpu_check: {error}\n  {error.fix}", file=sys.stderr)
        return 2
    results = json.loads(out.read_text()) if out.exists() else {}
    for what, this in (("machine", machine["name"]), ("build", bundle["build"])):
        if results.setdefault(what, this) != this:
            parser.error(f"{out} is of the {what} {results[what]}, this is {this}: choose another --out")
    done = results.setdefault("parts", {})
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(args, Path(folder), environment, machine["gpus"])
        for name in wanted:
            if args.again or name not in done or done[name]["state"] != "passed":
                done[name] = run_part(name, PARTS[name], runner, out.with_suffix(f".{name}.log"))
                write_json(out, results)
    states = {name: done[name] for name in wanted}
    tell(machine["name"], out, states)
    return int(any(state["state"] == "failed" for state in states.values()))


if __name__ == "__main__":
    sys.exit(main())
