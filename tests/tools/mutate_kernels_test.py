#!/usr/bin/env python3
"""Tests of tools/mutate_kernels.py: the mutants compile, and do what their descriptions say."""
import importlib.util
import json
import os
import subprocess
import tempfile
import unittest

_spec = importlib.util.spec_from_file_location("mutate_kernels",
                                               os.path.join("tools", "mutate_kernels.py"))
mutate_kernels = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(mutate_kernels)

KERNEL = """
#include <cstdio>
#define __device__
int barriers = 0;
void __syncthreads() { ++barriers; }
int host(int a, int b) { return a - b; }
__device__ int f(const int* x, int a, int b) {
  constexpr int kStatic = 3 * 5;
  __syncthreads();
  if (a < b) return x[a] - 10;  // not a < b here
  if (a == b) return x[a + b] + b * 2;
  return x[0];
}
int main() {
  const int x[] = {100, 200, 300, 400};
  for (int a = 0; a < 2; ++a) std::printf("%d ", f(x, a, 1));
  std::printf("%d %d\\n", barriers, host(7, 4));
}
"""


class MutateTest(unittest.TestCase):
    def test_every_mutant_does_what_it_says_and_nothing_else_changes(self):
        text, mutants = mutate_kernels.mutate("f.cu", KERNEL, 1, set())
        self.assertEqual([m.number for m in mutants], list(range(1, len(mutants) + 1)))
        with tempfile.TemporaryDirectory() as folder:
            source, program = os.path.join(folder, "f.cc"), os.path.join(folder, "f")
            with open(source, "w", encoding="utf-8") as file:
                file.write(text)
            subprocess.run(["g++", "-std=c++20", "-o", program, source], check=True)

            def output(number):
                environment = dict(os.environ, CUDASIM_ENVREG0=str(number))
                return subprocess.run([program], env=environment, check=True, text=True,
                                      stdout=subprocess.PIPE).stdout.strip()

            self.assertEqual(output(0), "90 302 2 3")
            for mutant in mutants:
                with self.subTest(mutant):
                    self.assertNotEqual(output(mutant.number), output(0))
                    self.assertIn(mutant.before, KERNEL.split("\n")[mutant.line - 1])
            self.assertEqual(len({output(m.number) for m in mutants}), len(mutants))

    def test_host_code_comments_and_forbidden_lines_stay(self):
        line = next(i for i, text in enumerate(KERNEL.split("\n")) if "a == b" in text)
        text, mutants = mutate_kernels.mutate("f.cu", KERNEL, 1, {line})
        self.assertIn("return a - b;", text)
        self.assertIn("// not a < b here", text)
        self.assertIn(KERNEL.split("\n")[line], text)
        self.assertEqual({m.kind for m in mutants}, {"barrier", "comparison", "index", "operand"})
        self.assertNotIn(line + 1, [m.line for m in mutants])

    def test_headers_of_both_devices_are_kernels_but_for_constexpr_functions(self):
        # Neither a comment nor a constexpr function makes a header one of the kernels.
        host = ('#include "core/philox.h"  // LS_HOST_DEVICE\n'
                "inline int Host(int a, int b) { return a - b; }\n"
                "LS_HOST_DEVICE constexpr int Fixed(int a, int b) { return a - b; }\n")
        both = host + "LS_HOST_DEVICE int Both(int a, int b) { return a - b; }\n"
        with tempfile.TemporaryDirectory() as root:
            os.mkdir(os.path.join(root, "kernels"))
            for name, text in [("host.h", host), ("both.h", both), ("shared.cuh", "")]:
                with open(os.path.join(root, "kernels", name), "w", encoding="utf-8") as file:
                    file.write(text)
            self.assertEqual(mutate_kernels.kernel_files(root), ["kernels/both.h", "kernels/shared.cuh"])
        _, mutants = mutate_kernels.mutate("kernels/both.h", both, 1, set())
        self.assertEqual([(m.line, m.kind) for m in mutants], [(4, "operand")])
        self.assertEqual(mutate_kernels.device_lines(host), set())


class ResultsTest(unittest.TestCase):
    def test_each_explained_survivor_is_a_mutant_of_the_kernels(self):
        found = set()
        for path in mutate_kernels.kernel_files("."):
            with open(path, encoding="utf-8") as file:
                _, mutants = mutate_kernels.mutate(path, file.read(), 1, set())
            found.update(map(mutate_kernels.described, mutants))
        listed = mutate_kernels.explained(".")
        self.assertGreater(len(listed), 0)
        self.assertEqual(listed - found, set())

    def test_what_was_killed_is_not_tested_again_unless_another_like_it_survived(self):
        line = "__device__ int f(int a, int b) { return a < b; }\n"
        _, mutants = mutate_kernels.mutate("f.cu", line + line + line.replace("<", ">"), 1, set())
        self.assertEqual(len(mutants), 3)
        # The same mutants in an older file, with other numbers and lines.
        old = [m._replace(number=m.number + 7, line=m.line + 1) for m in mutants]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "results")
            self.assertEqual(mutate_kernels.earlier_results(path, mutants), (set(), []))
            for survivors, killed in [((), mutants), (old[:1], mutants[2:]), (old[2:], mutants[:2])]:
                with open(path, "w", encoding="utf-8") as file:
                    for m in old:
                        print(json.dumps({**m._asdict(), "survived": m in survivors}), file=file)
                self.assertEqual(mutate_kernels.earlier_results(path, mutants), (set(killed), []))
            # Results of mutants that are not tested this time are kept.
            done, others = mutate_kernels.earlier_results(path, mutants[2:])
            self.assertEqual(done, set())
            self.assertEqual([r["number"] for r in others], [m.number for m in old[:2]])


class OpsOfTest(unittest.TestCase):
    FILES = {
        "kernels/cuda/shared.cuh": "",
        "kernels/gemm/gemm.h": "",
        "kernels/gemm/product_cuda.h": "",
        "kernels/gemm/gemm_cuda.cu":
            '#include "kernels/gemm/gemm.h"\n#include "kernels/gemm/product_cuda.h"\n',
        "kernels/linear/linear_cuda.cu":
            '#include "kernels/cuda/shared.cuh"\n#include "kernels/gemm/product_cuda.h"\n',
        "kernels/copy/copy_cuda.cu": '#include "kernels/cuda/shared.cuh"\n',
    }

    def test_own_op_first_then_those_that_use_the_file(self):
        with tempfile.TemporaryDirectory() as root:
            for path, text in self.FILES.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)
            ops = {path: mutate_kernels.ops_of(root, path) for path in self.FILES}
        self.assertEqual(ops["kernels/gemm/gemm_cuda.cu"], ["gemm", "linear"])
        self.assertEqual(ops["kernels/linear/linear_cuda.cu"], ["linear"])
        self.assertEqual(ops["kernels/cuda/shared.cuh"], ["copy", "linear"])


if __name__ == "__main__":
    unittest.main()
