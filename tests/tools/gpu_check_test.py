#!/usr/bin/env python3
"""How tools/gpu_check plays its slices and keeps their results."""
import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path
from unittest import mock

sys.path[:0] = [os.path.join("tools", "gpu_check"), os.path.join("tests", "tools")]
import gpu_check  # pylint: disable=wrong-import-position
import host
from gpu_check_stand_ins import BENCH, GPU, GRADCHECK, OPS, TRAIN, GpuCheckCase


def runs(process):
    """Whether the process exists and is no zombie; it may end at any moment."""
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().split()[2]
    except (FileNotFoundError, ProcessLookupError):
        return False


class GpuCheckTest(GpuCheckCase):

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
        self.assertRegex(table["kernels"], r"^kernels +5 +0 +1 +0 +[0-9.]+  step B 2, 2 heads: 2.5 ms a step")
        self.assertIn("b16 3,200; b16-eager 3,200;", table["speed"])
        self.assertIn("b16 is 2.00 times torch's best", table["speed"])
        self.assertIn("products whose bits change with nothing f32 0/1, n f32 1/1", table["bits"])
        self.assertIn("run-1/metrics.jsonl", str(list(self.archived())))

    def test_the_first_ten_minutes_are_correctness_first(self):
        first = ["loader", "smoke", "ops/attention", "cudnn", "ops/rows", "parity/fp32", "speed/b16", "train/124M",
                 "kernels/step", "speed/b16-torch-compiled-cudnn", "speed/b16-eager", "peaks", "ops/products"]
        self.assertEqual(list(gpu_check.SLICES)[:len(first)], first)
        self.assertLess(sum(gpu_check.SLICES[name].seconds for name in first), 540)

    def test_what_was_found_can_be_sourced(self):
        found = {"LD_LIBRARY_PATH": "/a folder:/b"}
        with mock.patch.object(host, "find_cuda", return_value=found):
            _, lines, _ = self.check("--only=peaks")
        self.assertIn(str(self.root / "env.sh"), lines[-1])
        (self.root / "bin").mkdir()
        shutil.copy("/bin/true", self.root / "bin" / "train_gpt")
        ask = f"source '{self.root}/env.sh'; echo $LD_LIBRARY_PATH; command -v train_gpt"
        told = subprocess.run(["bash", "-c", ask], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
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

    def test_goes_on_with_what_has_not_passed(self):
        self.program("op_test", "echo first; echo oops; exit 1")
        status, lines, slices = self.check("--only=ops/rows,train/fp32,parity/fp32")
        self.assertEqual((status, slices["ops/rows"]["state"]), (1, "failed"))
        self.assertRegex(lines[2], r"^ops +0 +1 +0 +0 ")
        # Below the table is what to do: where the log is, and how to run the slice again.
        said = "\n".join(lines)
        self.assertRegex(said, r"ops/rows failed: op_test exited with 1: oops\n  .*=NAME repeats.*\n  its log: tar")
        self.assertIn(f"gpu_check --simulated --out={self.out} --python={self.torch} --only=ops/rows", said)
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
        status, lines, slices = self.check("--only=bits,ops/rows,cudnn", "--budget=3")
        self.assertEqual((status, list(slices)), (3, ["bits"]), "the first one has all of the budget, others must fit")
        self.assertEqual(slices["bits"]["text"], "the budget was spent in bench; its last output: begun")
        self.assertIn("left for the next call: bits, ops/rows, cudnn", lines)
        # A slice that was stopped runs first in the next call, and last after being stopped again.
        self.check("--only=ops/rows,bits", "--budget=3")
        self.assertEqual(self.slices()["bits"]["tries"], 2)
        self.check("--only=ops/rows,bits", "--budget=3")
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

    def test_an_interpreter_may_be_named_by_a_relative_path(self):
        relative = os.path.relpath(self.torch)
        self.assertEqual(self.check("--only=parity/fp32", f"--python={relative}")[2]["parity/fp32"]["state"], "passed")

    def test_numbers_are_above_zero(self):
        for option in ("--budget=-5", "--budget=10m", "--patience=0"):
            with self.assertRaises(SystemExit):
                self.check("--only=peaks", option)
            self.assertIn(f"{option.split('=')[1]} is not a number above 0", self.said.getvalue())

    def test_where_nothing_can_be_written_nothing_is_run(self):
        self.out = self.root / "none" / "out.json"
        self.assertEqual(self.check("--only=peaks")[0], 2)
        self.assertIn("env.sh cannot be written: ", self.said.getvalue())
        self.assertIn("--out", self.said.getvalue())
        self.assertEqual(self.runs("bench"), 0)

    def test_a_file_that_is_not_its_own_is_left_alone(self):
        to_source = self.root / "env.sh"
        to_source.write_text("module load cuda\n")
        self.assertEqual(self.check("--only=peaks")[0], 2)
        self.assertIn("env.sh was not written by gpu_check", self.said.getvalue())
        self.assertEqual(to_source.read_text(), "module load cuda\n")
        to_source.unlink()
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
