#!/usr/bin/env python3
"""Tests of tools/gpu_check.py, with stand-ins for the bundle's programs."""
import contextlib
import importlib.util
import io
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

_spec = importlib.util.spec_from_file_location("gpu_check", os.path.join("tools", "gpu_check.py"))
gpu_check = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(gpu_check)

OPS = "echo '[  PASSED  ] 3 tests.'"
BENCH = r"""
for a in "$@"; do [[ $a == --json=* ]] && out=${a#--json=}; done
echo '{"copy_bytes_per_second": 2e9, "gemm_flops_per_second": {"f32": 3e12}, "benchmarks": {"x": {}}}' >"$out"
"""
# Without cuDNN, as op_test says it, and all of what it prints after.
NO_CUDNN = r"""
if [[ $LOCKSTEP_ATTENTION == cudnn ]]; then
  echo "attention by cuDNN (LOCKSTEP_ATTENTION=cudnn) cannot run here: $REASON"
  yes | head -n 2000
  exit 1
fi
"""
# Six steps of 10 ms, and weights that say nothing of the options.
TRAIN = r"""
for a in "$@"; do [[ $a == --out_dir=* ]] && out=${a#--out_dir=}; done
mkdir -p "$out/latest"
for step in 0 1 2 3 4 5; do echo '{"loss": 4.5, "ms": 10}'; done >"$out/metrics.jsonl"
echo weights >"$out/latest/model.safetensors"
"""
# A python that imports torch, and prints a line per step and the medians.
TORCH = r"""
[[ $1 == -c ]] && exit 0
for step in 0 1 2 3 4 5; do echo '{"loss": 4.5001}'; done
echo '{"tokens_per_second": 1600}'
"""


class GpuCheckTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        (self.root / "bin").mkdir()
        patch = mock.patch.object(gpu_check, "HERE", self.root)
        patch.start()
        self.addCleanup(patch.stop)
        for name, body in (("op_test", OPS), ("gradcheck", ""), ("bench", BENCH), ("train_gpt", TRAIN)):
            self.program(name, body)
        self.torch = self.program("torch", TORCH)

    def program(self, name, body):
        """A program that notes each of its runs in NAME.runs."""
        path = self.root / "bin" / name
        path.write_text(f"#!/bin/bash\necho \"$@\" >>{self.root}/{name}.runs\n{body}\n")
        path.chmod(0o755)
        return path

    def runs(self, name):
        path = self.root / f"{name}.runs"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def check(self, *args):
        """Its exit status, the table's lines and the JSON file's parts."""
        out = self.root / "out.json"
        argv = ["gpu_check", "--simulated", f"--out={out}", f"--python={self.torch}", *args]
        with mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(io.StringIO()) as text, \
                contextlib.redirect_stderr(io.StringIO()) as self.said:
            status = gpu_check.main()
        return status, text.getvalue().splitlines(), json.loads(out.read_text())["parts"]

    def test_runs_every_part(self):
        status, lines, parts = self.check()
        self.assertEqual(status, 0, lines)
        self.assertEqual(len(lines), 1 + len(gpu_check.PARTS))
        self.assertEqual({name for name in parts if parts[name]["state"] == "passed"},
                         set(gpu_check.PARTS) - {"sanitizer"})
        self.assertEqual(parts["speed"]["values"]["tokens_per_second"],
                         {"lockstep fp32": 6400, "lockstep bf16": 6400, "lockstep bf16 without graphs": 6400,
                          "lockstep bf16 without cuDNN": 6400,
                          "torch bf16 eager": 1600, "torch bf16 compiled": 1600})
        self.assertEqual(parts["speed"]["values"]["bf16_over_torch"], 4)

    def test_goes_on_with_what_has_not_passed(self):
        self.program("op_test", "echo oops; exit 1")
        status, lines, parts = self.check()
        self.assertEqual((status, parts["ops"]["state"]), (1, "failed"))
        self.assertIn("op_test exited with 1: oops", lines[1])
        trained = self.runs("train_gpt")
        self.assertGreater(trained, 0)
        self.program("op_test", OPS)
        status, _, parts = self.check()
        self.assertEqual((status, parts["ops"]["state"]), (0, "passed"))
        self.assertEqual(self.runs("train_gpt"), trained)
        self.check("--again", "--only=train")
        self.assertEqual(self.runs("train_gpt"), trained + 6)

    def test_a_part_has_a_time_limit(self):
        self.program("gradcheck", "sleep 60 & sleep 60")
        with mock.patch.dict(gpu_check.PARTS, gradients=(0.5, 0.5)):
            status, lines, parts = self.check("--only=gradients,bench")
        self.assertEqual(status, 1)
        self.assertIn("out of time in", parts["gradients"]["text"])
        self.assertEqual(parts["bench"]["state"], "passed")

    def test_no_test_that_ran_is_a_failure(self):
        self.program("op_test", "echo '[  PASSED  ] 0 tests.'")
        self.assertEqual(self.check("--only=ops")[2]["ops"]["text"], "no test ran")

    def test_no_cudnn_is_no_failure_but_a_wrong_one_is(self):
        self.program("op_test", NO_CUDNN + OPS)
        for reason, state in (("cuDNN cannot be loaded", "skipped"), ("it is used on GPUs", "skipped"),
                              ("its result 0 of a trial is off by nan", "failed"), ("cuDNN has no plan", "failed")):
            with mock.patch.dict(os.environ, REASON=reason):
                part = self.check("--only=ops,cudnn", "--again")[2]
            self.assertEqual((part["ops"]["state"], part["cudnn"]["state"]), ("passed", state), reason)

    def test_other_weights_are_a_failure(self):
        for option in ("$*", "$(grep -o cuda_graphs <<<$*)", "$(cat train_gpt.count; echo x >>train_gpt.count)"):
            self.program("train_gpt", TRAIN.replace("echo weights", f"echo \"{option}\""))
            self.assertIn("differ from the first's", self.check("--only=train")[2]["train"]["text"], option)

    def test_other_losses_are_a_failure(self):
        for loss in ("4.51", "NaN"):
            self.program("torch", TORCH.replace("4.5001", loss))
            self.assertIn("not within 2e-3", self.check("--only=parity")[2]["parity"]["text"], loss)
        self.program("torch", TORCH.replace("4 5", "4"))
        self.assertIn("6 losses beside 5", self.check("--only=parity")[2]["parity"]["text"])

    def test_does_without_torch(self):
        self.torch = self.program("torch", "exit 1")
        status, _, parts = self.check("--only=parity,speed")
        self.assertEqual((status, parts["parity"]["state"], parts["speed"]["state"]), (0, "skipped", "passed"))

    def test_a_peer_that_does_not_compile_is_no_failure(self):
        self.program("torch", TORCH.replace("for step", "[[ $* == *--compile* ]] && exit 1; for step"))
        status, lines, parts = self.check("--only=speed")
        self.assertEqual(status, 0)
        self.assertIn("no torch bf16 compiled", lines[1])

    def test_a_file_of_another_machine_is_refused(self):
        self.check("--only=bench")
        out = self.root / "out.json"
        out.write_text(out.read_text().replace("simulated GPU", "another GPU"))
        with self.assertRaises(SystemExit):
            self.check("--only=bench")
        self.assertIn("is of a run on another GPU", self.said.getvalue())


if __name__ == "__main__":
    unittest.main()
