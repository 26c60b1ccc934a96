"""gpu_check's checks on one process: each function takes a Runner and returns the values for the JSON file and the text
for the table, or raises Skip, Failed or Unfinished."""
import csv
import json
import math
import os
import re
import shutil
import statistics
from pathlib import Path

import hashes
import libraries
from runner import GPT2, SMALL, TINY, Failed, Skip, environment_of_others, losses, steps, weights

# ---- What is installed, and its peak performance. ----


def loader(runner):
    """The files of the programs' libraries."""
    shape = TINY if runner.simulated else SMALL
    train = [c for c in runner.train_command(shape, "bf16", runner.new_out())
             if not str(c).startswith("--train.steps=")]
    with runner.start(*train, "--train.steps=1000000", "--train.log_every=1", "--checkpoint.every=0") as running:
        running.wait_for(r"step +2/")
        mapped = libraries.mapped(running.process.pid)
    asked = libraries.versions([path for name, path in mapped.items() if name.startswith("libcublasLt")],
                               runner.environment)
    asked.update(libraries.found(runner.environment))
    absent = [name for name in libraries.LOADED_LATER if name not in asked and "capability" in runner.machine]
    told = {os.path.basename(what["path"]): what["version"] for what in asked.values() if "error" not in what}
    text = ", ".join(f"{name} {version}" for name, version in told.items()) or "no CUDA library"
    text += f"; without {' and '.join(absent)}, which lockstep-cuda.tar.gz has" if absent else ""
    return {"mapped": mapped, "asked": asked, "LD_LIBRARY_PATH": runner.environment.get("LD_LIBRARY_PATH", "")}, text


def peaks(runner):
    more = ["--ms=1"] if runner.simulated else ["--ms=500"]
    result = bench(runner, "--filter=scale/", *more)
    copy = result["copy_bytes_per_second"] / 1e9
    gemm = ", ".join(f"{dtype} {flops / 1e12:.1f}" for dtype, flops in result["gemm_flops_per_second"].items())
    return result, f"copy {copy:.0f} GB/s, GEMM {gemm} TFLOP/s, of random numbers"


def bits(runner):
    """What the bits of a product's element depend on; only a difference between equal calls is a failure."""
    answers = bench(runner, "--gemm_bits", gpt(runner))["gemm_bits"]
    by_change = {}
    for answer in answers:
        kind = re.sub(r" (\+ )?\d+.*", "", answer["change"])
        differ, of = by_change.get((kind, answer["dtype"]), (0, 0))
        by_change[kind, answer["dtype"]] = (differ + (answer["different"] > 0), of + 1)
    text = ", ".join(f"{kind} {dtype} {differ}/{of}" for (kind, dtype), (differ, of) in by_change.items())
    return {"answers": answers}, f"products whose bits change with {text}"


# ---- Training. ----


def smoke(runner):
    """The speed of a real model, and whether it learns."""
    shape = TINY if runner.simulated else GPT2._replace(steps=20)
    out = runner.train(shape, "bf16")
    told = losses(out)
    if not all(math.isfinite(x) for x in told):
        raise Failed(f"the losses are {told}")
    figures = runner.figures = figures_of(shape, out)
    return (dict(figures, first_loss=told[0], last_loss=told[-1], **kernels_of(runner, out)),
            f"{figures['tokens_per_second']:,.0f} tok/s, loss {told[0]:.2f} to {told[-1]:.2f}")


def speed(runner, batch, precision="bf16", more=(), environment=None):
    """Tokens per second."""
    shape = TINY if runner.simulated else GPT2._replace(batch=batch)
    environment = dict(runner.environment, **(environment or {}))
    out = runner.train(shape, precision, *more, environment=environment)
    figures = runner.figures = figures_of(shape, out)
    text = f"{figures['tokens_per_second']:,.0f}"
    # In f32, Lockstep uses its plain kernels.
    values = kernels_of(runner, out, environment) if precision == "bf16" else {}
    return dict(figures, **values), text


