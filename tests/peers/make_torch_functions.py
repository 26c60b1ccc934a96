#!/usr/bin/env python3
"""Compares Lockstep's functions with torch's: makes tests/kernels/testdata/torch_functions.safetensors.

    python3 tests/peers/make_torch_functions.py                      # the golden
    python3 tests/peers/make_torch_functions.py --check 50 SEED      # 50 new cases of each function

Needs torch and safetensors. The table of functions is in torch_functions.py. A case has base tensors
("7.in.0": f32, i64 or bool), views of them that are the function's inputs, torch's results in f64
("7.out.0"), and the gradients of the bases ("7.grad.0") for fixed gradients of the results; the file's
metadata says the rest in JSON. After these come the intended differences, DIFFERENCES below: what torch does
there, kernels/torch_differences.md and tests/kernels/torch_functions_test.cc say what Lockstep does.

--check writes such a file to a temporary folder and runs the test on it, so first:

    bazel build //tests/kernels:torch_functions_test
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import tempfile

import torch
from safetensors.torch import save_file

import torch_functions_shapes  # noqa: F401 (adds its functions)
from torch_functions import EXACT, FUNCTIONS, MODES, Draw, apply_views

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests/kernels/testdata/torch_functions.safetensors"
CASES, SEED = len(MODES), 20261125
NAN, INF = float("nan"), float("inf")


def ints(*values):
    return torch.tensor(values, dtype=torch.int64)


def floats(*values):
    return torch.tensor(values, dtype=torch.float32)


# Row of kernels/torch_differences.md: function, inputs, arguments.
DIFFERENCES = {
    "TopK of integers": ("torch.topk", [ints(1, 2)], {"k": 1, "dim": 0}),
    "Exp of integers": ("torch.exp", [ints(1, 2)], {}),
    "Two dtypes": ("torch.add", [floats(1, 2), ints(1, 2)], {}),
    "Integers beside a fraction": ("torch.lt", [ints(1, 2)], {"other": 1.5}),
    "Logic on numbers": ("torch.logical_and", [floats(1, 0), floats(2, 2)], {}),
    "Mean of nothing": ("torch.mean", [torch.zeros(0)], {}),
    "Mean loss of nothing": ("torch.nn.functional.mse_loss", [torch.zeros(0), torch.zeros(0)],
                             {"reduction": "mean"}),
    "Only ignored targets": ("torch.nn.functional.nll_loss", [floats([1, 2]), ints(-1)],
                             {"reduction": "mean", "ignore_index": -1}),
    "Var of too few": ("torch.var", [floats(1)], {"correction": 1}),
    "Gradient of equal extremes": ("torch.amax", [floats(2, 1, 2)], {}),
    "Gradient of equal norms": ("torch.linalg.vector_norm", [floats(2, 1, -2)], {"ord": "inf"}),
    "Gradient of Maximum beside NaN": ("torch.maximum", [floats(1, NAN), floats(NAN, 1)], {}),
    "Gradient of Maximum at its number": ("torch.maximum", [floats(1, 2)], {"other": 1.0}),
    "Gradient of Clamp at its limits": ("torch.clamp", [floats(-1, 0, 1)], {"min": -1.0, "max": 1.0}),
    "Gradient of Clamp at NaN": ("torch.clamp", [floats(NAN, 0)], {"min": -1.0, "max": 1.0}),
    "Gradient of Abs at NaN": ("torch.abs", [floats(NAN)], {}),
    "Gradient of Rsqrt at -0": ("torch.rsqrt", [floats(-0.0)], {}),
    "Gradient of LeakyRelu at NaN": ("torch.nn.functional.leaky_relu", [floats(NAN)], {"negative_slope": 0.5}),
    "Gradient of Prod at infinity": ("torch.prod", [floats(INF, 2, 0)], {"dim": [0]}),
    "Gradient of LogSumExp of -infinity": ("torch.logsumexp", [floats(-INF, -INF)], {"dim": [0]}),
    "Gradient of L1Loss at NaN": ("torch.nn.functional.l1_loss", [floats(NAN), floats(1)], {"reduction": "sum"}),
    "Gradient of several NaNs in a pool": (
        "torch.nn.functional.max_pool2d", [floats([[[NAN, NAN]]])],
        {"kernel_size": [1, 2], "stride": [1, 1], "padding": [0, 0], "dilation": [1, 1]}),
    "Sign of NaN": ("torch.sign", [floats(NAN)], {}),
    "Pow of -infinity": ("torch.pow", [floats(-INF)], {"exponent": -0.5}),
    "Clamp between crossed limits": ("torch.clamp", [floats(1, 2)], {"min": 2.0, "max": 1.0}),
    "Softplus of large numbers": ("torch.nn.functional.softplus", [floats(21)], {}),
    "Norms for other p": ("torch.linalg.vector_norm", [floats(1, 2)], {"ord": 3}),
    "Scatter to one place": ("torch.scatter", [floats(0, 0), ints(0, 0), floats(1, 2)], {"dim": 0}),
    "Gather of a part": ("torch.gather", [floats([1, 2], [3, 4]), ints([1])], {"dim": 0}),
    "Scatter of a part": ("torch.scatter", [floats([1, 2], [3, 4]), ints([1]), floats([9])], {"dim": 0}),
    "Pad that cuts": ("torch.nn.functional.pad", [floats(1, 2, 3)], {"pad": [-1, 0], "value": 0.0}),
    "Uneven Chunk": ("torch.chunk", [floats(1, 2, 3)], {"chunks": 2, "dim": 0}),
    "Squeeze of a larger size": ("torch.squeeze", [floats(1, 2)], {"dim": 0}),
    "Causal queries fewer than keys": ("torch.nn.functional.scaled_dot_product_attention",
                                       [floats([[[1]]]), floats([[[1], [2]]]), floats([[[1], [3]]])],
                                       {"is_causal": True}),
    "GELU's default": ("torch.nn.functional.gelu", [floats(1)], {}),
    "Ignored index's default": ("torch.nn.functional.cross_entropy", [floats([1, 2], [3, 4]), ints(1, -100)],
                                {"reduction": "sum"}),
    "RmsNorm's default eps": ("torch.nn.functional.rms_norm", [floats([0.001953125]), floats(1)], {}),
}


def weights(like, output):
    """The gradient of a result: none of its elements is 0."""
    i = torch.arange(like.numel(), dtype=torch.float64)
    return (((7 * i + 3 * output) % 11 - 5) / 4 + 0.125).reshape(like.shape)


def run(case, bases, tensors, number):
    """What torch makes of a case, into `tensors`; whether it threw into `case`."""
    def leaf(base, grad):
        return base.double().requires_grad_(grad) if base.dtype.is_floating_point else base
    leaves = [leaf(base, one["grad"]) for base, one in zip(bases, case["inputs"])]
    inputs = [apply_views(base, one["views"]) for base, one in zip(leaves, case["inputs"])]
    results = FUNCTIONS[case["function"]][1](inputs, dict(case["args"]))
    results = results if isinstance(results, (tuple, list)) else (results,)
    case["outputs"] = len(results)
    for i, base in enumerate(bases):
        tensors[f"{number}.in.{i}"] = base
    for i, result in enumerate(results):
        tensors[f"{number}.out.{i}"] = result.detach().contiguous().clone()
    roots = [(r, weights(r, i)) for i, r in enumerate(results) if r.requires_grad]
    wanted = [base for base in leaves if base.requires_grad] if roots else []
    if not roots:
        for one in case["inputs"]:
            one["grad"] = False
    else:
        grads = torch.autograd.grad([r for r, _ in roots], wanted, [w for _, w in roots],
                                    allow_unused=True, materialize_grads=True)
        grads = iter(grads)
        for i, base in enumerate(leaves):
            if base.requires_grad:
                tensors[f"{number}.grad.{i}"] = next(grads).contiguous().clone()


def write(path, cases_of_each, seed):
    cases, tensors = [], {}
    for name, (draw, _) in FUNCTIONS.items():
        for i in range(cases_of_each):
            d = Draw(random.Random(f"{seed} {name} {i}"), MODES[i % len(MODES)])
            draw(d)
            case = {"function": name, "args": d.args, "inputs": d.inputs, "exact": name in EXACT}
            run(case, d.bases, tensors, len(cases))
            cases.append(case)
    for title, (name, bases, args) in DIFFERENCES.items():
        case = {"function": name, "args": args, "difference": title,
                "inputs": [{"views": [], "grad": b.dtype.is_floating_point} for b in bases]}
        run(case, bases, tensors, len(cases))
        cases.append(case)
    path.parent.mkdir(parents=True, exist_ok=True)
    table = {"peer": f"torch {torch.__version__.split('+')[0]}", "cases": cases}
    # One entry: safetensors writes several in any order.
    save_file(tensors, path, {"table": json.dumps(table, separators=(",", ":"), allow_nan=False)})
    print(f"{path}: {len(cases)} cases of {len(FUNCTIONS)} functions, {path.stat().st_size} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", nargs=2, type=int, metavar=("CASES", "SEED"))
    parser.add_argument("--binary", default=ROOT / "bazel-bin/tests/kernels/torch_functions_test")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.check is None:
        write(OUT, CASES, SEED)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "torch_functions.safetensors"
        write(path, *options.check)
        subprocess.run([options.binary], cwd=ROOT, check=True,
                       env={**os.environ, "LOCKSTEP_TORCH_FUNCTIONS": str(path)})


if __name__ == "__main__":
    main()
