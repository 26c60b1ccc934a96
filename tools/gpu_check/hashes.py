#!/usr/bin/env python3
"""Hashes of the bits that an op's kernels computed, a line for each case; and two machines' compared:

    hashes.py hashes.txt tests.json

hashes.txt is a real GPU's, from gpu_check's archive. tests.json is a simulated GPU's:
CUDASIM_EXACT_MMA=1 LOCKSTEP_TEST_ALL=1 op_cuda_test --device=sim --gtest_output=json:tests.json --gtest_filter='*Orders*'
"""
import json
import sys
from pathlib import Path


def of_report(report):
    """By case, from googletest's JSON: the hash, and whether the simulated GPU that computed it says that a real one
    may have other bits."""
    return dict(sorted((f"{suite['name']}.{test['name'].removeprefix('Orders/')}",
                        (f"{int(test['hash']):016x}", "approximated" in test))
                       for suite in report.get("testsuites", []) for test in suite["testsuite"] if "hash" in test))


def text(found, machine, build):
    lines = [f"{case} {bits}\n" for case, (bits, _) in found.items()]
    return f"# OP.SAMPLE/DTYPE and the FNV-1a of its bits, on {machine}, by build {build}\n" + "".join(lines)


def compare(real, simulated):
    """Cases with other bits although each of their instructions has only one result, and a summary. `real` has the hash
    of each case."""
    both = sorted(real.keys() & simulated.keys())
    equal = [case for case in both if real[case] == simulated[case][0]]
    allowed = [case for case in both if case not in equal and simulated[case][1]]
    wrong = [case for case in both if case not in equal and case not in allowed]
    return wrong, (f"{len(both)} cases of both: {len(equal)} equal, {len(allowed)} other where PTX leaves bits open (their "
                   f"errors were checked by the test itself), {len(wrong)} wrong")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    real = dict(line.split() for line in lines if not line.startswith("#"))
    wrong, summary = compare(real, of_report(json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))))
    for case in wrong:
        print(f"{case}: other bits")
    print(summary)
    sys.exit(1 if wrong or summary.startswith("0 ") else 0)


if __name__ == "__main__":
    main()
