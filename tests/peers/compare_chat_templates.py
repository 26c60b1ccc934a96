#!/usr/bin/env python3
"""Compares render_chat with transformers and Jinja2, on random templates and on files.

    bazel build //tests/data:render_chat
    python3 tests/peers/compare_chat_templates.py bazel-bin/tests/data/render_chat [--count 20000] [--seed 1] [FILE.jinja ...]

Needs transformers and jinja2. Each file is rendered with the conversations of make_chat_template_goldens.py.
Results must be equal where Jinja2 gives one; where it fails, render_chat must fail. What Lockstep refuses by name
("is not supported", values that cannot be printed, ...) is counted apart.
"""
import argparse
import collections
import json
import pathlib
import random
import re
import subprocess

import make_chat_template_goldens as goldens
from chat_template_peer import render

REFUSED = ("not supported", "cannot be printed", "was used before", "more than 64 bits", "in 64 bits", "use ~",
           "make a list of it", "a text of more than", "nested deeper", "sum cannot add texts",
           "of a slice", "be sliced")  # an error in Jinja2 too, unless the object is a constant


class Generator:
    """Random templates of expressions that mostly have the right types."""

    ATOMS = {"text": ["s", "e", "text", "''", "'a'", "'b c'", "\"it's\"", "'é\\n'", "'<x>'", "' a '", "'12'", "'1.5'",
                      "messages[0].role", "messages[-1]['content']", "d.c", "people[0].name"],
             "number": ["n", "x", "0", "1", "2", "-3", "1.5", "true", "10", "loop_count", "people[1].age", "l[0]"],
             "list": ["l", "messages", "people", "[]", "[1, 'a', none]", "(1, 2)", "range(3)", "[[1, 2], [3]]",
                      "['b', 'A', 'b']", "d.A", "'a b'.split()"],
             "dict": ["d", "{}", "{'a': 1, 'b': [2]}", "people[0]", "messages[1]", "{'B': 'x', 'a': none}"],
             "other": ["missing", "none", "true", "false", "a", "b", "item", "d.q", "ns.v"]}
    # The type of the result, and how it is written; each %t, %n, %l, %d, %o is an expression of that type.
    FORMS = [
        ("text", "%t + %t"), ("text", "%t ~ %o"), ("text", "%o ~ %n ~ %t"), ("text", "%t * 2"), ("text", "%t | trim"),
        ("text", "%t | upper"), ("text", "%o | lower"), ("text", "%o | string"), ("text", "%t | capitalize"),
        ("text", "%t | title"), ("text", "%t | replace('a', 'bb')"), ("text", "%t | indent(2)"), ("text", "%t[::-1]"),
        ("text", "%t[%n:]"), ("text", "%t[1:%n]"), ("text", "%t[-2:]"), ("text", "%t[0]"), ("text", "%t.strip()"),
        ("text", "%t.lstrip('a')"), ("text", "%t.rstrip()"), ("text", "%t.title()"), ("text", "%t.replace(%t, 'x')"),
        ("text", "%t.removeprefix(%t)"), ("text", "%t.capitalize()"), ("text", "%l | join(%t)"), ("text", "%o | tojson"),
        ("text", "%l | tojson"), ("text", "%d | tojson(indent=2)"), ("text", "%d | tojson(sort_keys=true)"),
        ("text", "%t | reverse"), ("text", "%t if %o else %t"), ("text", "%o | default(%t, true)"),
        ("text", "%t.split(%t)[0]"), ("text", "%t.partition(' ')[2]"), ("text", "m(%o)"),
        ("number", "%n + %n"), ("number", "%n - %n"), ("number", "%n * %n"), ("number", "%n // %n"),
        ("number", "%n % %n"), ("number", "%n / %n"), ("number", "-%n"), ("number", "%n ** 2"), ("number", "%t | length"),
        ("number", "%l | length"), ("number", "%d | count"), ("number", "%t | int"), ("number", "%t | float"),
        ("number", "%n | abs"), ("number", "%t.find(%t)"), ("number", "%t.count(%t)"), ("number", "[%n, %n] | max"),
        ("number", "[%n, %n, %n] | sum"), ("number", "%n if %o else %n"),
        ("list", "%l[::-1]"), ("list", "%l[1:]"), ("list", "%l[:%n]"), ("list", "%l | list"), ("list", "%t.split()"),
        ("list", "%t.split(%t)"), ("list", "%t.rsplit(' ', 1)"), ("list", "%t.splitlines()"), ("list", "%d | dictsort"),
        ("list", "%d.items() | list"), ("list", "%d | list"), ("list", "%l | map('string') | list"),
        ("list", "%l | select('string') | list"), ("list", "%l | reject('none') | list"), ("list", "%l | reverse | list"),
        ("list", "messages | selectattr('role', 'equalto', %t) | list"), ("list", "people | map(attribute='name') | list"),
        ("list", "[%t, %t, %t] | sort"), ("list", "[%n, %n] | unique | list"), ("list", "[%o, %n]"), ("list", "%t | list"),
        ("list", "[%t, %t] | sort(reverse=true)"), ("list", "people | sort(attribute='age', reverse=true)"),
        ("dict", "{%t: %o}"), ("dict", "{'k': %l, 'j': %n}"), ("dict", "dict(%d, z=%o)"),
        ("other", "%n < %n"), ("other", "%t <= %t"), ("other", "%o == %o"), ("other", "%n != %n"), ("other", "%t in %t"),
        ("other", "%o in %l"), ("other", "%t not in %d"), ("other", "%o and %o"), ("other", "%o or %t"), ("other", "not %o"),
        ("other", "%o is defined"), ("other", "%l is iterable"), ("other", "%o is none"), ("other", "%o is string"),
        ("other", "%d is mapping"), ("other", "%o is not sequence"), ("other", "%n is odd"), ("other", "%n is number"),
        ("other", "%n is in %l"), ("other", "%t.startswith(%t)"), ("other", "%t.endswith(('a', %t))"), ("other", "%t.isdigit()"),
        ("other", "%d.get(%t)"), ("other", "%d[%t]"), ("other", "%l[%n]"), ("other", "%d.b"), ("other", "%l | first"),
        ("other", "%l | last"), ("other", "%t is lower"), ("other", "%o is boolean"), ("other", "1 < %n < 5"),
        ("other", "%t"), ("other", "%n"), ("other", "%l"), ("other", "%d"), ("other", "(%o, %n)"), ("other", "%o if %o")]
    TYPES = {"t": "text", "n": "number", "l": "list", "d": "dict", "o": "other"}

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.forms = {kind: [form for result, form in self.FORMS if result == kind] for kind in self.ATOMS}

    def pick(self, things):
        return self.random.choice(things)

    def typed(self, kind, depth):
        if self.random.random() < 0.02:
            kind = self.pick(list(self.ATOMS))
        if depth > 3 or self.random.random() < 0.35:
            return self.pick(self.ATOMS[kind])
        form = re.sub("%([tnldo])", lambda m: self.typed(self.TYPES[m[1]], depth + 1), self.pick(self.forms[kind]))
        return f"({form})"

    def expression(self, depth=0):
        return self.typed(self.pick(["text", "text", "other", "other", "number", "list", "dict"]), depth)

    def tag(self, inside):
        sign = lambda: self.pick(["", "", "", "-", "-", "+"])  # noqa: E731
        return f"{{%{sign()} {inside} {sign()}%}}"

    def block(self, depth=0):
        return "".join(self.statement(depth) for _ in range(self.random.randrange(1, 4)))

    def statement(self, depth):
        kind = self.random.randrange(16)
        if kind < 3 or depth > 3:
            return self.pick(["text", " ", "\n", "  \n ", "é", "\n\t", "{", "} }", "x\r\n", " y"])
        if kind < 8:
            sign = self.pick(["", "", "-"])
            return f"{{{{{sign} {self.expression()} {self.pick(['', '', '| safe'])} {self.pick(['', '', '-'])}}}}}"
        body = lambda: self.block(depth + 1)  # noqa: E731
        if kind == 8:
            middle = self.pick(["", self.tag("else") + body(), self.tag(f"elif {self.expression()}") + body()])
            return self.tag(f"if {self.expression()}") + body() + middle + self.tag("endif")
        if kind < 11:
            target = self.pick(["a", "item", "a, b", "item"])
            condition = self.pick(["", "", f" if {self.expression(2)}"])
            source = "d.items()" if "," in target else self.pick(["d", "s", self.typed("list", 1), self.typed("list", 2)])
            inside = self.pick(["", "{{ loop." + self.pick(["index", "last", "first", "length", "revindex", "previtem",
                                                         "nextitem"]) + " }}", self.tag("if loop.index0 == 1") + self.tag(
                                                             self.pick(["break", "continue"])) + self.tag("endif")])
            after = self.pick(["", "", self.tag("else") + body()])
            return self.tag(f"for {target} in {source}{condition}") + inside + body() + after + self.tag("endfor")
        if kind < 13:
            return self.tag(f"set {self.pick(['a', 'b', 'ns.v', 'item'])} = {self.expression()}")
        if kind == 13:
            filters = self.pick(["", " | trim", " | upper | trim"])
            return self.tag(f"set {self.pick(['a', 'b'])}{filters}") + body() + self.tag("endset")
        if kind == 14:
            call = self.pick(["m(1)", "m()", "m(s, b=l)", f"m({self.expression(1)})"])
            return self.tag("macro m(a, b=2)") + body() + self.tag("endmacro") + "{{ " + call + " }}"
        if depth == 0:
            return self.tag("generation") + body() + self.tag("endgeneration")
        return self.pick(["{# c #}", "{#- c -#}", "\n{# c #}\n", self.tag("raw") + " {{ r }} " + self.tag("endraw")])

    def template(self):
        return ("{% set ns = namespace(v=0) %}{% set loop_count = 3 %}{% macro m(a, b=2) %}[{{ a }}{{ b }}]{% endmacro %}" +
                self.block() + self.block())