def speed_in_workspace(runner, batch, mib):
    """The same where cuDNN's backward runs in slices whose workspace may stay in the L2 cache."""
    environment = {"LOCKSTEP_CUDNN_WORKSPACE_MIB": str(mib)}
    if libraries.expected_attention(runner.machine, runner.environment) != "cuDNN":
        raise Skip("attention does not use cuDNN's kernels here")
    return speed(runner, batch, environment=environment)


def peer_speed(runner, batch, more=()):
    python = runner.torch()
    if runner.simulated and "--cudnn-attention" in more:
        raise Skip("cuDNN's attention needs a GPU")
    shape = TINY if runner.simulated else GPT2._replace(batch=batch)
    try:
        told = peer(runner, python, shape, "bf16", "--tokens", runner.tokens(shape), *more)
    except Failed as error:  # PyTorch's failure, not Lockstep's: no C compiler, say
        runner.kept["log"] = error.log.encode()
        raise Skip(str(error)) from None
    return told[-1], f"{told[-1]['tokens_per_second']:,.0f}"


def summary_of_speed(slices):
    """The ratio to PyTorch's best for each batch size."""
    rates = {name[len("speed/"):]: done["values"]["tokens_per_second"] for name, done in slices.items()
             if name.startswith("speed/") and done["state"] == "passed"}
    told = []
    for ours, rate in rates.items():
        theirs = [r for name, r in rates.items() if name.startswith(f"{ours}-torch")]
        if theirs:
            told.append(f"{ours} is {rate / max(theirs):.2f} times torch's best")
    return told


def train(runner, precision):
    """Whether the bits are the same again, with graphs and eagerly, whatever fresh memory holds."""
    shape = TINY if runner.simulated else SMALL
    same_bits(runner, shape, precision, [("second", (), {}), ("eager", ("--train.cuda_graphs=false",), {})] +
              [(f"poison {seed}", (), {"LOCKSTEP_CUDA_POISON": str(seed)}) for seed in (1, 2)])
    return {"steps": shape.steps}, "the same bits again, eagerly and on poisoned memory"


def train_gpt2(runner):
    """The same at the relevant size, where cuDNN's kernels and cuBLASLt's larger tiles run."""
    shape = TINY if runner.simulated else GPT2._replace(steps=10)
    same_bits(runner, shape, "bf16", [("second", (), {}), ("eager", ("--train.cuda_graphs=false",), {})])
    return {"steps": shape.steps}, "in bf16 the same bits again and eagerly"


def same_bits(runner, shape, precision, others):
    first = weights(runner.train(shape, precision))
    for name, more, environment in others:
        out = runner.train(shape, precision, *more, environment=dict(runner.environment, **environment))
        if weights(out) != first:
            raise Failed(f"in {precision} the weights of the {name} run differ from the first's")


def parity(runner):
    """Compares losses in f32 with PyTorch's, from the same weights and data."""
    ours, theirs, _ = losses_beside_torch(runner, TINY if runner.simulated else SMALL, "fp32", "fp32")
    worst = max(abs(a - b) for a, b in zip(ours, theirs))
    if not worst <= 2e-3:  # true for NaN, too
        raise Failed(f"losses are not within 2e-3 of PyTorch's: {ours} beside {theirs}")
    return {"largest_difference": worst}, f"within {worst:.1e} of PyTorch's"


def parity_bf16(runner):
    """Compares long sequences in bf16 with PyTorch's autocast, from the same weights and data. Both round weights and
    operands of products alike, which causes most of the difference between losses in bf16 and in f32. The rest, of
    which Lockstep has more (PyTorch keeps f32 between layers), may be half of it; on CPUs it was 5 to 13 percent. In
    addition, a token's loss has its own rounding: two units in the last place of a logit of 2 to 4, 2^-5, which the
    mean over n tokens divides by the root of n."""
    shape = TINY if runner.simulated else SMALL._replace(sequence=1024, batch=4, steps=60)
    ours, theirs, exact = losses_beside_torch(runner, shape, "bf16", "bf16", "fp32")

    def rms(some, others):
        return math.sqrt(statistics.fmean((x - y) ** 2 for x, y in zip(some, others)))

    apart, rounding = rms(ours, theirs), rms(theirs, exact)
    if not apart <= rounding / 2 + 2 ** -5 / math.sqrt(shape.sequence * shape.batch):
        raise Failed(f"losses in bf16 are {apart:.1e} (rms) from PyTorch's, which are {rounding:.1e} from those in "
                     f"fp32: {ours} beside {theirs} and {exact}")
    return ({"from_torch": apart, "torch_from_fp32": rounding, "steps": shape.steps},
            f"{apart:.1e} (rms) from PyTorch's, which are {rounding:.1e} from fp32's")


