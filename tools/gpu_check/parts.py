"""The parts of gpu_check on one process: each takes a Runner and returns what goes into the JSON file, and
its line of the table; or raises Skip or Failed."""
import json
import os
import re
import shutil
import statistics
from pathlib import Path

from runner import SMALL, TINY, Failed, Shape, Skip, losses, steps, weights

GPT2 = Shape(12, 12, 768, 50304, 1024, 8, 30)


def ops(runner):
    """Each op against its fp64 reference."""
    tested = ["softmax_cross_entropy", "layer_norm"] if runner.simulated else ["*"]
    pattern = ":".join(f"{op}.*" for op in tested) + "-OpTest.*"  # that one reads the source tree
    passed = test_ops(runner, pattern)
    return {"passed": passed}, f"{passed} tests of ops passed"


def cudnn(runner):
    """attention's tests once more, on cuDNN's kernels."""
    pattern = "attention.Unaligned*" if runner.simulated else "attention.*"
    try:
        passed = test_ops(runner, pattern, environment=dict(runner.environment, LOCKSTEP_ATTENTION="cudnn"))
    except Failed as error:
        reason = re.search(r"\(LOCKSTEP_ATTENTION=cudnn\) cannot run here: (.*)", error.log)
        # It is there, and is not what it should be: that is a finding.
        if reason is None or re.search("of a trial|has no plan|cuDNN: ", reason[1]):
            raise
        raise Skip(reason[1].strip()) from None
    return {"passed": passed}, f"{passed} tests of attention passed on cuDNN's kernels"


def gradients(runner):
    checked = ["linear"] if runner.simulated else [""]
    for op in checked:
        runner.run(runner.program("gradcheck"), f"--device={runner.device}", f"--filter={op}")
    return {"ops": checked}, "gradients agree with the CPU's f64"


def sanitizer(runner):
    if runner.simulated:
        raise Skip("the simulated GPU has detectors of its own")
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        raise Skip("there is no compute-sanitizer in the PATH; it comes with the CUDA toolkit")
    exact = dict(runner.environment, LOCKSTEP_CUDA_ALLOCATOR="none")
    try:
        for kind in ("memcheck", "racecheck"):
            runner.run(tool, f"--tool={kind}", "--error-exitcode=9", runner.program("op_test"), "--device=cuda",
                       "--gtest_filter=attention.Unaligned*:softmax_cross_entropy.Orders*", environment=exact)
    except Failed as error:
        if "not supported" in error.log:
            raise Skip("compute-sanitizer does not support this GPU") from None
        raise
    return {}, "memcheck and racecheck are clean"


def train(runner):
    """Two runs give the same bits; so do graphs and eager steps."""
    shape = TINY if runner.simulated else SMALL
    for precision in ("fp32", "bf16"):
        first, second, eager = (weights(runner.train(shape, precision, *more))
                                for more in ((), (), ("--train.cuda_graphs=false",)))
        for name, other in (("second", second), ("eager", eager)):
            if other != first:
                raise Failed(f"in {precision} the weights of the {name} run differ from the first's")
    return ({"steps": shape.steps},
            f"{shape.steps} steps in fp32 and bf16: the same bits again, by graphs and eagerly")


def parity(runner):
    """Losses beside PyTorch's, from the same weights and data."""
    python = runner.torch()
    shape = TINY if runner.simulated else SMALL
    out = runner.train(shape, "fp32", "--data.order=sequential", "--checkpoint.save_initial=true",
                       "--checkpoint.keep=0", "--optim.schedule=constant", "--optim.warmup=0", "--optim.lr=3e-4",
                       "--optim.beta2=0.95", "--optim.weight_decay=0.1")
    ours = losses(out)
    initial = out / "checkpoints/step-00000000/model.safetensors"
    theirs = peer(runner, python, shape, "fp32", "--init", initial, "--tokens", runner.tokens(shape))
    if not len(ours) == len(theirs) - 1 == shape.steps:
        raise Failed(f"{len(ours)} losses beside {len(theirs) - 1} of PyTorch, of {shape.steps} steps")
    differences = [abs(a - b["loss"]) for a, b in zip(ours, theirs)]
    if not all(x <= 2e-3 for x in differences):  # so that NaN is none of them
        raise Failed(f"losses are not within 2e-3 of PyTorch's: {differences}")
    worst = max(differences)
    return {"largest_difference": worst}, f"losses within {worst:.1e} of PyTorch's"


def bench(runner):
    out = runner.scratch / "bench.json"
    more = ["--filter=scale", "--ms=1"] if runner.simulated else []
    runner.run(runner.program("bench"), f"--device={runner.device}", f"--json={out}", *more)
    result = json.loads(out.read_text())
    copy = result["copy_bytes_per_second"] / 1e9
    gemm = ", ".join(f"{dtype} {flops / 1e12:.1f}" for dtype, flops in result["gemm_flops_per_second"].items())
    return result, f"{len(result['benchmarks'])} benchmarks; copy {copy:.0f} GB/s, GEMM {gemm} TFLOP/s"


def speed(runner):
    """Tokens per second, with and without CUDA graphs, beside PyTorch's with its flash attention."""
    shape = TINY if runner.simulated else GPT2
    figures, notes = {}, {}
    flash = dict(runner.environment, LOCKSTEP_ATTENTION="flash")
    for name, precision, more, environment in (
            ("lockstep fp32", "fp32", (), None), ("lockstep bf16", "bf16", (), None),
            ("lockstep bf16 without graphs", "bf16", ("--train.cuda_graphs=false",), None),
            ("lockstep bf16 without cuDNN", "bf16", (), flash)):
        done = steps(runner.train(shape, precision, *more, environment=environment))
        figures[name] = shape.sequence * shape.batch / statistics.median(s["ms"] for s in done[3:]) * 1e3
    try:
        python = runner.torch()
        for name, more in (("torch bf16 eager", ()), ("torch bf16 compiled", ("--compile",))):
            try:
                figures[name] = peer(runner, python, shape, "bf16", *more)[-1]["tokens_per_second"]
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


def test_ops(runner, pattern, environment=None):
    """How many tests of ops passed."""
    with runner.start(runner.program("op_test"), f"--device={runner.device}", f"--gtest_filter={pattern}",
                      environment=environment) as running:
        code = running.end()
        passed = re.search(r"\[  PASSED  \] (\d+) test", running.out())
        if code != 0:
            raise running.failed(f"op_test exited with {code}: {running.last_line()}")
        if passed is None or int(passed[1]) == 0:
            raise running.failed(f"no test ran: {running.last_line()}")
    return int(passed[1])


def peer(runner, python, shape, dtype, *more):
    """What PyTorch's GPT-2 says of each step, and of all."""
    out = runner.run(python, Path(__file__).parent / "torch_gpt2.py", "--n-layer", shape.layers, "--n-head",
                     shape.heads, "--n-embd", shape.width, "--vocab", shape.vocabulary, "--seq", shape.sequence,
                     "--max-seq", shape.sequence, "--batch", shape.batch, "--steps", shape.steps, "--dtype", dtype,
                     "--device", "cpu" if runner.simulated else "cuda", *more, environment=dict(os.environ))
    return [json.loads(line) for line in out.splitlines()]
