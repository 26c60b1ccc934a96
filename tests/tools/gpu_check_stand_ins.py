"""Stand-ins for the bundle's programs, with which tests run tools/gpu_check."""
import contextlib
import io
import json
import os
import re
import shutil
import signal
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, os.path.join("tools", "gpu_check"))
import gpu_check  # pylint: disable=wrong-import-position
import host
import parts
import ranks
import runner

OPS = r"""
for a in "$@"; do [[ $a != --gtest_output=json:* ]] || echo '{"testsuites": [{"name": "softmax", "testsuite": [
  {"name": "Orders/odd/f32", "hash": "18446744073709551615"}, {"name": "Unaligned/odd/f32"}]}]}' >"${a#*json:}"; done
echo '[  PASSED  ] 3 tests.'
"""
BENCH = r"""
for a in "$@"; do [[ $a == --json=* ]] && out=${a#--json=}; done
echo '{"copy_bytes_per_second": 2e9, "gemm_flops_per_second": {"f32": 3e12}, "benchmarks": {"x": {}},
  "step_ms": {"bf16": {"mlp forward": 2.5}}, "step_sum_ms": {"bf16": 2.5},
  "gemm_bits": [{"change": "nothing", "dtype": "f32", "different": 0},
                {"change": "n 8 of 16", "dtype": "f32", "different": 3}]}' >"$out"
"""
GRADCHECK = "echo linear/one; echo softmax_cross_entropy/one; echo layer_norm/one; echo scale/one"
# Without cuDNN: op_test's message, and all that it prints afterwards.
NO_CUDNN = r"""
if [[ $LOCKSTEP_ATTENTION == cudnn ]]; then
  echo "attention by cuDNN (LOCKSTEP_ATTENTION=cudnn) cannot run here: $REASON"
  yes | head -n 2000
  exit 1
fi
"""
# Six steps of 10 ms, and weights that do not depend on the options.
TRAIN = r"""
for a in "$@"; do [[ $a == --out_dir=* ]] && out=${a#--out_dir=}; done
mkdir -p "$out/latest"
for step in 0 1 2 3 4 5; do echo '{"loss": 4.5, "ms": 10}'; done >"$out/metrics.jsonl"
echo weights >"$out/latest/model.safetensors"
echo '{"libraries": [], "choices": [{"op": "attention_forward", "problem": "B2", "kernel": "flash", "why_slow": ""}]}' \
  >"$out/kernels.json"
if [[ $* == *--train.steps=1000000* ]]; then echo "step       2/1000000 | loss 4.5"; sleep 100; fi
"""
# Two steps; the second has two products and a norm.
NCU = r"""
[[ $* != *--launch-count=1* ]] || exit 0
echo "==PROF== Connected"; echo '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
for kernel in "void ns::(anonymous namespace)::UpdateKernel<ns::AdamWRule, (bool)1>(int):9" \
  "nvjet_tst_128x256:1000000" "void ns::<unnamed>::NormKernel<ns::bf16>(x):500" \
  "sm90_xmma_gemm_f32:2,000,000" "UpdateKernel(y):7" "UpdateKernel(y):7" "CopyKernel:1"; do
  echo "\"0\",\"${kernel%:*}\",\"gpu__time_duration.sum\",\"ns\",\"${kernel##*:}\""
done
"""
# Runs that end by themselves are one process; in others, rank 1 is a sleeping process.
LAUNCH = r"""
while [[ $1 != -- ]]; do shift; done
[[ $2 != sh ]] || while [[ $1 != rank ]]; do shift; done
shift
[[ $* == *--dist.heartbeat* ]] || exec "$@"
sleep 100 & victim=$!
echo "[1] process $victim"
echo "[0] step       5/1000000 | loss 4.5"
while state=$(grep -s State /proc/$victim/status) && [[ $state != *[TZ]\ \(* ]]; do sleep 0.01; done
if [[ $state == *T\ * ]]; then word=stalled; else word=gone; fi
kill -9 $victim
echo "[0] train_gpt: rank 0, group 'gradients', all_reduce #35: rank 1 is $word" >&2
echo "launch: after it: rank 0 ended with exit code 1" >&2
exit 1
"""
FLIGHT = "echo 'verdict: rank 1 at fault'"
# A python that imports torch, and prints a line per step and the medians.
TORCH = r"""
[[ $1 == -c ]] && exit 0
for step in 0 1 2 3 4 5; do echo '{"loss": 4.5001}'; done
echo '{"tokens_per_second": 1600}'
"""
BUNDLE = {"build": "1", "backend": "simulated", "cuda": None, "architectures": "compute_80:sm_80,compute_80;sm_90a",
          "glibc": "2.34", "glibcxx": "3.4.30", "loads": ""}


GPU = {"name": "simulated GPU", "kind": "simulated GPU", "gpus": 1}


class GpuCheckCase(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        (self.root / "libexec").mkdir()
        for module in (gpu_check, host, runner):
            patch = mock.patch.object(module, "HERE", self.root)
            patch.start()
            self.addCleanup(patch.stop)
        for name, body in (("op_test", OPS), ("gradcheck", GRADCHECK), ("bench", BENCH), ("train_gpt", TRAIN),
                           ("launch", LAUNCH), ("flight", FLIGHT)):
            self.program(name, body)
        # The tests must not depend on how busy the machine is, or on its own tools.
        for patch in (mock.patch.object(ranks, "MAX_SECONDS", 300),
                      mock.patch.object(parts.shutil, "which", return_value=None)):
            patch.start()
            self.addCleanup(patch.stop)
        for number in (signal.SIGTERM, signal.SIGINT):
            self.addCleanup(signal.signal, number, signal.getsignal(number))
        self.bundle = dict(BUNDLE)
        shutil.copy("/bin/true", self.root / "libexec" / "lockstep")
        self.torch = self.program("torch", TORCH)
        self.out = self.root / "out.json"

    def program(self, name, body):
        """A program that records each run in NAME.runs."""
        path = self.root / "libexec" / name
        path.write_text(f"#!/bin/bash\necho \"$@\" >>{self.root}/{name}.runs\n{body}\n")
        path.chmod(0o755)
        return path

    def runs(self, name):
        path = self.root / f"{name}.runs"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def check(self, *args):
        """gpu_check's exit status, the table's lines and the slices in the JSON file."""
        (self.root / "bundle.json").write_text(json.dumps(self.bundle))
        argv = ["gpu_check", "--simulated", f"--out={self.out}", f"--python={self.torch}", "--patience=20", *args]
        with mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(io.StringIO()) as text, \
                contextlib.redirect_stderr(io.StringIO()) as self.said:
            status = gpu_check.main()
        return status, text.getvalue().splitlines(), self.slices()

    def slices(self):
        runs = json.loads(self.out.read_text()) if self.out.exists() else {}
        return runs.get(f"simulated GPU, build {self.bundle['build']}", {})

    def part(self, name):
        """The result of running only this slice."""
        return self.check("--again", f"--only={name}")[2][name]

    def archived(self):
        """The files in the archive, by their paths below the folder of build and machine."""
        with tarfile.open(self.out.with_suffix(".tar.gz")) as tar:
            return {re.sub("^simulated-GPU-build-1/", "", member.name): tar.extractfile(member).read().decode()
                    for member in tar}