def losses_beside_torch(runner, shape, precision, *dtypes):
    """Lockstep's losses, and PyTorch's in each dtype, from the same weights and data."""
    python = runner.torch()
    out = runner.train(shape, precision, "--data.order=sequential", "--checkpoint.save_initial=true",
                       "--checkpoint.keep=0", "--optim.schedule=constant", "--optim.warmup=0", "--optim.lr=3e-4",
                       "--optim.beta2=0.95", "--optim.weight_decay=0.1")
    ours = losses(out)
    initial = out / "checkpoints/step-00000000/model.safetensors"
    found = [ours]
    for dtype in dtypes:
        told = peer(runner, python, shape, dtype, "--init", initial, "--tokens", runner.tokens(shape))
        found.append([step["loss"] for step in told[:-1]])
    if any(len(told) != shape.steps for told in found):
        raise Failed(f"{' and '.join(str(len(told)) for told in found)} losses of {shape.steps} steps")
    return found + [None] * (3 - len(found))


# ---- Kernels. ----


def step_kernels(runner, batch=16, heads=12, more=(), environment=None):
    """Each op of a training step at its sizes."""
    quick = ["--ms=1"] if runner.simulated else []
    result = bench(runner, gpt(runner, batch, heads), "--dtype=bf16", *quick, *more,
                   environment=dict(runner.environment, **(environment or {})))
    parts = sorted(result["step_ms"]["bf16"].items(), key=lambda item: -item[1])
    text = ", ".join(f"{name} {ms:.2f}" for name, ms in parts[:6])
    shape = shape_of_step(runner, batch, heads)
    return result, f"B {shape.batch}, {shape.heads} heads: {result['step_sum_ms']['bf16']:.1f} ms a step: {text}"


def ops_bench(runner):
    """Every op that declares its memory traffic, for its share of the roofline."""
    result = bench(runner, *(["--filter=linear/char_proj", "--ms=1"] if runner.simulated else ["--ms=20"]))
    return result, f"{len(result['benchmarks'])} benchmarks of ops"


def ncu(runner):
    """The time of each kernel of a whole step, by Nsight Compute."""
    tool = shutil.which("ncu") or shutil.which("ncu", path="/usr/local/cuda/bin")
    if tool is None:
        raise Skip("there is no ncu in the PATH; it comes with the CUDA toolkit")
    command = [tool, "--csv", "--print-units=base", "--clock-control=none", "--cache-control=none",
               "--metrics=gpu__time_duration.sum", "--target-processes=all"]
    tiny, shape = TINY._replace(steps=2), (TINY if runner.simulated else GPT2)._replace(steps=2)
    try:  # fails if it may not read the counters here
        runner.train(tiny, "bf16", "--train.cuda_graphs=false", before=[*command, "--launch-count=1"])
    except Failed as error:
        said = re.search(r"==ERROR== *(.*)", error.log)
        raise Skip(f"ncu cannot measure here: {said[1] if said else error}") from None
    out = runner.new_out()
    told = runner.run(*command, *runner.train_command(shape, "bf16", out), "--train.cuda_graphs=false")
    classes = last_step(told)
    parts = sorted(classes.items(), key=lambda item: -item[1]["ms"])
    total = sum(c["ms"] for c in classes.values())
    text = ", ".join(f"{name} {c['ms']:.2f}" for name, c in parts[:6])
    return {"kernels": dict(parts), "ms": total}, f"ncu: {total:.1f} ms a step: {text}"


