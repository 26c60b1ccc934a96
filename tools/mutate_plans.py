#!/usr/bin/env python3
"""Do the tests of parallel plans notice a broken mode?  bazel run //tools:mutate_plans -- [--only=tensor] ...

Plants the bugs of tests/plans/planted_bugs.json, one at a time: a sum forgotten, a part swapped, a
stale weight, a wrong group, one or more in each parallel mode. Each is a text in a source file, in
which what stands between « and » (or all of it) becomes something else; a text that does not occur
exactly once there is an error, so that the list keeps up with the sources. The bug's tests must
then fail.

All bugs are compiled at once, in the working tree, whose files are as before when that is done:
LOCKSTEP_PLANTED_BUG is the number of the one that is there. Prints each bug that no test noticed,
and exits with 1 if there is one.
"""
import argparse
import collections
import json
import os
import re
import signal
import subprocess
import sys
import time

LIST = "tests/plans/planted_bugs.json"
HEAD = """#include <cstdlib>
static const int planted_bug =
    std::getenv("LOCKSTEP_PLANTED_BUG") ? std::atoi(std::getenv("LOCKSTEP_PLANTED_BUG")) : 0;
#line 1
"""

# number: from 1. old, new: of the code. tests: "any_plan_test:*Cpu*", a target of //tests/plans and
# a filter.
Bug = collections.namedtuple("Bug", "number name file old new tests")


def read_bugs(root):
    with open(os.path.join(root, LIST), encoding="utf-8") as file:
        return [Bug(i + 1, *(bug[f] for f in Bug._fields[1:])) for i, bug in enumerate(json.load(file))]


def place_of(bug, source):
    """Where the code is that the bug replaces: (begin, end). Raises ValueError unless it occurs once."""
    before, marked, rest = bug.old.partition("«")
    code, _, after = rest.partition("»") if marked else (bug.old, "", "")
    before = before if marked else ""
    count = source.count(before + code + after)
    if count != 1:
        raise ValueError(f"'{bug.name}': what it replaces occurs {count} times in {bug.file}")
    begin = source.index(before + code + after) + len(before)
    return begin, begin + len(code)


def plant(bugs, source):
    """The source with all these bugs, each there if planted_bug is its number."""
    places = sorted((*place_of(bug, source), bug) for bug in bugs)
    for (_, end, bug), (begin, _, other) in zip(places, places[1:]):
        if begin < end:
            raise ValueError(f"'{bug.name}' and '{other.name}' replace the same code")
    for begin, end, bug in reversed(places):
        old, test = source[begin:end], f"planted_bug == {bug.number}"
        if ";" in old and re.search(r"[;}]\s*$", old):
            code = f"if ({test}) {{ {bug.new} }} else {{ {old} }}"
        else:
            code = f"({test} ? ({bug.new}) : ({old}))"
        source = source[:begin] + code + source[end:]
    return HEAD + source


def build(root, bugs, args):
    """Builds the tests with all bugs; returns the folder of the binaries."""
    originals = {}
    for path in {bug.file for bug in bugs}:
        with open(os.path.join(root, path), encoding="utf-8") as file:
            originals[path] = file.read()
    planted = {path: plant([b for b in bugs if b.file == path], text) for path, text in originals.items()}
    targets = sorted({"//tests/plans:" + test.split(":")[0] for bug in bugs for test in bug.tests})

    def write(texts):
        for path, text in texts.items():
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(text)

    try:
        write(planted)
        # The cache would keep what nobody asks for again. Other options would build all files anew.
        subprocess.run(["bazel", "build", "--config=all", "--disk_cache=", f"--jobs={args.jobs}", *targets],
                       cwd=root, check=True)
    finally:
        write(originals)


def passes(root, bug, number):
    """Whether the bug's tests pass with bug `number`; a test that hangs does not."""
    environment = dict(os.environ, LOCKSTEP_PLANTED_BUG=str(number), LOCKSTEP_TEST_ALL="1", CUDASIM_DEVICES="4")
    for test in bug.tests:
        target, name = test.split(":", 1)
        command = [os.path.join(root, "bazel-bin/tests/plans", target), f"--gtest_filter={name}",
                   "--gtest_fail_fast", "--gtest_brief=1"]
        try:
            result = subprocess.run(command, cwd=root, env=environment, timeout=300, check=False,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        except subprocess.TimeoutExpired:
            return False
        if b"0 tests ran" in result.stdout:
            sys.exit(f"{test} names no test")
        if result.returncode != 0:
            return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="bugs of files whose path contains this (all)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="the build's parallel jobs")
    parser.add_argument("--no_build", action="store_true", help="what was built last, with the same bugs")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # and the files are restored
    root = os.environ.get("BUILD_WORKSPACE_DIRECTORY",
                          os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    bugs = read_bugs(root)
    if not args.no_build:
        build(root, bugs, args)
    chosen = [bug for bug in bugs if args.only in bug.file]
    for test in sorted({test for bug in chosen for test in bug.tests}):
        if not passes(root, chosen[0]._replace(tests=[test]), 0):
            sys.exit(f"{test} fails without a bug")
    survivors = 0
    for bug in chosen:
        begin, survived = time.time(), passes(root, bug, bug.number)
        survivors += survived
        print(f"{'SURVIVED' if survived else 'noticed'} in {time.time() - begin:.1f} s: {bug.name} ({bug.file})",
              flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} planted bugs were noticed")
    sys.exit(survivors > 0)


if __name__ == "__main__":
    main()
