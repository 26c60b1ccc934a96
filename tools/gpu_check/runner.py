"""Runs the bundle's programs within a slice's time; a module of gpu_check."""
import contextlib
import ctypes
import hashlib
import itertools
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

HERE = Path(__file__).resolve().parent.parent  # the bundle's folder
_PRCTL = ctypes.CDLL(None).prctl


def environment_of_others():
    """For programs that are not the bundle's: without its libraries, whose versions may not be theirs."""
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder != str(HERE / "cuda")]
    return dict(os.environ, LD_LIBRARY_PATH=":".join(folders))


class Shape(NamedTuple):
    """The sizes of a model and its training."""
    layers: int
    heads: int
    width: int
    vocabulary: int
    sequence: int
    batch: int
    steps: int


TINY = Shape(1, 2, 32, 96, 16, 2, 6)  # for simulated GPUs
SMALL = Shape(4, 4, 256, 1024, 128, 8, 20)
GPT2 = Shape(12, 12, 768, 50304, 1024, 16, 40)


class Skip(Exception):
    """The slice cannot run here; says why."""


class Unfinished(Exception):
    """The slice was stopped, by the budget or a signal; says where it was."""


class Failed(Exception):
    """The slice ran and found a problem."""

    def __init__(self, text, log="", fix=None):
        super().__init__(text)
        self.log = log  # the failed program's command and all of its output
        self.fix = fix  # what to do, if that differs from the slice's usual advice


class Clock:
    """How long the running slice may continue. Signals do not interrupt anything; they end the waiting."""

    def __init__(self, budget):
        self.begin = time.monotonic()
        # The rest of the budget is for writing the results.
        self.end = self.begin + budget - min(5, budget / 20) if budget else float("inf")
        self.limit = float("inf")  # the running slice's
        self.signal = None

    def left(self):
        return self.end - time.monotonic()

    def stop(self, number, _frame):
        self.signal = self.signal or signal.Signals(number)

    def why_stop(self):
        """Why everything must stop, through no fault of the slice, or None."""
        if self.signal:
            return f"stopped by {self.signal.name}"
        return "the budget was spent" if self.left() <= 0 else None


