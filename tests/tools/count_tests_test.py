#!/usr/bin/env python3
"""Tests of tools/count_tests.py."""
import importlib.util
import json
import os
import unittest

_spec = importlib.util.spec_from_file_location("count_tests", os.path.join("tools", "count_tests.py"))
count_tests = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(count_tests)


def gtest_xml(*cases):
    return "<testsuites><testsuite name='S'>" + "".join(cases) + "</testsuite></testsuites>"


RUN = "<testcase name='Ok' status='run' result='completed' classname='S'/>"
BAD = ("<testcase name='Bad' status='run' result='completed' classname='S'>"
       "<failure message='x'/></testcase>")
SKIP = ("<testcase name='Skip' status='run' result='skipped' classname='S'>"
        "<skipped message='no GPU'/></testcase>")
DISABLED = "<testcase name='DISABLED_A' status='notrun' result='suppressed' classname='S'/>"
CRASH = "<testcase name='t' status='run'><error message='exited with error code 139'/></testcase>"


def event(label, xml, status="PASSED", attempt=1, shard=1):
    return json.dumps({
        "id": {"testResult": {"label": label, "run": 1, "shard": shard, "attempt": attempt}},
        "testResult": {"status": status, "xml": xml},
    })


def count(*lines, exit_code=0):
    return count_tests.count_events(lines, exit_code, read=lambda result: result["xml"])


class CountTestsTest(unittest.TestCase):

    def test_counts_cases_not_tests(self):
        total, messages = count(event("//a", gtest_xml(RUN, RUN, SKIP)), event("//b", gtest_xml(RUN)))
        self.assertEqual(total, [3, 0, 1])
        self.assertEqual(messages, ["skipped 1: no GPU"])

    def test_names_the_failed_case(self):
        total, messages = count(event("//a", gtest_xml(RUN, BAD), "FAILED"), exit_code=3)
        self.assertEqual(total, [1, 1, 0])
        self.assertEqual(messages, ["//a: S.Bad failed"])

    def test_tells_why_cases_were_skipped(self):
        long = SKIP.replace("no GPU", "tests/a_test.cc:3&#x0A;no data")
        messages = count(event("//a", gtest_xml(SKIP, long)), event("//b", gtest_xml(SKIP)))[1]
        self.assertEqual(messages, ["skipped 2: no GPU", "skipped 1: no data"])

    def test_disabled_cases_are_skipped(self):
        self.assertEqual(count(event("//a", gtest_xml(RUN, DISABLED)))[0], [1, 0, 1])

    def test_crash_report_of_bazel_is_a_failure(self):
        self.assertEqual(count(event("//a", gtest_xml(CRASH), "FAILED"), exit_code=3)[0], [0, 1, 0])

    def test_failure_after_the_last_case_counts(self):
        self.assertEqual(count(event("//a", gtest_xml(RUN, RUN), "FAILED"), exit_code=3)[0], [2, 1, 0])
        self.assertEqual(count(event("//a", None, "TIMEOUT"), exit_code=3)[0], [0, 1, 0])

    def test_a_passed_test_without_cases_is_a_failure(self):
        self.assertEqual(count(event("//a", gtest_xml()))[0], [0, 1, 0])
        self.assertEqual(count(event("//a", None))[0], [0, 1, 0])
        self.assertEqual(count(event("//a", "<testsuites"))[0], [0, 1, 0])

    def test_build_failure_counts(self):
        total, messages = count(event("//a", gtest_xml(RUN)), exit_code=1)
        self.assertEqual(total, [1, 1, 0])
        self.assertIn("exit code 1", messages[0])

    def test_only_the_last_attempt_of_a_shard_counts(self):
        total, _ = count(event("//a", gtest_xml(BAD), "FAILED", attempt=1),
                         event("//a", gtest_xml(RUN), "FLAKY", attempt=2),
                         event("//a", gtest_xml(RUN, RUN), shard=2))
        self.assertEqual(total, [3, 0, 0])

    def test_other_events_are_ignored(self):
        lines = [json.dumps({"id": {"progress": {}}, "progress": {"stderr": "x"}}),
                 json.dumps({"id": {"testResult": {"label": "//a"}}, "aborted": {}})]
        self.assertEqual(count(*lines)[0], [0, 0, 0])

    def test_events_that_are_cut_off_are_a_failure(self):
        total, messages = count(event("//a", gtest_xml(RUN)), event("//b", gtest_xml(RUN))[:40])
        self.assertEqual(total, [1, 1, 0])
        self.assertIn("disk full", messages[0])


if __name__ == "__main__":
    unittest.main()
