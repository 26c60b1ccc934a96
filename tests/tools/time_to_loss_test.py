#!/usr/bin/env python3
"""Tests of tools/time_to_loss.py."""
import contextlib
import importlib.util
import io
import os
import re
import stat
import sys
import tempfile
import unittest

_spec = importlib.util.spec_from_file_location("time_to_loss", os.path.join("tools", "time_to_loss.py"))
time_to_loss = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(time_to_loss)

# Speaks for PyTorch and for train_gpt: a loss that depends on the seed and on who asks.
STAND_IN = r"""#!/usr/bin/env python3
import json, os, re, sys
words = " ".join(sys.argv)
seed = int(re.search(r"--seed=(\d+)", words).group(1))
out = re.search(r"--out_dir=(\S+)", words)
if out is None:  # PyTorch
    slow = 1 if "--compile" in words else 0
    for step, loss in ((0, 4.0), (2000, 1.9 + seed / 1000)):
        print(json.dumps({"step": step, "seconds": step / 100 + slow, "loss": loss}))
    sys.exit()
os.makedirs(out.group(1))
last = float(re.search(r"--last=(\S+)", words).group(1))
with open(os.path.join(out.group(1), "metrics.jsonl"), "w") as file:
    for step in (1, 2):
        print(json.dumps({"step": step, "ms": 500, "val_loss": 3.0 if step == 1 else last + seed / 1000}), file=file)
"""


class TimeToLoss(unittest.TestCase):
    def test_the_t_test_is_students(self):
        # Quantiles of Student's distribution, from a table: P(t > 3.747) = 0.01 for 4 degrees of freedom.
        losses = [-0.2, -0.1, 0.0, 0.1, 0.2]
        error = (sum(v * v for v in losses) / 4 / 5) ** 0.5
        for quantile, p in ((3.747, 0.01), (2.132, 0.05), (0.0, 0.5), (-2.132, 0.95)):
            self.assertAlmostEqual(time_to_loss.chance(losses, quantile * error), p, delta=2e-5)
        self.assertEqual(time_to_loss.chance([1.0, 1.0], 1.1), 0)
        self.assertEqual(time_to_loss.chance([1.0, 1.0], 1.0), 1)

    def tell(self, *options):
        """What the program says in a folder in which everybody is the stand-in, and its exit code."""
        with tempfile.TemporaryDirectory() as folder:
            for name in ("python", "tools/nanogpt_recipe.py", "models/train_gpt"):
                path = os.path.join(folder, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w") as file:
                    file.write(STAND_IN)
                os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
            page = os.path.join(folder, "page.html")
            argv, cwd, said = sys.argv, os.getcwd(), io.StringIO()
            sys.argv = ["time_to_loss", f"--python={folder}/python", "--text=t", f"--page={page}", "--seeds=3", *options]
            os.chdir(folder)
            try:
                with contextlib.redirect_stdout(said), self.assertRaises(SystemExit) as end:
                    time_to_loss.main()
            finally:
                sys.argv = argv
                os.chdir(cwd)
            with open(page) as file:
                return said.getvalue(), end.exception.code, file.read()

    def test_a_loss_that_is_reached(self):
        said, code, page = self.tell("--", "--last=1.8")
        self.assertEqual(code, 0)
        self.assertIn("Lockstep takes 1.0 s for 20.0: 20.0 times as soon.", said)
        self.assertEqual(len(re.findall("<polyline", page)), 6)

    def test_one_that_is_not(self):
        for options in (["--", "--last=1.9"], ["--target=1.7", "--", "--last=1.8"]):
            said, code, _ = self.tell(*options)
            self.assertEqual(code, 1)
            self.assertIn("does not reach the target", said)

    def test_one_seed_is_refused(self):
        argv, sys.argv = sys.argv, ["time_to_loss", "--python=p", "--text=t", "--seeds=1"]
        try:
            with self.assertRaises(SystemExit) as end:
                time_to_loss.main()
        finally:
            sys.argv = argv
        self.assertIn("at least 2", str(end.exception.code))


if __name__ == "__main__":
    unittest.main()
