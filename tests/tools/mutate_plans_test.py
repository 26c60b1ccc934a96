#!/usr/bin/env python3
"""Tests of tools/mutate_plans.py: its list fits the sources, and a planted bug is there when asked for."""
import importlib.util
import os
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
_spec = importlib.util.spec_from_file_location("mutate_plans",
                                               os.path.join(ROOT, "tools", "mutate_plans.py"))
mutate_plans = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(mutate_plans)

PROGRAM = """#include <cstdio>
int sum(int a, int b) { return a + b; }
int main() {
  int c = sum(2, 1);
  for (int i = 0; i < 2; ++i) c += 10;
  std::printf("%d\\n", c);
}
"""


def bug(number, old, new):
    return mutate_plans.Bug(number, f"bug {number}", "p.cc", old, new, [])


class MutatePlansTest(unittest.TestCase):
    def test_list_fits_the_sources(self):
        bugs = mutate_plans.read_bugs(ROOT)
        self.assertEqual(len({b.name for b in bugs}), len(bugs))
        for path in {b.file for b in bugs}:
            with open(os.path.join(ROOT, path), encoding="utf-8") as file:
                mutate_plans.plant([b for b in bugs if b.file == path], file.read())

    def test_each_bug_is_there_when_asked_for(self):
        bugs = [bug(1, "return «a + b»;", "a - b"),
                bug(2, "++i) «c += 10;»", "c -= 10;"), bug(3, "int c = «sum(2, 1)»;", "7")]
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "p")
            with open(program + ".cc", "w", encoding="utf-8") as file:
                file.write(mutate_plans.plant(bugs, PROGRAM))
            subprocess.run(["g++", "-o", program, program + ".cc"], check=True)
            printed = [int(subprocess.run([program], env={"LOCKSTEP_PLANTED_BUG": str(n)}, check=True,
                                          stdout=subprocess.PIPE).stdout) for n in range(4)]
        self.assertEqual(printed, [23, 21, -17, 27])

    def test_what_does_not_fit_is_an_error(self):
        for old in ("sum(", "no such code"):
            with self.assertRaisesRegex(ValueError, "occurs [02] times"):
                mutate_plans.plant([bug(1, old, "x")], PROGRAM)
        with self.assertRaisesRegex(ValueError, "replace the same code"):
            mutate_plans.plant([bug(1, "«a + b»;", "a"), bug(2, "return «a + b»", "b")], PROGRAM)


if __name__ == "__main__":
    unittest.main()
