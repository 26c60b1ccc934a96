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
import hashes as files  # pylint: disable=wrong-import-position
import parts
import runner

SAMPLES = "attention.Orders/whole_packs/*:softmax.Orders/odd/*"


class HashesTest(unittest.TestCase):

    def record(self, samples=SAMPLES, **environment):
        """The hash of each case, and whether a real GPU may have another."""
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "libexec").mkdir()
            (root / "libexec/op_test").symlink_to(Path("tests/op_cuda_test").absolute())
            args = argparse.Namespace(simulated=True, python=sys.executable)
            run = runner.Runner(args, root, dict(os.environ, LOCKSTEP_TEST_ALL="1", **environment),
                                {"name": "a GPU, driver 1"}, "0123", runner.Clock(0))
            with mock.patch.object(runner, "HERE", root):
                parts.test_ops(run, samples, run.environment, f"--gtest_output=json:{root}/tests.json")
            return files.of_report(json.loads((root / "tests.json").read_text()))

    def test_they_repeat_and_a_changed_result_changes_its_own(self):
        hashes = self.record()
        self.assertEqual(list(hashes), [f"{sample}/{dtype}" for sample in ("attention.whole_packs", "softmax.odd")
                                        for dtype in ("bf16", "f16", "f32")])
        self.assertEqual(len(set(hashes.values())), len(hashes))
        self.assertEqual(self.record(), hashes)
        # Other kernels for heads of 16 bits, which add in another order.
        plain = self.record(LOCKSTEP_ATTENTION="plain")
        self.assertEqual([name for name in hashes if plain[name] != hashes[name]],
                         ["attention.whole_packs/bf16", "attention.whole_packs/f16"])
        # So do tensor cores.
        exact = self.record(CUDASIM_EXACT_MMA="1")
        self.assertEqual([name for name in hashes if exact[name] != hashes[name]],
                         ["attention.whole_packs/bf16", "attention.whole_packs/f16"])

    def test_bits_may_differ_where_instructions_leave_them_open(self):
        found = self.record()
        self.assertTrue(all(approximated for _, approximated in found.values()))  # exponentials
        exact = self.record(samples="scale.Orders/odd/*")
        self.assertFalse(any(approximated for _, approximated in exact.values()))
        found.update(exact)
        real = {case: bits for case, (bits, _) in found.items()}
        self.assertEqual(files.compare(real, found)[0], [])
        real["softmax.odd/f32"] = "0" * 16
        self.assertEqual(files.compare(real, found)[0], [])
        real["scale.odd/f32"] = "0" * 16
        self.assertEqual(files.compare(real, found)[0], ["scale.odd/f32"])


if __name__ == "__main__":
    unittest.main()
