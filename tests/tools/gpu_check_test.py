#!/usr/bin/env python3
"""Tests of tools/gpu_check, with stand-ins for the bundle's programs."""
import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
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
          "glibc": "2.34", "glibcxx": "3.4.30"}


GPU = {"name": "simulated GPU", "kind": "simulated GPU", "gpus": 1}


def runs(process):
    """Whether the process exists and is no zombie; it may end at any moment."""
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().split()[2]
    except (FileNotFoundError, ProcessLookupError):
        return False


class GpuCheckTest(unittest.TestCase):

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

    def test_plays_every_slice(self):
        status, lines, slices = self.check()
        self.assertEqual(status, 0, lines)
        self.assertEqual(list(slices), list(gpu_check.SLICES))
        skipped = {name for name in slices if slices[name]["state"] == "skipped"}
        self.assertEqual(skipped, {name for name in slices if "cudnn" in name and "torch" in name} |
                         {name for name in slices if "workspace" in name} |
                         {"kernels/ncu", "sanitizer/memcheck", "sanitizer/racecheck"})
        self.assertEqual({name for name in slices if slices[name]["state"] == "passed"}, set(slices) - skipped)
        table = {line.split()[0]: line for line in lines[2:2 + len(gpu_check.FIXES)]}
        self.assertEqual(list(table), list(dict.fromkeys(name.split("/")[0] for name in gpu_check.SLICES)))
        self.assertRegex(table["kernels"], r"^kernels +5 +0 +1 +0 +[0-9.]+  step B 16, 12 heads: 2.5 ms a step")
        self.assertIn("b16 3,200; b16-eager 3,200;", table["speed"])
        self.assertIn("b16 is 2.00 times torch's best", table["speed"])
        self.assertIn("products whose bits change with nothing f32 0/1, n f32 1/1", table["bits"])
        self.assertIn("run-1/metrics.jsonl", str(list(self.archived())))

    def test_the_first_ten_minutes_are_correctness_first(self):
        first = ["loader", "smoke", "ops/attention", "cudnn", "ops/rows", "parity/fp32", "speed/b16", "train/124M",
                 "kernels/step", "speed/b16-torch-compiled-cudnn", "speed/b16-eager", "peaks", "ops/products"]
        self.assertEqual(list(gpu_check.SLICES)[:len(first)], first)
        self.assertLess(sum(gpu_check.SLICES[name].seconds for name in first), 540)

    def test_cudnns_backward_in_workspaces_that_stay_in_the_cache(self):
        self.program("train_gpt", f"echo $LOCKSTEP_CUDNN_WORKSPACE_MIB >>{self.root}/workspaces\n"
                     + TRAIN.replace('"flash"', '"cuDNN: engine 6"'))
        with mock.patch.object(parts.libraries, "expected_attention", return_value="cuDNN"):
            slices = self.check("--only=" + ",".join(n for n in gpu_check.SLICES if "workspace" in n))[2]
        self.assertEqual({done["state"] for done in slices.values()}, {"passed"})
        self.assertEqual((self.root / "workspaces").read_text().split(), ["24", "48", "96"])

    def test_ops_leave_hashes_of_what_they_computed(self):
        def hashes():
            self.check("--again", "--only=ops/rows")
            return self.archived()["ops-rows/hashes.txt"].splitlines()

        before = hashes()
        self.assertRegex(before[0], "^# .*on simulated GPU, by build 1$")
        self.assertEqual(before[1:], ["softmax.odd/f32 ffffffffffffffff"])
        self.assertEqual(hashes(), before)
        # Also where a test failed.
        self.program("op_test", OPS.replace("18446744073709551615", "255") + "exit 1")
        self.assertEqual(hashes(), [before[0], "softmax.odd/f32 00000000000000ff"])
        self.assertEqual(self.slices()["ops/rows"]["state"], "failed")

    def test_what_was_found_can_be_sourced(self):
        found = {"LD_LIBRARY_PATH": "/a folder:/b"}
        with mock.patch.object(host, "find_cuda", return_value=found):
            _, lines, _ = self.check("--only=peaks")
        self.assertIn(str(self.root / "env.sh"), lines[-1])
        (self.root / "bin").mkdir()
        shutil.copy("/bin/true", self.root / "bin" / "train_gpt")
        told = subprocess.run(["bash", "-c", f"source '{self.root}/env.sh'; echo $LD_LIBRARY_PATH; command -v train_gpt"],
                              stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
        self.assertEqual(told, ["/a folder:/b", str(self.root / "bin" / "train_gpt")])

    def test_everything_that_is_missing_is_named_at_once(self):
        self.bundle.update(backend="cuda", cuda=13)
        argv = ["gpu_check", f"--out={self.out}"]
        (self.root / "bundle.json").write_text(json.dumps(self.bundle))
        with mock.patch.object(sys, "argv", argv), contextlib.redirect_stderr(io.StringIO()) as said, \
                mock.patch.object(host, "listed_libraries", return_value="libcublasLt.so.13 => not found"), \
                mock.patch.object(host.subprocess, "run", side_effect=[subprocess.CompletedProcess([], 0, ""),
                                                                       FileNotFoundError("nvidia-smi")]):
            self.assertEqual(gpu_check.main(), 2)
        self.assertIn("libcublasLt.so.13 of CUDA 13 not found\n  unpack lockstep-cuda.tar.gz", said.getvalue())
        self.assertIn("nvidia-smi cannot be run: nvidia-smi\n  install NVIDIA's driver", said.getvalue())

    def test_a_failed_smoke_tells_how_to_find_the_kernel(self):
        self.program("train_gpt", "exit 1")
        self.assertIn("LOCKSTEP_CUDA_SYNC=1", self.part("smoke")["fix"])

    def test_goes_on_with_what_has_not_passed(self):
        self.program("op_test", "echo first; echo oops; exit 1")
        status, lines, slices = self.check("--only=ops/rows,train/fp32,parity/fp32")
        self.assertEqual((status, slices["ops/rows"]["state"]), (1, "failed"))
        self.assertRegex(lines[2], r"^ops +0 +1 +0 +0 ")
        # Below the table is what to do: where the log is, and how to run the slice again.
        said = "\n".join(lines)
        self.assertRegex(said, r"ops/rows failed: op_test exited with 1: oops\n  .*=NAME repeats.*\n  its log: tar")
        self.assertIn("gpu_check --only=ops/rows", said)
        self.assertRegex(self.archived()["ops-rows/log"],
                         r"^\$ .*/op_test --device=sim --gtest_filter=\S+ --gtest_output=\S+\nfirst\noops\n$")
        self.assertEqual(slices["ops/rows"]["last_lines"][1:], ["first", "oops"])
        trained = self.runs("train_gpt")
        self.program("op_test", OPS)
        status, _, slices = self.check("--only=ops/rows,train/fp32,parity/fp32")
        self.assertEqual((status, slices["ops/rows"]["state"]), (0, "passed"))
        self.assertEqual(self.runs("train_gpt"), trained)
        self.assertNotIn("ops-rows/log", self.archived(), "it is of the run that failed")
        self.assertIn("train-fp32/run-1/metrics.jsonl", self.archived())
        self.check("--again", "--only=train/fp32")
        self.assertEqual(self.runs("train_gpt"), trained + 5)

    def test_a_slice_has_a_time_limit(self):
        self.program("gradcheck", "sleep 1000 & sleep 1000")
        status, _, slices = self.check("--only=gradients/rows,peaks", "--patience=0.02")
        self.assertEqual((status, slices["peaks"]["state"]), (1, "passed"))
        failed = slices["gradients/rows"]
        self.assertIn("out of time in gradcheck; its last output: it wrote nothing", failed["text"])
        self.assertIn("--patience", failed["fix"])

    def test_the_order(self):
        self.check("--only=bits,ops/rows,peaks")
        played = re.findall(r"^(\S+): passed", self.said.getvalue(), re.MULTILINE)
        self.assertEqual(played, ["bits", "ops/rows", "peaks"])
        for first, then in (({"state": "unfinished", "tries": 1}, {}), ({}, {"state": "failed"}),
                            ({"state": "failed"}, {"state": "skipped"}),
                            ({"state": "skipped"}, {"state": "unfinished", "tries": 2})):
            self.assertLess(gpu_check.turn(first), gpu_check.turn(then))
        with self.assertRaises(SystemExit):
            self.check("--only=bits,opps")
        self.assertIn("there is no part or slice 'opps'; choose from loader, peaks,", self.said.getvalue())

    def test_a_budget_is_kept(self):
        # ops/rows is expected to take 20 s, and peaks 5.
        self.program("bench", "echo begun; sleep 1000")
        begin = time.monotonic()
        status, lines, slices = self.check("--only=bits,ops/rows,cudnn", "--budget=1")
        self.assertLess(time.monotonic() - begin, 10)
        self.assertEqual((status, list(slices)), (3, ["bits"]), "the first one has all of the budget, others must fit")
        self.assertEqual(slices["bits"]["text"], "the budget was spent in bench; its last output: begun")
        self.assertIn("left for the next call: bits, ops/rows, cudnn", lines)
        # A slice that was stopped runs first in the next call, and last after being stopped again.
        self.check("--only=ops/rows,bits", "--budget=1")
        self.assertEqual(self.slices()["bits"]["tries"], 2)
        self.check("--only=ops/rows,bits", "--budget=1")
        self.assertEqual(self.said.getvalue()[:15], "ops/rows: passe")

    def test_killed_at_any_moment_it_goes_on(self):
        """Uses the bundle's script, with programs that take 0.1 s: each signal comes during another slice."""
        shutil.copytree("tools/gpu_check", self.root / "checks", dirs_exist_ok=True)
        (self.root / "bundle.json").write_text(json.dumps(self.bundle))
        for name, body in (("op_test", OPS), ("bench", BENCH), ("train_gpt", TRAIN), ("gradcheck", GRADCHECK)):
            self.program(name, f"sleep 0.1; {body}")
        wanted = ["bits", "smoke", "train/bf16", "ops/rows", "gradients/rows", "peaks", "kernels/step", "speed/b16"]
        command = [sys.executable, self.root / "checks/gpu_check.py", "--simulated", f"--out={self.out}",
                   f"--only={','.join(wanted)}", f"--python={self.torch}", "--budget=540"]
        for index, number in enumerate([signal.SIGKILL, signal.SIGTERM] * 3):
            before = self.slices()
            passed = [name for name in before if before[name]["state"] == "passed"]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            while len(self.slices()) <= index:  # until the next slice has begun
                time.sleep(0.01)
            time.sleep(0.03 * (index % 3))
            process.send_signal(number)
            text, said = process.communicate(timeout=60)
            after = self.slices()
            for name in passed:
                self.assertEqual(after[name], before[name], "what has passed is not run again")
                self.assertNotIn(f"{name}:", said)
            running = [name for name in after if after[name]["state"] == "unfinished"]
            self.assertLessEqual(len(running), 1)
            if number == signal.SIGKILL:
                self.assertEqual(process.returncode, -signal.SIGKILL)
                continue
            self.assertEqual(process.returncode, 3, said)
            self.assertRegex(text, r"on simulated GPU, .*\npart .*\n(.*\n)*left for the next call: ")
            self.assertEqual(json.loads(self.archived()["out.json"])["simulated GPU, build 1"], after)
            for name in running:
                self.assertRegex(after[name]["text"], "^stopped by SIGTERM")
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual({known["state"] for known in self.slices().values()}, {"passed"})
        self.assertEqual(set(self.slices()), set(wanted))

    def test_no_program_outlives_a_killed_gpu_check(self):
        shutil.copytree("tools/gpu_check", self.root / "checks", dirs_exist_ok=True)
        (self.root / "bundle.json").write_text(json.dumps(self.bundle))
        self.program("bench", f"echo $$ >{self.root}/process; exec sleep 100")
        process = subprocess.Popen([sys.executable, self.root / "checks/gpu_check.py", "--simulated", "--only=peaks",
                                    f"--out={self.out}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        file = self.root / "process"
        while not file.exists() or not file.read_text().strip():
            time.sleep(0.01)
        process.kill()
        process.wait()
        child = int(file.read_text())
        while runs(child):
            time.sleep(0.01)
        self.assertEqual(self.slices()["peaks"]["text"], "was running when gpu_check was killed")

    def test_ranks_that_differ_from_accumulation_are_a_failure(self):
        ours = TRAIN + "[[ $* != *grad_accum* ]] || "
        for change, words in (("echo other >$out/latest/model.safetensors", "but the last weights differ"),
                              ("sed -i s/4.5/4.6/ $out/metrics.jsonl", "losses of 2 ranks are [4.5, ")):
            self.program("train_gpt", ours + change)
            self.assertIn(words, self.part("ranks/bits")["text"])

    def test_the_first_failure_of_ranks_is_told(self):
        said = "echo 'launch: the first failure: rank 1: Duplicate GPU'; echo 'launch: after it: rank 0'; exit 1"
        self.program("launch", said)
        part = self.part("ranks/bits")
        self.assertEqual((part["state"], part["text"]), ("failed", "rank 1: Duplicate GPU"))
        self.assertIn("install NCCL 2.20", part["fix"])

    def test_a_failed_rank_that_nobody_names_is_a_failure(self):
        for said, instead, words in (("rank 1 is $word", "something is $word", "nobody said 'rank 0.*rank 1 is gone'"),
                                     ("rank 0 ended with exit code 1", "rank 0 was killed by signal 9",
                                      "nobody said 'rank 0 ended with exit code 1'"),
                                     ("word=stalled", "word=gone", "nobody said 'rank 0.*rank 1 is stalled'"),
                                     ("echo \"[0] step", "exit 3; echo \"", "launch ended before it wrote")):
            self.program("launch", LAUNCH.replace(said, instead))
            self.assertIn(words, self.part("ranks/failures")["text"])
            self.assertIn("dist.heartbeat", self.archived()["ranks-failures/log"])
        self.program("launch", LAUNCH)
        self.program("flight", "echo 'verdict: rank 0 at fault'")
        self.assertIn("the flight records do not say so", self.part("ranks/failures")["text"])

    def test_ranks_that_end_late_are_a_failure(self):
        with mock.patch.object(ranks, "MAX_SECONDS", -1):
            self.assertIn("had ended only", self.part("ranks/failures")["text"])

    def test_ranks_share_a_gpu_as_nccl_allows_it(self):
        self.program("launch", f"env >{self.root}/environment" + LAUNCH)
        self.assertEqual(self.part("ranks/bits")["state"], "passed")
        with_one = (self.root / "launch.runs").read_text().splitlines()[0]
        self.assertRegex(with_one, r"--nproc=2 .* -- sh -c .*LOCAL_RANK=0 NCCL_HOSTID=rank\$RANK.* rank /")
        self.assertIn("NCCL_P2P_DISABLE=1", (self.root / "environment").read_text())
        # With a GPU each, none of this is set.
        self.assertEqual(self.part("ranks/two-gpus")["state"], "passed")
        self.assertNotIn("NCCL_P2P_DISABLE", (self.root / "environment").read_text())
        with mock.patch.object(host, "describe_machine", return_value=GPU):
            self.assertEqual(self.part("ranks/two-gpus")["state"], "skipped")

    def test_does_without_nccl(self):
        why = "NCCL, which training on several GPUs needs, cannot be loaded (x); install libnccl2"
        self.program("launch", f"echo 'train_gpt: {why}'; exit 1")
        part = self.part("ranks/bits")
        self.assertEqual((part["state"], part["text"]), ("skipped", why))

    def test_no_test_that_ran_is_a_failure(self):
        self.program("op_test", "echo '[  PASSED  ] 0 tests.'")
        self.assertEqual(self.part("ops/rows")["text"], "no test ran: [  PASSED  ] 0 tests.")

    def test_no_cudnn_is_no_failure_but_a_wrong_one_is(self):
        self.program("op_test", NO_CUDNN + OPS)
        for reason, state in (("cuDNN cannot be loaded", "skipped"), ("it is used on GPUs", "skipped"),
                              ("its result 0 of a trial is off by nan", "failed"), ("cuDNN has no plan", "failed")):
            with mock.patch.dict(os.environ, REASON=reason):
                part = self.check("--only=ops/rows,cudnn", "--again")[2]
            self.assertEqual((part["ops/rows"]["state"], part["cudnn"]["state"]), ("passed", state), reason)

    def test_cudnn_is_asked_for_what_it_does(self):
        self.program("op_test", "[[ $* == *attention.*/bf16 ]] || REASON='its graphs are made for bf16'\n"
                     "[[ ! $REASON ]] || { " + NO_CUDNN + "}; " + OPS)
        self.assertEqual(self.part("cudnn")["state"], "passed")

    def test_other_weights_are_a_failure(self):
        for option in ("$*", "$(grep -o cuda_graphs <<<$*)", "$LOCKSTEP_CUDA_POISON",
                       "$(cat train_gpt.count; echo x >>train_gpt.count)"):
            self.program("train_gpt", TRAIN.replace("echo weights", f"echo \"{option}\""))
            self.assertIn("differ from the first's", self.part("train/bf16")["text"], option)

    def test_other_losses_are_a_failure(self):
        for loss in ("4.51", "NaN"):
            self.program("torch", TORCH.replace("4.5001", loss))
            self.assertIn("not within 2e-3", self.part("parity/fp32")["text"], loss)
        self.program("torch", TORCH.replace("4 5", "4"))
        self.assertIn("6 and 5 losses of 6 steps", self.part("parity/fp32")["text"])

    def test_bf16_must_be_as_torch_rounds_it(self):
        """PyTorch's losses over 32 tokens are 4.5 in f32 and 4.6 in bf16, so Lockstep's may be 0.0555 from those."""
        rounded = TORCH.replace("4.5001", "'$(if [[ $* == *fp32* ]]; then echo 4.5; else echo 4.6; fi)'")
        self.program("torch", rounded)
        for ours, state in ((4.545, "passed"), (4.655, "passed"), (4.544, "failed"), ("NaN", "failed")):
            self.program("train_gpt", TRAIN.replace("4.5,", f"{ours},"))
            self.assertEqual(self.part("parity/bf16")["state"], state, ours)

    def test_does_without_torch(self):
        self.torch = self.program("torch", "exit 1")
        status, _, slices = self.check("--only=parity,speed/b16,speed/b16-torch")
        states = {name: slices[name]["state"] for name in ("parity/fp32", "speed/b16-torch", "speed/b16")}
        self.assertEqual((status, list(states.values())), (0, ["skipped", "skipped", "passed"]))

    def test_a_peer_that_does_not_compile_is_no_failure(self):
        self.program("torch", TORCH.replace("for step", "[[ $* == *--compile* ]] && { echo no cc; exit 1; }; for step"))
        status, lines, slices = self.check("--only=speed/b8,speed/b8-torch,speed/b8-torch-compiled")
        self.assertEqual(status, 0)
        self.assertIn("speed/b8-torch-compiled skipped: torch exited with 1: no cc", lines)
        self.assertIn("no cc", self.archived()["speed-b8-torch-compiled/log"])
        self.assertIn("b8 is 2.00 times torch's best", lines[2])

    def test_attention_by_other_kernels_than_expected_is_a_failure(self):
        choice = {"op": "attention_forward", "problem": "B16", "kernel": "plain", "why_slow": "heads of 65"}
        told = {"libraries": ["/x/libcublasLt.so.13"], "choices": [dict(choice, op="matmul"), choice]}
        self.program("train_gpt", TRAIN + f"echo '{json.dumps(told)}' >$out/kernels.json")
        self.assertEqual(self.part("speed/b8-fp32")["state"], "passed")
        part = self.part("speed/b16")
        self.assertEqual((part["state"], part["text"]),
                         ("failed", "attention_forward of B16 used plain, not flash: heads of 65"))
        self.assertGreater(part["values"]["tokens_per_second"], 0)
        self.assertIn("speed-b16/run-1/kernels.json", self.archived())
        choice.update(kernel="flash_mma", why_slow="")
        self.program("train_gpt", TRAIN + f"echo '{json.dumps(told)}' >$out/kernels.json")
        part = self.part("speed/b16")
        self.assertEqual(part["values"]["kernels"], {"choices": 2, "slow": [dict(choice, op="matmul", kernel="plain",
                                                                                  why_slow="heads of 65")]})

    def test_kernels_of_the_last_step(self):
        with mock.patch.object(parts.shutil, "which", return_value=str(self.program("ncu", NCU))):
            part = self.part("kernels/ncu")
            self.assertEqual(part["values"]["kernels"], {
                "cuBLASLt": {"ms": 3.0, "launches": 2}, "NormKernel": {"ms": 0.0005, "launches": 1},
                "UpdateKernel": {"ms": 1.4e-05, "launches": 2}})
            self.program("ncu", "echo '==ERROR== ERR_NVGPUCTRPERM: no permission'; exit 1")
            part = self.part("kernels/ncu")
        self.assertEqual((part["state"], part["text"]),
                         ("skipped", "ncu cannot measure here: ERR_NVGPUCTRPERM: no permission"))

    def test_a_file_that_is_not_its_own_is_left_alone(self):
        for path, text in ((self.out, "{"), (self.out, "[1]"), (self.out.with_suffix(".tar.gz"), "no archive")):
            path.write_text(text)
            with mock.patch.object(self, "slices"):
                self.assertEqual(self.check("--only=peaks")[0], 2)
            self.assertIn("was not written by gpu_check", self.said.getvalue())
            self.assertEqual(path.read_text(), text)
            path.unlink()

    def test_results_of_other_machines_and_builds_stay(self):
        self.check("--only=peaks")
        with mock.patch.object(host, "describe_machine", return_value=dict(GPU, kind="another GPU")):
            self.check("--only=peaks")
        self.assertEqual(self.runs("bench"), 2)
        self.bundle["build"] = "2"
        self.check("--only=peaks")
        self.assertEqual(self.runs("bench"), 3)
        self.bundle["build"] = "1"
        self.check("--only=peaks")
        self.assertEqual(self.runs("bench"), 3)
        self.assertEqual(list(json.loads(self.out.read_text())),
                         ["simulated GPU, build 1", "another GPU, build 1", "simulated GPU, build 2"])


if __name__ == "__main__":
    unittest.main()