def _die_with_gpu_check():
    _PRCTL(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Running:
    """A program in the background; it ends with the block, or when the slice's time is over."""

    def __init__(self, command, environment, folder, clock):
        self.command = [str(c) for c in command]
        self.name = Path(self.command[0]).name
        self.clock = clock
        self._out, self._error = (tempfile.mkstemp(dir=folder, prefix=self.name) for _ in range(2))
        try:
            # In its own process group, so that its children end with it.
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=self._out[0],
                                            stderr=self._error[0], env=environment, cwd=folder,
                                            start_new_session=True, preexec_fn=_die_with_gpu_check)
        except OSError as error:
            raise Failed(f"{self.command[0]} cannot be run: {error}") from None
        finally:
            os.close(self._out[0])
            os.close(self._error[0])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:  # otherwise the group may be another one by now
            os.killpg(self.process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may keep it alive
                self.process.wait(timeout=3)

    def out(self):
        return Path(self._out[1]).read_text(errors="replace")

    def error(self):
        return Path(self._error[1]).read_text(errors="replace")

    def log(self):
        return f"$ {' '.join(self.command)}\n{self.out()}{self.error()}"

    def failed(self, text, **more):
        return Failed(text, self.log(), **more)

    def last_line(self):
        """The last line of its output."""
        lines = [line for line in (self.out() + self.error()).splitlines() if line.strip()]
        return lines[-1].strip()[:500] if lines else "it wrote nothing"

    def end(self):
        """Waits for its end and returns its exit code."""
        while True:
            try:
                return self.process.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                self._check_time()

    def wait_for(self, pattern):
        """Waits for the pattern's first match in its standard output."""
        while True:
            ended = self.process.poll() is not None
            match = re.search(pattern, self.out())
            if match is not None:
                return match
            if ended:
                raise self.failed(f"{self.name} ended before it wrote '{pattern}': {self.last_line()}")
            self._check_time()
            time.sleep(0.02)

    def _check_time(self):
        why = self.clock.why_stop()
        if why:
            raise Unfinished(f"{why} in {self.name}; its last output: {self.last_line()}")
        if time.monotonic() > self.clock.limit:
            raise self.failed(f"out of time in {self.name}; its last output: {self.last_line()}",
                              fix="--patience=3 allows each slice three times as long, if the machine is only busy")


class Runner:
    """What slices share: the programs, their time limits, and runs of train_gpt."""

    def __init__(self, args, scratch, environment, machine, build, clock):
        self.simulated = args.simulated
        self.machine = machine
        self.build = build
        self.python = args.python
        self.device = "sim" if args.simulated else "cuda"
        self.scratch = scratch
        self.folder = scratch  # of the running slice, with which it is removed
        self.environment = environment
        self.clock = clock
        self.figures = {}  # what the running slice has measured, should it fail later
        self.kept = {}  # the running slice's files for the archive: bytes by name

    def keep(self, name, path):
        """Puts the file, if it exists, into the archive."""
        if path.exists():
            self.kept[name] = path.read_bytes()

    def start(self, *command, environment=None):
        why = self.clock.why_stop()
        if why:
            raise Unfinished(why)
        if time.monotonic() > self.clock.limit:
            raise Failed("out of time")
        return Running(command, environment or self.environment, self.folder, self.clock)

    def run(self, *command, environment=None):
        """Runs a program to its end and returns its standard output."""
        with self.start(*command, environment=environment) as running:
            code = running.end()
            if code != 0:
                raise running.failed(f"{running.name} exited with {code}: {running.last_line()}")
            return running.out()

    def program(self, name):
        path = HERE / "libexec" / name
        if not path.exists():
            raise Skip(f"the bundle has no {name}")
        return path

    def torch(self):
        """An interpreter that imports PyTorch."""
        with self.start(self.python, "-c", "import torch, numpy", environment=environment_of_others()) as running:
            if running.end() != 0:
                raise Skip(f"{self.python} does not import torch and numpy; --python=P names another")
        return self.python

    def tokens(self, shape):
        """Files of random tokens whose frequencies follow Zipf's law, as in a text."""
        folder = self.scratch / f"tokens-{shape.vocabulary}"
        if not folder.exists():
            folder.mkdir()
            draw = random.Random(1)
            weights = list(itertools.accumulate(1 / (n + 2.7) for n in range(shape.vocabulary)))
            for name, n in (("train.bin", max(200_000, 20 * shape.vocabulary)), ("val.bin", 100_000)):
                with open(folder / name, "wb") as file:
                    array("H", draw.choices(range(shape.vocabulary), cum_weights=weights, k=n)).tofile(file)
        return folder / "train.bin"

    def new_out(self):
        return Path(tempfile.mkdtemp(dir=self.folder)) / "run"

    def train_command(self, shape, precision, out):
        return [self.program("train_gpt"), f"--device={self.device}", f"--out_dir={out}",
                f"--data.path={self.tokens(shape)}", f"--model.n_layer={shape.layers}",
                f"--model.n_head={shape.heads}", f"--model.n_embd={shape.width}",
                f"--model.vocab_size={shape.vocabulary}", "--model.bias=true", "--model.dropout=0",
                f"--model.block_size={shape.sequence}", f"--train.batch_size={shape.batch}",
                f"--train.steps={shape.steps}", f"--train.precision={precision}", "--train.eval_every=0",
                "--train.eval_batches=1", "--train.sample_tokens=0"]

    def train(self, shape, precision, *more, before=(), environment=None):
        """Trains, with the command after `before`; returns the run's folder. Its own records are kept."""
        out = self.new_out()
        try:
            self.run(*before, *self.train_command(shape, precision, out), "--train.log_every=1000", *more,
                     environment=environment)
        finally:
            number = 1 + sum(name.endswith("metrics.jsonl") for name in self.kept)
            for name in ("metrics.jsonl", "kernels.json"):
                self.keep(f"run-{number}/{name}", out / name)
        return out


def steps(out):
    """The records of the steps of the run in this folder."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "loss" in line]


def losses(out):
    return [step["loss"] for step in steps(out)]


def weights(out):
    """A hash of the run's last weights."""
    digest = hashlib.sha256()
    with open(out / "latest/model.safetensors", "rb") as file:
        while block := file.read(1 << 24):
            digest.update(block)
    return digest.hexdigest()
