#!/usr/bin/env python3
"""Checks and measures Lockstep on this machine's GPU, without Bazel: part of the bundle.

  bazel build -c opt --config=cuda //tools:bundle    # bazel-bin/tools/lockstep-bundle.tar.gz
  tar xf lockstep-bundle.tar.gz && lockstep/gpu_check [--only=ops,train] [--out=gpu_check.json]

Writes a JSON file after each part, and a table at the end, a line per part: called again with the same
--out, it goes on with the parts that have not passed. Each part has a time limit. --simulated
rehearses everything on a simulated GPU (a bundle built without --config=cuda), with little work and
PyTorch on the CPU. Exits with 1 if a part failed. Needs python3 alone; with torch in it (or in
--python), losses and training speed stand beside PyTorch's.
"""
import argparse
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from pathlib import Path

HERE = Path(__file__).resolve().parent
# layers, heads, width, vocabulary, sequence, batch, steps
SMALL = (2, 2, 32, 96, 16, 4, 6)
PARITY = (4, 4, 256, 1024, 128, 8, 20)
SPEED = (12, 12, 768, 50304, 1024, 8, 30)


class Skip(Exception):
    """The part cannot run here; says why."""


class Failed(Exception):
    """The part ran and found something."""

    def __init__(self, text, output=""):
        super().__init__(text)
        self.output = output  # of the program that failed, all of it