def cases(arguments):
    generator = Generator(arguments.seed)
    for _ in range(arguments.count):
        yield {"template": generator.template(), "messages": goldens.M, "variables": goldens.V,
               "add_generation_prompt": generator.random.random() < 0.5, "now": goldens.NOW}
    for path in arguments.files:
        for name, chat in goldens.CHATS.items():
            for variables in goldens.VARIABLES.get(name, [{}]):
                yield {"template": path.read_text(), "messages": chat, "add_generation_prompt": True,
                       "now": goldens.NOW, "variables": {"bos_token": "<s>", "eos_token": "</s>", **variables}}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_intermixed_args()
    given = list(cases(arguments))
    lines = "".join(json.dumps(case) + "\n" for case in given)
    output = subprocess.run([arguments.program], input=lines.encode(), stdout=subprocess.PIPE, check=True).stdout
    counts = collections.Counter()
    for case, line in zip(given, output.decode().rstrip("\n").split("\n"), strict=True):
        ours, peer = json.loads(line), render(case)
        if ours == peer:
            counts["equal"] += 1
        elif "error" in ours and "error" in peer:
            counts["both fail"] += 1
        elif "error" in ours and any(words in ours["error"] for words in REFUSED):
            counts["refused by name"] += 1
        else:
            counts["different"] += 1
            if counts["different"] <= 10:
                print(json.dumps(case["template"], ensure_ascii=False), f"\n  peer: {peer}\n  ours: {ours}")
    print(dict(counts))
    return counts["different"] > 0


if __name__ == "__main__":
    raise SystemExit(main())
