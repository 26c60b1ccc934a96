"""Runs the bundle's programs within a part's time; a module of gpu_check."""
import json
import os
import random
import re
import signal
import subprocess
import tempfile
import time
from array import array
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent.parent  # the bundle


class Shape(NamedTuple):
    """Of a model and its training."""
    layers: int
    heads: int
    width: int
    vocabulary: int
    sequence: int
    batch: int
    steps: int


TINY = Shape(1, 2, 32, 96, 16, 2, 6)  # for simulated GPUs
SMALL = Shape(4, 4, 256, 1024, 128, 8, 20)


class Skip(Exception):
    """The part cannot run here; says why."""


class Failed(Exception):
    """The part ran and found something."""

    def __init__(self, text, log="", fix=None):
        super().__init__(text)
        self.log = log  # of the program that failed: its command, and all of its output
        self.fix = fix  # what to do, if it is not what the part usually says


class Running:
    """A program that goes on by itself; it ends with the block, and with the part's time."""

    def __init__(self, command, environment, folder, deadline):
        self.command = [str(c) for c in command]
        self.name = Path(self.command[0]).name
        self.deadline = deadline
        self._out, self._error = (tempfile.mkstemp(dir=folder, prefix=self.name) for _ in range(2))
        try:
            # In a group of its own, so that what it has started ends with it.
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=self._out[0],
                                            stderr=self._error[0], env=environment, cwd=folder,
                                            start_new_session=True)
        except OSError as error:
            raise Failed(f"{self.command[0]} cannot be run: {error}") from None
        finally:
            os.close(self._out[0])
            os.close(self._error[0])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:  # so that the group is still this one
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def out(self):
        return Path(self._out[1]).read_text(errors="replace")

    def error(self):
        return Path(self._error[1]).read_text(errors="replace")

    def log(self):
        return f"$ {' '.join(self.command)}\n{self.out()}{self.error()}"

    def failed(self, text, **more):
        return Failed(text, self.log(), **more)

    def last_line(self):
        """The last that it has said."""
        lines = [line for line in (self.out() + self.error()).splitlines() if line.strip()]
        return lines[-1].strip()[:500] if lines else "it wrote nothing"

    def end(self):
        """Its exit code, once it has ended."""
        try:
            return self.process.wait(timeout=max(0.0, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise self._out_of_time() from None

    def wait_for(self, pattern):
        """The first match in what it writes to its standard output."""
        while True:
            ended = self.process.poll() is not None
            match = re.search(pattern, self.out())
            if match is not None:
                return match
            if ended:
                raise self.failed(f"{self.name} ended before it wrote '{pattern}': {self.last_line()}")
            if time.monotonic() > self.deadline:
                raise self._out_of_time()
            time.sleep(0.02)

    def _out_of_time(self):
        return self.failed(f"out of time in {self.name}; the last that it said: {self.last_line()}",
                           fix="--patience=3 allows each part three times as long, if the machine is only busy")


class Runner:
    """What parts share: where programs are, how long they may take, and runs of train_gpt."""

    def __init__(self, args, scratch, environment, gpus):
        self.simulated = args.simulated
        self.patience = args.patience
        self.gpus = gpus
        self.python = args.python
        self.device = "sim" if args.simulated else "cuda"
        self.scratch = scratch
        self.environment = environment
        self.deadline = 0.0

    def start(self, *command, environment=None):
        if time.monotonic() > self.deadline:
            raise Failed("out of time")
        return Running(command, environment or self.environment, self.scratch, self.deadline)

    def run(self, *command, environment=None):
        """Runs a program to its end and returns what it wrote to its standard output."""
        with self.start(*command, environment=environment) as running:
            code = running.end()
            if code != 0:
                raise running.failed(f"{running.name} exited with {code}: {running.last_line()}")
            return running.out()

    def program(self, name):
        path = HERE / "bin" / name
        if not path.exists():
            raise Skip(f"the bundle has no {name}")
        return path

    def torch(self):
        """An interpreter that imports it."""
        with self.start(self.python, "-c", "import torch, numpy", environment=dict(os.environ)) as running:
            if running.end() != 0:
                raise Skip(f"{self.python} does not import torch and numpy; --python=P names another")
        return self.python

    def tokens(self, shape):
        """A file of random ones."""
        folder = self.scratch / f"tokens-{shape.vocabulary}"
        if not folder.exists():
            folder.mkdir()
            draw = random.Random(1)
            for name in ("train.bin", "val.bin"):
                with open(folder / name, "wb") as file:
                    array("H", (draw.randrange(shape.vocabulary) for _ in range(200_000))).tofile(file)
        return folder / "train.bin"

    def new_out(self):
        return Path(tempfile.mkdtemp(dir=self.scratch)) / "run"

    def train_command(self, shape, precision, out):
        return [self.program("train_gpt"), f"--device={self.device}", f"--out_dir={out}",
                f"--data.path={self.tokens(shape)}", f"--model.n_layer={shape.layers}",
                f"--model.n_head={shape.heads}", f"--model.n_embd={shape.width}",
                f"--model.vocab_size={shape.vocabulary}", "--model.bias=true", "--model.dropout=0",
                f"--model.block_size={shape.sequence}", f"--train.batch_size={shape.batch}",
                f"--train.steps={shape.steps}", f"--train.precision={precision}", "--train.eval_every=0",
                "--train.eval_batches=1", "--train.sample_tokens=0"]

    def train(self, shape, precision, *more, before=(), environment=None):
        """Trains, with the command behind `before`; returns the folder of the run."""
        out = self.new_out()
        self.run(*before, *self.train_command(shape, precision, out), "--train.log_every=1000", *more,
                 environment=environment)
        return out


def steps(out):
    """What the run in this folder wrote of each of its steps."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "loss" in line]


def losses(out):
    return [step["loss"] for step in steps(out)]


def weights(out):
    return (out / "latest/model.safetensors").read_bytes()
