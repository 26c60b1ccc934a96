#!/usr/bin/env python3
"""Tests of tools/kernel_resources.py."""
import importlib.util
import os
import subprocess
import tempfile
import unittest

_spec = importlib.util.spec_from_file_location("kernel_resources", os.path.join("tools", "kernel_resources.py"))
kernel_resources = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(kernel_resources)

# As CUDA 13's ptxas writes it; the first kernel has a device function with a stack.
REPORT = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN8lockstep4cuda12_GLOBAL__N_113SoftmaxKernelILi4EEEvPKfl' for 'sm_80'
ptxas info    : Function properties for _ZN8lockstep4cuda6HelperEf
    64 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Function properties for _ZN8lockstep4cuda12_GLOBAL__N_113SoftmaxKernelILi4EEEvPKfl
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 512 bytes smem, 368 bytes cmem[0]
ptxas info    : Compile time = 3.017 ms
ptxas info    : Compiling entry function '{symbol}' for 'sm_90a'
ptxas info    : Function properties for {symbol}
    {local}
ptxas info    : Used 255 registers, used 0 barriers, 16 bytes cumulative stack size
ptxas info    : Compile time = 30.2 ms
"""
# Its unnamed namespace ends in digits, before the digits of the kernel's own name.
SYMBOL = "_ZN8lockstep4cuda42_GLOBAL__N__54d9a6d1_4_a_cu_1cfd1185_2635118FlashForwardKernelILi64ELb1EEEvNS1_4ArgsE"
CLEAN = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"

# CUDA 13's ptxas's remarks on a kernel that does not wait for its wgmma.
REMARKS = """ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at entry.
ptxas info    : (C7517) warpgroup.wait is injected in around line 13 by compiler to allow use of registers defined by GMMA in function '{symbol}'
"""


def report(local=CLEAN):
    return REPORT.format(symbol=SYMBOL, local=local)


class KernelResourcesTest(unittest.TestCase):

    def test_reads_what_a_kernel_uses(self):
        softmax, flash = kernel_resources.parse(report())
        self.assertEqual((softmax.arch, softmax.registers, softmax.shared, softmax.stack), ("sm_80", 40, 512, 0))
        self.assertEqual((flash.arch, flash.registers, flash.shared), ("sm_90a", 255, 0))

    def test_names_are_short(self):
        softmax, flash = kernel_resources.parse(report())
        self.assertEqual(softmax.name, "SoftmaxKernel<4>")
        self.assertEqual(flash.name, "FlashForwardKernel<64, true>")

    def test_a_clean_kernel_passes(self):
        self.assertEqual(kernel_resources.violations(kernel_resources.parse(report())), [])

    def test_finds_spills_and_stacks(self):
        for local in ("16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads",
                      "0 bytes stack frame, 12 bytes spill stores, 0 bytes spill loads",
                      "0 bytes stack frame, 0 bytes spill stores, 8 bytes spill loads"):
            bad = kernel_resources.violations(kernel_resources.parse(report(local)))
            self.assertEqual([k.name for k in bad], ["FlashForwardKernel<64, true>"], local)

    def test_an_exception_is_by_name(self):
        kernels = kernel_resources.parse(report("16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"))
        self.assertEqual(kernel_resources.violations(kernels, {"^FlashForwardKernel<64": "why"}), [])
        self.assertEqual(len(kernel_resources.violations(kernels, {"^FlashForwardKernel<128": "why"})), 1)

    def test_resident_warps_follow_from_registers(self):
        softmax, flash = kernel_resources.parse(report())
        self.assertEqual(softmax.warps, 48)  # 12 to each of 4 parts: 16384 / (32 * 40)
        self.assertEqual(flash.warps, 8)

    def test_other_words_are_an_error(self):
        with self.assertRaisesRegex(ValueError, "understood 1 of 2 kernels"):
            kernel_resources.parse(report("no stack at all"))

    def test_remarks_have_readable_names(self):
        remarks = kernel_resources.remarks(REMARKS.format(symbol=SYMBOL))
        self.assertEqual(len(remarks), 2)
        self.assertIn("(C7508)", remarks[0])
        self.assertIn("(C7517) warpgroup.wait is injected", remarks[1])
        self.assertTrue(remarks[1].endswith("in function 'FlashForwardKernel<64, true>'"), remarks[1])
        self.assertEqual(kernel_resources.remarks(report()), [])

    def test_a_remark_fails_the_check(self):
        for text, code in ((report(), 0), (REMARKS.format(symbol=SYMBOL) + report(), 1)):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "a.resources")
                with open(path, "w") as file:
                    file.write(text)
                done = subprocess.run([os.path.join("tools", "kernel_resources.py"), "--check", path],
                                      stdout=subprocess.PIPE, text=True)
                self.assertEqual(done.returncode, code, done.stdout)
                self.assertEqual("(C7517)" in done.stdout, bool(code))


if __name__ == "__main__":
    unittest.main()