def base_name(kernel):
    """The kernel's name without namespaces, template arguments and parameters."""
    return re.sub(r"[<(].*", "", re.sub(r"(\(anonymous namespace\)|<unnamed>)::", "", kernel)).split("::")[-1].split(" ")[-1]


def last_step(told):
    """Milliseconds and launches by kernel between the last two updates of the weights, from ncu's CSV."""
    rows = list(csv.DictReader(told[told.index('"ID"'):].splitlines()))
    times = [(base_name(row["Kernel Name"]), float(row["Metric Value"].replace(",", "")) / 1e6) for row in rows
             if row["Metric Unit"].startswith("n")]
    updates = [i for i, (name, _) in enumerate(times) if name == "UpdateKernel"]
    ends = [i for i in updates if i + 1 not in updates]  # an update is one kernel, or several in a row
    if len(ends) < 2:
        raise Failed(f"ncu saw {len(ends)} updates of the weights, not 2", told[-20000:])
    kernels = {}
    for name, ms in times[ends[-2] + 1:ends[-1] + 1]:
        # cuBLASLt's kernels have the tile in their names.
        name = "cuBLASLt" if re.search("gemm|nvjet|cutlass|xmma|splitK|cublas", name, re.IGNORECASE) else name
        one = kernels.setdefault(name, {"ms": 0.0, "launches": 0})
        one["ms"] += ms
        one["launches"] += 1
    return kernels


def bench(runner, *options, environment=None):
    out = runner.folder / "bench.json"
    try:
        runner.run(runner.program("bench"), f"--device={runner.device}", f"--json={out}", *options,
                   environment=environment)
    finally:
        if out.exists():
            runner.keep("bench.json", out)
    return json.loads(out.read_text())


def shape_of_step(runner, batch, heads):
    return TINY if runner.simulated else GPT2._replace(batch=batch, heads=heads)


def gpt(runner, batch=16, heads=12):
    shape = shape_of_step(runner, batch, heads)
    return (f"--gpt={shape.batch},{shape.sequence},{shape.heads},{shape.width},{shape.vocabulary},"
            f"{shape.layers}")


# ---- Ops. ----

# Ops that are not named here are the rest.
OPS = {
    "attention": ["attention", "cached_attention", "rotary_embedding"],
    "products": ["linear", "matmul", "linear_cross_entropy", "masked_attention", "muon", "nf4", "conv2d"],
    "rows": ["layer_norm", "rms_norm", "residual_norm", "softmax", "softmax_cross_entropy", "embedding"],
    "rest": [],
}
REHEARSED = {"attention": ["rotary_embedding"], "products": ["linear"], "rows": ["softmax_cross_entropy", "layer_norm"],
             "rest": ["scale"]}


def ops(runner, group):
    """Each op against its fp64 reference, with poison in fresh memory."""
    names = REHEARSED[group] if runner.simulated else OPS[group]
    pattern = ":".join(f"{op}.*" for op in names) + "-OpTest.*"  # OpTest reads the source tree
    if not names:
        pattern = "-OpTest.*:" + ":".join(f"{op}.*" for some in OPS.values() for op in some)
    out = runner.folder / "tests.json"
    try:
        passed = test_ops(runner, pattern, dict(runner.environment, LOCKSTEP_CUDA_POISON="1"),
                          f"--gtest_output=json:{out}")
    finally:
        if out.exists():
            found = hashes.of_report(json.loads(out.read_text()))
            runner.kept["hashes.txt"] = hashes.text(found, runner.machine["name"], runner.build).encode()
    return {"passed": passed}, f"{passed} tests"


def gradients(runner, group):
    """Each gradient against the CPU's in f64."""
    listed = runner.run(runner.program("gradcheck"), "--list")
    every = list(dict.fromkeys(line.split("/")[0] for line in listed.splitlines()))
    named = {op for some in OPS.values() for op in some}
    names = [op for op in every if op in OPS[group]] or [op for op in every if op not in named]
    for op in REHEARSED[group] if runner.simulated else names:
        runner.run(runner.program("gradcheck"), f"--device={runner.device}", f"--filter={op}/")
    return {"ops": names}, ""


