#!/usr/bin/env python3
"""Counts executed test cases: count_tests.py EVENTS.json [--bazel-exit-code=N]

EVENTS.json is what `bazel test --build_event_json_file=` wrote. It names the test.xml of each test
that ran; the folder bazel-testlogs also has those of earlier runs. Prints

    PASSED FAILED SKIPPED

as three numbers, and on stderr each failed case, and why cases were skipped. A test that failed although none of its cases did
(a leak found at exit, a crash after the report, a timeout) counts as one failed case, and so does a
failure of Bazel without a failed test (a build error).
"""
import collections
import json
import sys
import urllib.parse
import xml.etree.ElementTree as ET

PASSED, FAILED, SKIPPED = 0, 1, 2


def classify(case):
    """PASSED, FAILED or SKIPPED for a <testcase>."""
    if case.find("failure") is not None or case.find("error") is not None:
        return FAILED
    # gtest: result="skipped" for GTEST_SKIP, "suppressed" and status="notrun" for DISABLED_ cases.
    if (case.find("skipped") is not None or case.get("status") == "notrun" or
            case.get("result") in ("skipped", "suppressed")):
        return SKIPPED
    return PASSED


def reason(case):
    """Why a case was skipped: the last line that GTEST_SKIP() was given."""
    skipped = case.find("skipped")
    text = "" if skipped is None else (skipped.get("message") or skipped.text or "")
    return (text.strip().splitlines() or ["switched off"])[-1].strip()


def count_xml(text):
    """Returns ([passed, failed, skipped], names of the failed cases, reasons of the skipped ones) of
    one test.xml."""
    counts, failed, skipped = [0, 0, 0], [], []
    for case in ET.fromstring(text).iter("testcase"):
        kind = classify(case)
        counts[kind] += 1
        if kind == FAILED:
            failed.append(f"{case.get('classname', '')}.{case.get('name', '')}")
        if kind == SKIPPED:
            skipped.append(reason(case))
    return counts, failed, skipped


def last_attempts(lines):
    """The testResult of the last attempt of each (test, run, shard)."""
    results = {}
    for line in lines:
        event = json.loads(line)
        identity = event.get("id", {}).get("testResult")
        if identity is None or "testResult" not in event:
            continue
        key = (identity["label"], identity.get("run", 1), identity.get("shard", 1))
        attempt = identity.get("attempt", 1)
        if key not in results or attempt >= results[key][0]:
            results[key] = (attempt, event["testResult"])
    return {key: result for key, (_, result) in sorted(results.items())}


def read_test_xml(result):
    """The text of the test.xml that a testResult names, or None."""
    for output in result.get("testActionOutput", []):
        if output.get("name") == "test.xml":
            path = urllib.parse.unquote(urllib.parse.urlparse(output["uri"]).path)
            try:
                with open(path, encoding="utf-8", errors="replace") as xml:
                    return xml.read()
            except OSError:
                return None
    return None


def count_events(lines, bazel_exit_code=0, read=read_test_xml):
    """Returns ([passed, failed, skipped], messages)."""
    total, messages, reasons = [0, 0, 0], [], collections.Counter()
    if lines and not lines[-1].rstrip().endswith("}"):
        lines, total[FAILED] = lines[:-1], 1
        messages.append("the last of Bazel's events is truncated; is the disk full?")
    for (label, _, _), result in last_attempts(lines).items():
        counts, failed = [0, 0, 0], []
        text = read(result)
        if text is not None:
            try:
                counts, failed, skipped = count_xml(text)
                reasons.update(skipped)
            except ET.ParseError as error:
                messages.append(f"{label}: unreadable test.xml: {error}")
        status = result.get("status", "NO_STATUS")
        if counts[FAILED] == 0 and status not in ("PASSED", "FLAKY"):
            counts[FAILED] = 1
            failed.append(f"(the test itself: {status})")
        elif sum(counts) == 0:
            counts[FAILED] = 1
            failed.append("(no test cases)")
        messages += [f"{label}: {name} failed" for name in failed]
        total = [a + b for a, b in zip(total, counts)]
    messages += [f"skipped {number}: {why}" for why, number in reasons.most_common()]
    if bazel_exit_code != 0 and total[FAILED] == 0:
        total[FAILED] = 1
        messages.append(f"bazel failed with exit code {bazel_exit_code}, but no test did")
    return total, messages


def main():
    exit_code = 0
    paths = []
    for argument in sys.argv[1:]:
        if argument.startswith("--bazel-exit-code="):
            exit_code = int(argument.split("=", 1)[1])
        else:
            paths.append(argument)
    if len(paths) != 1:
        sys.exit(__doc__)
    try:
        with open(paths[0], encoding="utf-8") as events:
            lines = [line for line in events if line.strip()]
    except OSError:
        lines = []  # Bazel failed before it could write one.
    total, messages = count_events(lines, exit_code)
    for message in messages:
        print("count_tests: " + message, file=sys.stderr)
    print(*total)


if __name__ == "__main__":
    main()
