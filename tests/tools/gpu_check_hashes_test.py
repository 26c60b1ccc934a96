#!/usr/bin/env python3
"""The hashes that tools/gpu_check records, of kernels on the simulated GPU."""
import argparse
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, os.path.join("tools", "gpu_check"))
import parts  # pylint: disable=wrong-import-position
import runner

SAMPLES = "attention.Orders/whole_packs/*:softmax.Orders/odd/*"


class HashesTest(unittest.TestCase):

    def record(self, **environment):
        """The hashes of each case, and the file's first line."""
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "libexec").mkdir()
            (root / "libexec/op_test").symlink_to(Path("tests/op_cuda_test").absolute())
            args = argparse.Namespace(simulated=True, python=sys.executable)
            run = runner.Runner(args, root, dict(os.environ, LOCKSTEP_TEST_ALL="1", **environment),
                                {"name": "a GPU, driver 1"}, "0123", runner.Clock(0))
            with mock.patch.object(runner, "HERE", root):
                parts.test_ops(run, SAMPLES, run.environment, f"--gtest_output=json:{root}/tests.json")
            first, *lines = parts.hashes(run, json.loads((root / "tests.json").read_text())).splitlines()
        return first, dict(line.split() for line in lines)

    def test_they_repeat_and_a_changed_result_changes_its_own(self):
        first, hashes = self.record()
        self.assertIn("a GPU, driver 1, by build 0123", first)
        self.assertEqual(list(hashes), [f"{sample}/{dtype}" for sample in ("attention.whole_packs", "softmax.odd")
                                        for dtype in ("bf16", "f16", "f32")])
        self.assertEqual(len(set(hashes.values())), len(hashes))
        self.assertEqual(self.record(), (first, hashes))
        # Other kernels for heads of 16 bits, which add in another order.
        _, plain = self.record(LOCKSTEP_ATTENTION="plain")
        self.assertEqual([name for name in hashes if plain[name] != hashes[name]],
                         ["attention.whole_packs/bf16", "attention.whole_packs/f16"])


if __name__ == "__main__":
    unittest.main()