def cudnn(runner):
    """attention's tests once more, on cuDNN's kernels."""
    pattern = "attention.Unaligned*/bf16" if runner.simulated else "attention.*/bf16"  # its graphs are made for bf16
    try:
        passed = test_ops(runner, pattern, dict(runner.environment, LOCKSTEP_ATTENTION="cudnn"),
                          fails_if="cuDNN's cannot do it")
    except Failed as error:
        reason = re.search(r"\(LOCKSTEP_ATTENTION=cudnn\) cannot run here: (.*)", error.log)
        # cuDNN is there and does not work: that is a failure.
        if reason is None or re.search("of a trial|has no plan|cuDNN: ", reason[1]):
            raise
        raise Skip(reason[1].strip()) from None
    return {"passed": passed}, f"{passed} tests of attention on cuDNN's kernels"


def sanitizer(runner, kind):
    if runner.simulated:
        raise Skip("the simulated GPU has detectors of its own")
    tool = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if tool is None:
        raise Skip("there is no compute-sanitizer in the PATH; it comes with the CUDA toolkit")
    exact = dict(runner.environment, LOCKSTEP_CUDA_ALLOCATOR="none")
    try:
        runner.run(tool, f"--tool={kind}", "--error-exitcode=9", runner.program("op_test"), "--device=cuda",
                   "--gtest_filter=attention.Unaligned*:softmax_cross_entropy.Orders*:residual_norm.Unaligned*",
                   environment=exact)
    except Failed as error:
        if "not supported" in error.log:
            raise Skip("compute-sanitizer does not support this GPU") from None
        raise
    return {}, f"{kind} is clean"


# ---- Helpers. ----


def figures_of(shape, out):
    """The speed of the steps that the run has timed, without the first ones."""
    times = [s["ms"] for s in steps(out)][len(steps(out)) // 4:]
    per_step = shape.sequence * shape.batch
    halves = [per_step / statistics.median(half) * 1e3 for half in (times[::2], times[1::2]) if half]
    return {"tokens_per_second": per_step / statistics.median(times) * 1e3, "ms": statistics.median(times),
            "tokens_per_second_of_halves": halves, "batch": shape.batch, "steps": len(times)}


def kernels_of(runner, out, environment=None):
    """The kernels that the run in bf16 used; Failed if attention used unexpected ones."""
    told = json.loads((out / "kernels.json").read_text())
    expected = libraries.expected_attention(runner.machine, environment or runner.environment)
    return {"kernels": libraries.check_attention(told["choices"], expected), "libraries": told["libraries"]}


def test_ops(runner, pattern, environment, *more, fails_if=None):
    """How many tests of ops passed; Failed if op_test's output contains `fails_if`."""
    with runner.start(runner.program("op_test"), f"--device={runner.device}", f"--gtest_filter={pattern}", *more,
                      environment=environment) as running:
        code = running.end()
        passed = re.search(r"\[  PASSED  \] (\d+) test", running.out())
        if code != 0:
            raise running.failed(f"op_test exited with {code}: {running.last_line()}")
        if passed is None or int(passed[1]) == 0:
            raise running.failed(f"no test ran: {running.last_line()}")
        if fails_if and fails_if in running.error():
            raise running.failed(f"other kernels replaced some: {fails_if}")
    return int(passed[1])


def peer(runner, python, shape, dtype, *more):
    """The output of PyTorch's GPT-2 for each step, and for all."""
    out = runner.run(python, Path(__file__).parent / "torch_gpt2.py", "--n-layer", shape.layers, "--n-head",
                     shape.heads, "--n-embd", shape.width, "--vocab", shape.vocabulary, "--seq", shape.sequence,
                     "--max-seq", shape.sequence, "--batch", shape.batch, "--steps", shape.steps, "--dtype", dtype,
                     "--device", "cpu" if runner.simulated else "cuda", *more, environment=environment_of_others())
    return [json.loads(line) for line in out.splitlines()]

