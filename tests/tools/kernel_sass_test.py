#!/usr/bin/env python3
"""Tests of tools/kernel_sass.py."""
import contextlib
import io
import os
import sys
import unittest

sys.path.insert(0, os.path.abspath("tools"))
import kernel_sass  # noqa: E402

NORM = "_ZN8lockstep4cuda42_GLOBAL__N__54d9a6d1_4_a_cu_1cfd1185_2635118NormBackwardKernelILi4EEEvPf"
FLASH = "_ZN8lockstep4cuda12_GLOBAL__N_118FlashForwardKernelILi64ELb1EEEvNS1_4ArgsE"

# As cuobjdump 13 prints it, with the second halves of the instructions' bits.
SASS = f"""
Fatbin elf code:
================
arch = sm_90a
code version = [1,8]
host = linux
compile_size = 64bit
compressed

	code for sm_90a
	.target	sm_90a

		Function : {NORM}
	.headerflags	@"EF_CUDA_ACCELERATORS EF_CUDA_SM90 EF_CUDA_VIRTUAL_SM(EF_CUDA_SM90)"
        /*0000*/                   LDC R1, c[0x0][0x28] ;                                   /* 0x00000a00ff017b82 */
                                                                                            /* 0x000fe20000000800 */
        /*0010*/                   LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;                /* 0x0000000402047981 */
        /*0020*/              @!P0 LDG.E.U16 R9, desc[UR4][R2.64+0x10] ;                    /* 0x0000100402098981 */
        /*0030*/                   LDG.E.64 R6, desc[UR6][R6.64] ;                          /* 0x0000000606067981 */
        /*0040*/               @P1 LD.E R3, desc[UR4][R6.64] ;                              /* 0x004ea2000c101900 */
        /*0050*/                   ST.E.U8 desc[UR4][R6.64], R3 ;                           /* 0x004ea2000c101900 */
        /*0060*/                   LDS.64 R8, [R5] ;                                        /* 0x0000000005087984 */
        /*0070*/                   LDL.LU R3, [R1+0x8] ;                                    /* 0x0000080001037983 */
        /*0080*/                   CALL.REL.NOINC 0x1230 ;                                  /* 0x00000000ff107944 */
        /*0090*/                   DFMA R2, R4, R6, R8 ;                                    /* 0x000000060402722b */
        /*00a0*/                   EXIT ;                                                   /* 0x000000000000794d */

Fatbin elf code:
================
arch = sm_80

	code for sm_80

		Function : {FLASH}
	.headerflags	@"EF_CUDA_TEXMODE_UNIFIED EF_CUDA_64BIT_ADDRESS EF_CUDA_SM80"
        /*0000*/                   BRA.DIV ~URZ, 0x1a40 ;                                   /* 0x000019f27f007947 */
        /*0010*/              @UP0 BRA.DIV UR4, 0x1a80 ;                                    /* 0x000019f27f007947 */
        /*0020*/                   BRA 0x40 ;                                               /* 0xfffffffc00fc7947 */
        /*0030*/                   LDSM.16.M88.4 R4, [R20] ;                                /* 0x000000001404783b */
        /*0040*/                   HMMA.16816.F32.BF16 R8, R4, R12, R8 ;                    /* 0x0000000c0408723c */
        /*0050*/                   LDGSTS.E.BYPASS.LTC128B.128 [R7], [R2.64] ;              /* 0x0000000002077fae */
        /*0060*/                   LDGSTS.E [R7+0x40], [R2.64+0x80] ;                       /* 0x0000000002077fae */
        /*0070*/                   RED.E.ADD.F32.FTZ.RN.STRONG.GPU [R2.64], R5 ;            /* 0x000000050200798e */
        /*0080*/                   REDUX.OR UR6, R3 ;                                       /* 0x00000000030673c4 */
"""


def counts(**some):
    return {name: some.get(name, 0) for name in kernel_sass.CLASSES}


def kernel(name, op="gelu", arch="sm_80", **some):
    return kernel_sass.Kernel(op, name, arch, counts(**some))


class ParseTest(unittest.TestCase):

    def test_counts_the_classes_of_each_kernel(self):
        norm, flash = kernel_sass.parse(SASS.splitlines(), "op")
        self.assertEqual(norm.counts, counts(wide=1, narrow=1, half=1, generic=2, local=1, call=1, f64=1))
        self.assertEqual(flash.counts, counts(divergent=2, matrix=1, wide=1, narrow=1, atomic=1))

    def test_knows_name_and_architecture(self):
        norm, flash = kernel_sass.parse(SASS.splitlines(), "op")
        self.assertEqual((norm.op, norm.name, norm.arch), ("op", "NormBackwardKernel<4>", "sm_90a"))
        self.assertEqual((flash.name, flash.arch), ("FlashForwardKernel<64, true>", "sm_80"))
        self.assertEqual(flash.family, ("op", "FlashForwardKernel", "sm_80"))

    def test_other_words_are_an_error(self):
        for old, new in (("        /*", "        |"), ("code for", "machine code of")):
            with self.assertRaisesRegex(ValueError, "has cuobjdump changed its output"):
                kernel_sass.parse(SASS.replace(old, new).splitlines(), "op")