class Check:
    def __init__(self, args, scratch):
        self.args = args
        self.scratch = scratch
        self.device = "sim" if args.simulated else "cuda"
        self.deadline = 0.0
        # The programs' own libraries lie beside them.
        self.environment = with_libraries([HERE / "lib"])
        if not args.simulated:
            self.environment = with_libraries([HERE / "lib", *cuda_libraries(args.python, self.environment)])

    def run(self, *command, environment=None):
        """Runs a command within the part's time and returns its output."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise Failed("out of time")
        command = [str(c) for c in command]
        # In a group of its own, so that what it has started ends with it.
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=environment or self.environment, cwd=self.scratch,
                                   start_new_session=True)
        try:
            out, error = process.communicate(timeout=left)
        except BaseException as stop:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            if not isinstance(stop, subprocess.TimeoutExpired):
                raise
            raise Failed(f"out of time in {' '.join(command)}") from None
        if process.returncode != 0:
            text = (out + error).strip()
            raise Failed(f"{Path(command[0]).name} exited with {process.returncode}: {text[-1500:]}", text)
        return out

    def program(self, name):
        path = HERE / "bin" / name
        if not path.exists():
            raise Skip(f"the bundle has no {name}")
        return path

    # ---- The parts: each returns what goes into the JSON file, and its line for the table. ----

    def ops(self):
        tested = ["attention", "softmax_cross_entropy"] if self.args.simulated else ["*"]
        pattern = ":".join(f"{op}.*" for op in tested) + "-OpTest.*"  # that one reads the source tree
        passed = self.test_ops(pattern)
        return {"passed": passed}, f"{passed} tests of ops passed"

    def cudnn(self):
        """attention's tests once more, on cuDNN's kernels."""
        try:
            passed = self.test_ops("attention.*", environment=dict(self.environment, LOCKSTEP_ATTENTION="cudnn"))
        except Failed as error:
            reason = re.search(r"\(LOCKSTEP_ATTENTION=cudnn\) cannot run here: (.*)", error.output)
            # It is there, and is not what it should be: that is a finding.
            if reason is None or re.search("of a trial|has no plan|cuDNN: ", reason[1]):
                raise
            raise Skip(reason[1].strip()) from None
        return {"passed": passed}, f"{passed} tests of attention passed on cuDNN's kernels"

    def gradients(self):
        ops = ["attention", "linear"] if self.args.simulated else [""]
        for op in ops:
            self.run(self.program("gradcheck"), f"--device={self.device}", f"--filter={op}")
        return {"ops": ops}, "gradients agree with the CPU's f64"

    def sanitizer(self):
        if self.args.simulated:
            raise Skip("the simulated GPU has detectors of its own")
        tool = shutil.which("compute-sanitizer")
        if tool is None:
            raise Skip("there is no compute-sanitizer")
        self.environment["LOCKSTEP_CUDA_ALLOCATOR"] = "none"
        try:
            for kind in ("memcheck", "racecheck"):
                self.run(tool, f"--tool={kind}", "--error-exitcode=9", self.program("op_test"),
                         "--device=cuda", "--gtest_filter=attention.Unaligned*:softmax_cross_entropy.Orders*")
        except Failed as error:
            if "not supported" in str(error):
                raise Skip("compute-sanitizer does not support this GPU") from None
            raise
        finally:
            del self.environment["LOCKSTEP_CUDA_ALLOCATOR"]
        return {}, "memcheck and racecheck are clean"

    def train(self):
        """Two runs give the same bits; so do graphs and eager steps."""
        shape = SMALL if self.args.simulated else PARITY
        for precision in ("fp32", "bf16"):
            first, second, eager = (
                (self.train_ours(shape, precision, *more)[1] / "latest/model.safetensors").read_bytes()
                for more in ((), (), ("--train.cuda_graphs=false",)))
            for name, weights in (("second", second), ("eager", eager)):
                if weights != first:
                    raise Failed(f"in {precision} the weights of the {name} run differ from the first's")
        return {"steps": shape[-1]}, f"{shape[-1]} steps in fp32 and bf16: the same bits again, by graphs and eagerly"

    def parity(self):
        python = self.torch()
        shape = SMALL if self.args.simulated else PARITY
        losses, out = self.train_ours(shape, "fp32", "--data.order=sequential", "--checkpoint.save_initial=true",
                                      "--checkpoint.keep=0", "--optim.schedule=constant", "--optim.warmup=0",
                                      "--optim.lr=3e-4", "--optim.beta2=0.95", "--optim.weight_decay=0.1")
        initial = out / "checkpoints/step-00000000/model.safetensors"
        peer = self.peer(python, shape, "fp32", "--init", initial, "--tokens", self.tokens(shape))
        if not len(losses) == len(peer) - 1 == shape[-1]:
            raise Failed(f"{len(losses)} losses beside {len(peer) - 1} of PyTorch, of {shape[-1]} steps")
        differences = [abs(a - b["loss"]) for a, b in zip(losses, peer)]
        if not all(x <= 2e-3 for x in differences):  # so that NaN is none of them
            raise Failed(f"losses are not within 2e-3 of PyTorch's: {differences}")
        worst = max(differences)
        return {"largest_difference": worst}, f"losses within {worst:.1e} of PyTorch's"

    def bench(self):
        out = self.scratch / "bench.json"
        more = ["--filter=scale", "--ms=1"] if self.args.simulated else []
        self.run(self.program("bench"), f"--device={self.device}", f"--json={out}", *more)
        result = json.loads(out.read_text())
        copy = result["copy_bytes_per_second"] / 1e9
        gemm = ", ".join(f"{dtype} {flops / 1e12:.1f}" for dtype, flops in result["gemm_flops_per_second"].items())
        return result, f"{len(result['benchmarks'])} benchmarks; copy {copy:.0f} GB/s, GEMM {gemm} TFLOP/s"

    def speed(self):
        """Tokens per second, with and without CUDA graphs, beside PyTorch's with its flash attention."""
        shape = SMALL if self.args.simulated else SPEED
        tokens = shape[4] * shape[5]
        figures, notes = {}, {}
        flash = dict(self.environment, LOCKSTEP_ATTENTION="flash")
        for name, precision, more, environment in (
                ("lockstep fp32", "fp32", (), None), ("lockstep bf16", "bf16", (), None),
                ("lockstep bf16 without graphs", "bf16", ("--train.cuda_graphs=false",), None),
                ("lockstep bf16 without cuDNN", "bf16", (), flash)):
            _, out = self.train_ours(shape, precision, *more, environment=environment)
            lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
            times = [line["ms"] for line in lines if "loss" in line][3:]
            figures[name] = tokens / statistics.median(times) * 1e3
        try:
            python = self.torch()
            for name, more in (("torch bf16 eager", ()), ("torch bf16 compiled", ("--compile",))):
                try:
                    figures[name] = self.peer(python, shape, "bf16", *more)[-1]["tokens_per_second"]
                except Failed as error:  # of the peer, not of what is checked: no C compiler, say
                    notes[name] = str(error)
        except Skip as reason:
            notes["torch"] = str(reason)
        text = ", ".join(f"{name} {value:,.0f}" for name, value in figures.items())
        theirs = [value for name, value in figures.items() if name.startswith("torch")]
        values = {"tokens_per_second": figures, "notes": notes}
        if theirs:
            values["bf16_over_torch"] = figures["lockstep bf16"] / max(theirs)
            text += f"; bf16 is {values['bf16_over_torch']:.2f} times torch's best"
        return values, f"tok/s: {text}" + "".join(f"; no {name}" for name in notes)

    # ---- What they share. ----

    def test_ops(self, pattern, environment=None):
        """How many tests of ops passed."""
        out = self.run(self.program("op_test"), f"--device={self.device}", f"--gtest_filter={pattern}",
                       environment=environment)
        passed = re.search(r"\[  PASSED  \] (\d+) test", out)
        if passed is None or int(passed[1]) == 0:
            raise Failed("no test ran")
        return int(passed[1])

    def torch(self):
        try:
            self.run(self.args.python, "-c", "import torch, numpy", environment=os.environ)
        except (Failed, OSError):
            raise Skip(f"{self.args.python} does not import torch and numpy") from None
        return self.args.python

    def tokens(self, shape):
        folder = self.scratch / f"tokens-{shape[3]}"
        if not folder.exists():
            folder.mkdir()
            draw = random.Random(1)
            for name in ("train.bin", "val.bin"):
                with open(folder / name, "wb") as file:
                    array("H", (draw.randrange(shape[3]) for _ in range(200_000))).tofile(file)
        return folder / "train.bin"

    def train_ours(self, shape, precision, *more, environment=None):
        layers, heads, width, vocabulary, sequence, batch, steps = shape
        out = Path(tempfile.mkdtemp(dir=self.scratch)) / "run"
        self.run(self.program("train_gpt"), f"--device={self.device}", f"--out_dir={out}",
                 f"--data.path={self.tokens(shape)}", f"--model.n_layer={layers}", f"--model.n_head={heads}",
                 f"--model.n_embd={width}", f"--model.vocab_size={vocabulary}", "--model.bias=true",
                 "--model.dropout=0", f"--model.block_size={sequence}", f"--train.batch_size={batch}",
                 f"--train.steps={steps}", f"--train.precision={precision}", "--train.eval_every=0",
                 "--train.eval_batches=1", "--train.sample_tokens=0", "--train.log_every=1000", *more,
                 environment=environment)
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        return [line["loss"] for line in lines if "loss" in line], out

    def peer(self, python, shape, dtype, *more):
        layers, heads, width, vocabulary, sequence, batch, steps = shape
        out = self.run(python, HERE / "torch_gpt2.py", "--n-layer", layers, "--n-head", heads, "--n-embd", width,
                       "--vocab", vocabulary, "--seq", sequence, "--max-seq", sequence, "--batch", batch,
                       "--steps", steps, "--dtype", dtype,
                       "--device", "cpu" if self.args.simulated else "cuda", *more,
                       environment=os.environ)
        return [json.loads(line) for line in out.splitlines()]


