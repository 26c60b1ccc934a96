#!/usr/bin/env python3
"""Tests of tools/gpu_check, with stand-ins for the bundle's programs."""
import contextlib
import io
import json
import os
import shutil
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, os.path.join("tools", "gpu_check"))
import gpu_check  # pylint: disable=wrong-import-position
import host
import ranks
import runner

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
# Runs that end by themselves as one process; of others, rank 1 is a process that sleeps.
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


class GpuCheckTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        (self.root / "bin").mkdir()
        for module in (gpu_check, host, runner):
            patch = mock.patch.object(module, "HERE", self.root)
            patch.start()
            self.addCleanup(patch.stop)
        for name, body in (("op_test", OPS), ("gradcheck", ""), ("bench", BENCH), ("train_gpt", TRAIN),
                           ("launch", LAUNCH), ("flight", FLIGHT)):
            self.program(name, body)
        patch = mock.patch.object(ranks, "MOST_SECONDS", 300)  # the machine may be busy
        patch.start()
        self.addCleanup(patch.stop)
        self.bundle = dict(BUNDLE)
        shutil.copy("/bin/true", self.root / "bin" / "lockstep")
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
        (self.root / "bundle.json").write_text(json.dumps(self.bundle))
        argv = ["gpu_check", "--simulated", f"--out={out}", f"--python={self.torch}", "--patience=20", *args]
        with mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(io.StringIO()) as text, \
                contextlib.redirect_stderr(io.StringIO()) as self.said:
            status = gpu_check.main()
        parts = json.loads(out.read_text())["parts"] if out.exists() else {}
        return status, text.getvalue().splitlines(), parts

    def test_runs_every_part(self):
        status, lines, parts = self.check()
        self.assertEqual(status, 0, lines)
        self.assertEqual(len(lines), 1 + len(gpu_check.PARTS))
        self.assertEqual({name for name in parts if parts[name]["state"] == "passed"},
                         set(gpu_check.PARTS) - {"sanitizer"})
        self.assertEqual(parts["speed"]["values"]["tokens_per_second"],
                         {"lockstep fp32": 3200, "lockstep bf16": 3200, "lockstep bf16 without graphs": 3200,
                          "lockstep bf16 without cuDNN": 3200,
                          "torch bf16 eager": 1600, "torch bf16 compiled": 1600})
        self.assertEqual(parts["speed"]["values"]["bf16_over_torch"], 2)

    def test_goes_on_with_what_has_not_passed(self):
        self.program("op_test", "echo first; echo oops; exit 1")
        status, lines, parts = self.check()
        self.assertEqual((status, parts["ops"]["state"]), (1, "failed"))
        self.assertRegex(lines[1], r"^ops +failed .* op_test exited with 1: oops$")
        # What to do stands below the table: where all of it is written, and how to run it again.
        self.assertRegex(lines[1 + len(gpu_check.PARTS)], r"^ops: .*--gtest_filter=NAME.*; its log is ")
        self.assertIn("gpu_check --only=ops", lines[2 + len(gpu_check.PARTS)])
        log = Path(parts["ops"]["log"]).read_text()
        self.assertRegex(log, r"^\$ .*/op_test --device=sim --gtest_filter=\S+\nfirst\noops\n$")
        trained = self.runs("train_gpt")
        self.assertGreater(trained, 0)
        self.program("op_test", OPS)
        status, _, parts = self.check()
        self.assertEqual((status, parts["ops"]["state"]), (0, "passed"))
        self.assertEqual(self.runs("train_gpt"), trained)
        self.check("--again", "--only=train")
        self.assertEqual(self.runs("train_gpt"), trained + 6)

    def test_a_part_has_a_time_limit(self):
        self.program("gradcheck", "sleep 1000 & sleep 1000")
        short = gpu_check.PARTS["gradients"]._replace(simulated_seconds=1)
        with mock.patch.dict(gpu_check.PARTS, gradients=short):
            status, _, parts = self.check("--only=gradients,bench", "--patience=2")
        self.assertEqual(status, 1)
        self.assertIn("out of time in gradcheck; the last that it said: it wrote nothing", parts["gradients"]["text"])
        self.assertIn("--patience", parts["gradients"]["fix"])
        self.assertGreaterEqual(parts["gradients"]["seconds"], 2)
        self.assertEqual(parts["bench"]["state"], "passed")

    def test_parts_run_in_order_and_have_time_limits_that_a_rehearsal_keeps_short(self):
        self.assertEqual(list(gpu_check.PARTS), ["ops", "gradients", "cudnn", "sanitizer", "train", "parity", "ranks",
                                                 "bench", "speed"])
        self.assertLess(sum(part.simulated_seconds for part in gpu_check.PARTS.values()), 600)
        for name, part in gpu_check.PARTS.items():
            self.assertLessEqual(part.simulated_seconds, part.seconds, name)
        self.check("--only=bench,ops")
        self.assertEqual(self.said.getvalue(), "bench: passed\nops: passed\n")
        with self.assertRaises(SystemExit):
            self.check("--only=bench,opps")
        self.assertIn("there is no part 'opps'; there are ops, gradients,", self.said.getvalue())

    def test_what_was_stopped_goes_on(self):
        self.program("bench", f"kill -INT {os.getpid()}; sleep 60")
        with self.assertRaises(KeyboardInterrupt):
            self.check("--only=ops,bench,gradients")
        self.program("bench", BENCH)
        status, _, parts = self.check("--only=ops,bench,gradients")
        self.assertEqual((status, self.runs("op_test"), self.runs("bench"), len(parts)), (0, 1, 2, 3))

    def test_ranks_that_differ_from_accumulation_are_a_failure(self):
        ours = TRAIN + "[[ $* != *grad_accum* ]] || "
        for change, words in (("echo other >$out/latest/model.safetensors", "the last weights are not"),
                              ("sed -i s/4.5/4.6/ $out/metrics.jsonl", "losses of 2 ranks are [4.5, ")):
            self.program("train_gpt", ours + change)
            self.assertIn(words, self.check("--only=ranks")[2]["ranks"]["text"])

    def test_the_first_failure_of_ranks_is_told(self):
        said = "echo 'launch: the first failure: rank 1: Duplicate GPU'; echo 'launch: after it: rank 0'; exit 1"
        self.program("launch", said)
        part = self.check("--only=ranks")[2]["ranks"]
        self.assertEqual((part["state"], part["text"]), ("failed", "rank 1: Duplicate GPU"))
        self.assertIn("install NCCL 2.20", part["fix"])

    def test_a_failed_rank_that_nobody_names_is_a_failure(self):
        for said, instead, words in (("rank 1 is $word", "something is $word", "nobody said 'rank 0.*rank 1 is gone'"),
                                     ("rank 0 ended with exit code 1", "rank 0 was killed by signal 9",
                                      "nobody said 'rank 0 ended with exit code 1'"),
                                     ("word=stalled", "word=gone", "nobody said 'rank 0.*rank 1 is stalled'"),
                                     ("echo \"[0] step", "exit 3; echo \"", "launch ended before it wrote")):
            self.program("launch", LAUNCH.replace(said, instead))
            part = self.check("--only=ranks")[2]["ranks"]
            self.assertIn(words, part["text"])
            self.assertIn("dist.heartbeat", Path(part["log"]).read_text())
        self.program("launch", LAUNCH)
        self.program("flight", "echo 'verdict: rank 0 at fault'")
        self.assertIn("the flight records do not say so", self.check("--only=ranks")[2]["ranks"]["text"])

    def test_ranks_that_end_late_are_a_failure(self):
        with mock.patch.object(ranks, "MOST_SECONDS", -1):
            self.assertIn("had ended only", self.check("--only=ranks")[2]["ranks"]["text"])

    def test_ranks_share_a_gpu_as_nccl_allows_it(self):
        self.program("launch", f"env >{self.root}/environment" + LAUNCH)
        self.assertEqual(self.check("--only=ranks")[2]["ranks"]["state"], "passed")
        with_one = (self.root / "launch.runs").read_text().splitlines()[0]
        self.assertRegex(with_one, r"--nproc=2 .* -- sh -c .*LOCAL_RANK=0 NCCL_HOSTID=rank\$RANK.* rank /")
        # The last run was of a GPU each: nothing of this is set there.
        self.assertNotIn("NCCL_P2P_DISABLE", (self.root / "environment").read_text())
        with mock.patch.object(host, "describe_machine", return_value={"name": "simulated GPU", "gpus": 1}):
            self.check("--only=ranks", "--again")
        self.assertIn("NCCL_P2P_DISABLE=1", (self.root / "environment").read_text())

    def test_does_without_nccl(self):
        why = "NCCL, which training on several GPUs needs, cannot be loaded (x); install libnccl2"
        self.program("launch", f"echo 'train_gpt: {why}'; exit 1")
        part = self.check("--only=ranks")[2]["ranks"]
        self.assertEqual((part["state"], part["text"]), ("skipped", why))

    def test_no_test_that_ran_is_a_failure(self):
        self.program("op_test", "echo '[  PASSED  ] 0 tests.'")
        self.assertEqual(self.check("--only=ops")[2]["ops"]["text"], "no test ran: [  PASSED  ] 0 tests.")

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

    def test_a_file_of_another_machine_or_build_is_refused(self):
        self.check("--only=bench")
        out = self.root / "out.json"
        whole = out.read_text()
        out.write_text(whole.replace("simulated GPU", "another GPU"))
        with self.assertRaises(SystemExit):
            self.check("--only=bench")
        self.assertIn("is of the machine another GPU, this is simulated GPU", self.said.getvalue())
        out.write_text(whole)
        self.bundle["build"] = "2"
        with self.assertRaises(SystemExit):
            self.check("--only=bench")
        self.assertIn("is of the build 1, this is 2", self.said.getvalue())


if __name__ == "__main__":
    unittest.main()