class RulesTest(unittest.TestCase):

    def test_what_breaks_a_rule_is_named_with_the_worst_instance(self):
        kernels = [kernel("A<1>", atomic=1), kernel("A<2>", atomic=2), kernel("A<3>"),
                   kernel("C", op="attention", divergent=3),
                   kernel("D", narrow=9, half=9, call=9, f64=9, wide=9, matrix=9)]
        self.assertEqual(kernel_sass.broken_rules(kernels, exceptions={}),
                         ["gelu A sm_80: atomic must be 0, is 2 in A<2> and more than 0 in 2 instances",
                          "attention C sm_80: divergent must be 0, is 3 in C and more than 0 in 1 instances"])

    def test_an_exception_is_by_class_and_name(self):
        kernels = [kernel("A<1>", generic=1), kernel("A<2>", local=1)]
        self.assertEqual(kernel_sass.broken_rules(kernels, exceptions={("generic", "^gelu A<"): "why"}),
                         ["gelu A sm_80: local must be 0, is 1 in A<2> and more than 0 in 1 instances"])

    def test_an_exception_that_nothing_needs_is_named(self):
        problems = kernel_sass.broken_rules([kernel("A")], exceptions={("generic", "^gelu A"): "why"})
        self.assertRegex(problems[0], "no kernel needs the exception .*generic")


class TableTest(unittest.TestCase):

    KERNELS = [kernel("A<1>", narrow=3, wide=2), kernel("A<2>", narrow=4, wide=1, matrix=8), kernel("B", call=1)]

    def check(self, kernels, compiler="13.0.88"):
        """Whether --check fails against the table of KERNELS, and what it prints."""
        text = kernel_sass.format_table(kernel_sass.summarize(self.KERNELS), "13.0.88")
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            failed = kernel_sass.check(kernels, compiler, text, exceptions={})
        return failed, out.getvalue()

    def test_a_line_has_what_the_instances_have(self):
        table = kernel_sass.summarize(self.KERNELS)
        self.assertEqual(table["gelu", "A", "sm_80"], {"n": 2, **counts(narrow=7, wide=2, matrix=1)})

    def test_reads_what_it_writes(self):
        table = kernel_sass.summarize(self.KERNELS)
        self.assertEqual(kernel_sass.parse_table(kernel_sass.format_table(table, "13.0.88")), (table, "13.0.88"))

    def test_the_same_kernels_pass(self):
        failed, said = self.check(self.KERNELS)
        self.assertFalse(failed, said)

    def test_more_of_a_bad_class_fails(self):
        failed, said = self.check([*self.KERNELS[:2], kernel("B", call=2)])
        self.assertTrue(failed)
        self.assertIn("FAIL: gelu B sm_80: call 1 -> 2", said)
        self.assertIn("--update", said)

    def test_fewer_instances_with_a_good_class_fail(self):
        failed, said = self.check([self.KERNELS[0], kernel("A<2>", narrow=4, wide=1), self.KERNELS[2]])
        self.assertTrue(failed)
        self.assertIn("FAIL: gelu A sm_80: matrix 1 -> 0", said)

    def test_what_is_better_passes_and_is_printed(self):
        failed, said = self.check([kernel("A<1>", narrow=1, wide=2), kernel("A<2>", wide=1, matrix=4), kernel("B")])
        self.assertFalse(failed, said)
        self.assertIn("better: gelu A sm_80: narrow 7 -> 1", said)
        self.assertIn("better: gelu B sm_80: call 1 -> 0", said)
        self.assertIn("--update", said)

    def test_new_kernels_and_instances_must_be_in_the_table(self):
        failed, said = self.check([*self.KERNELS, kernel("B"), kernel("C")])
        self.assertTrue(failed)
        self.assertIn("gelu B sm_80: 2 instances, 1 in the table", said)
        self.assertIn("gelu C sm_80: 1 instances, 0 in the table", said)

    def test_a_kernel_that_is_gone_passes(self):
        failed, said = self.check(self.KERNELS[:2])
        self.assertFalse(failed, said)
        self.assertIn("gelu B sm_80: gone", said)

    def test_other_compilers_and_architectures_have_only_the_rules(self):
        for arch, compiler in (("sm_80", "12.8.93"), ("sm_100", "13.0.88")):
            failed, said = self.check([kernel("B", arch=arch, call=9)], compiler)
            self.assertFalse(failed, said)
            failed, said = self.check([kernel("B", arch=arch, local=9)], compiler)
            self.assertTrue(failed, said)


if __name__ == "__main__":
    unittest.main()