# The parts in order, with their time limits in seconds, on a GPU and rehearsed.
PARTS = {"ops": (1200, 150), "gradients": (600, 60), "cudnn": (600, 30), "sanitizer": (1200, 10),
         "train": (300, 90), "parity": (600, 60), "bench": (1200, 60), "speed": (1800, 120)}


def with_libraries(folders):
    """The environment in which programs find shared libraries in these folders, too."""
    before = os.environ.get("LD_LIBRARY_PATH")
    return dict(os.environ, LD_LIBRARY_PATH=":".join([*map(str, folders), *([before] if before else [])]))


def cuda_libraries(python, environment):
    """Where CUDA's libraries lie, if the loader does not find them all: PyTorch brings them along."""
    # What the programs are linked with is of the toolkit's major version; cuDNN and NCCL they look for.
    program = HERE / "bin" / "train_gpt"
    quiet = {"stderr": subprocess.DEVNULL, "text": True, "env": environment}
    listed = ""
    if program.exists() and shutil.which("ldd") is not None:
        listed = subprocess.run(["ldd", program], stdout=subprocess.PIPE, **quiet).stdout
    load = "import ctypes; [ctypes.CDLL(name) for name in ('libcudnn.so.9', 'libnccl.so.2')]"
    if "not found" not in listed and subprocess.run([sys.executable, "-c", load], **quiet).returncode == 0:
        return []
    ask = "import glob, site; [print(f) for s in site.getsitepackages() for f in glob.glob(s + '/nvidia/*/lib')]"
    found = subprocess.run([python, "-c", ask], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return found.stdout.split()


def describe_machine(simulated):
    """The GPU and its driver, as nvidia-smi names them."""
    if simulated:
        return "simulated GPU"
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(f"gpu_check: nvidia-smi names no GPU ({error}); --simulated rehearses without one, with a bundle "
                 "built without --config=cuda")
    return done.stdout.splitlines()[0].strip()


def write_json(path, results):
    """Whole or not at all: the file is what a run that was stopped goes on from."""
    whole = path.with_name(path.name + ".new")
    whole.write_text(json.dumps(results, indent=1) + "\n")
    whole.replace(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulated", action="store_true", help="rehearse on a simulated GPU")
    parser.add_argument("--out", default="gpu_check.json", help="the JSON file (default: %(default)s)")
    parser.add_argument("--only", default="", help=f"parts to run, of {','.join(PARTS)} (default: all)")
    parser.add_argument("--again", action="store_true", help="also run parts that are done")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that imports torch")
    args = parser.parse_args()
    wanted = [p for p in args.only.split(",") if p] or list(PARTS)
    unknown = [p for p in wanted if p not in PARTS]
    if unknown:
        parser.error(f"--only: there is no part '{unknown[0]}'; there are {', '.join(PARTS)}")
    out = Path(args.out).absolute()
    results = json.loads(out.read_text()) if out.exists() else {}
    machine = describe_machine(args.simulated)
    if results.setdefault("machine", machine) != machine:
        parser.error(f"{out} is of a run on {results['machine']}, this one is on {machine}: choose another --out")
    parts = results.setdefault("parts", {})
    with tempfile.TemporaryDirectory() as folder:
        check = Check(args, Path(folder))
        for name in wanted:
            done = parts.get(name)
            if args.again or done is None or done["state"] != "passed":
                begin = time.monotonic()
                check.deadline = begin + PARTS[name][args.simulated]
                try:
                    values, text = getattr(check, name)()
                    done = {"state": "passed", "text": text, "values": values}
                except Skip as reason:
                    done = {"state": "skipped", "text": str(reason)}
                except Failed as error:
                    done = {"state": "failed", "text": str(error)}
                except (OSError, LookupError, ValueError) as error:  # a program's output is not what it should be
                    done = {"state": "failed", "text": f"{type(error).__name__}: {error}"}
                done["seconds"] = round(time.monotonic() - begin, 1)
                parts[name] = done
                write_json(out, results)
            print(f"{name}: {done['state']}", file=sys.stderr, flush=True)
    print(f"on {machine}; all figures are in {out}")
    for name in wanted:
        print("{:<10} {state:<8} {seconds:7.1f} s  {text}".format(name, **parts[name]))
    return int(any(parts[name]["state"] == "failed" for name in wanted))


if __name__ == "__main__":
    sys.exit(main())
