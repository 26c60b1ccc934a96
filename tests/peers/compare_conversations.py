#!/usr/bin/env python3
"""Compares what Lockstep makes of rows of conversations with transformers' apply_chat_template.

    bazel build //tests/data:encode_rows
    python3 tests/peers/compare_conversations.py bazel-bin/tests/data/encode_rows [--rows 300] [--seed 1]

Draws rows of all formats, and gives each to every template of make_conversation_goldens.py and to named ones. Text, ids
and masks must be equal, or Lockstep must refuse the row by name or leave it out where the README of data/conversations
says so. Masks are those of templates with {% generation %}; Lockstep finds them with and without. Without transformers
nothing is compared, which is said.
"""
import argparse
import collections
import copy
import json
import pathlib
import random
import re
import subprocess
import tempfile
import warnings

try:
    import make_conversation_goldens as goldens
    from transformers.utils import chat_template_utils
except ImportError as missing:
    print(f"skipped: {missing}")
    raise SystemExit(0)

warnings.filterwarnings("ignore")

WORDS = ["Hi", "2+2", "naïve", "日本", "🙂", "cafe\u0301", "{{ x }}", "\"q\"", "\\n", "a\nb", "1. x", "</s>", "user\n", "é",
         "<think>", "</think>", "<tool_response>", "%}"]
SPACES = ["", "", "", "", " ", "\n", "\n\n", "\t", "\u3000", "\u00a0"]
BLANK = ["", " ", "\n\n", "\u3000", None, []]
TOOL = {"type": "function", "function": {"name": "mul", "description": "Multiplies <x>.", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "é": {"type": "string"}}, "required": ["a"]}}}
REASONING = ["reasoning_content", "thinking", "reasoning"]
KNOWS_PARTS = {"gemma"}  # of the others, some print Python's list, some nothing: Lockstep joins the parts
NAMED = {"named": ("chatml_masked", "qwen3"), "jinja_files": ("phi", "qwen2_5")}  # default and tool_use


class Rows:
    def __init__(self, seed, specials):
        self.random, self.specials = random.Random(seed), specials

    def maybe(self, share):
        return self.random.random() < share

    def text(self):
        words = [self.random.choice(WORDS) for _ in range(self.random.randint(1, 5))]
        for share, more in ((0.1, self.specials), (0.02, ["\ud800"])):
            if self.maybe(share):
                words.insert(self.random.randint(0, len(words)), self.random.choice(more))
        return self.random.choice(SPACES) + self.random.choice([" ", "", "\n"]).join(words) + self.random.choice(SPACES)

    def content(self, blank=0.02, parts=0.1):
        if self.maybe(blank):
            return self.random.choice(BLANK)
        if self.maybe(parts):
            return [{"type": "text", "text": self.text()} for _ in range(self.random.randint(1, 3))]
        return self.text()

    def call(self):
        arguments = self.random.choice([{"a": 3, "é": "ü"}, {}, {"z": [1, 2.5], "a": None}])
        if self.maybe(0.4):
            arguments = json.dumps(arguments)
        call = {"id": self.random.choice(["abc123456", "c1"]), "type": "function",
                "function": {"name": "mul", "arguments": arguments}}
        return call if self.maybe(0.9) else call["function"]

    def answer(self):
        message = {"role": "assistant", "content": self.content()}
        for key in self.random.sample(REASONING, self.random.randint(1, 3)) if self.maybe(0.3) else []:
            message[key] = self.random.choice(["hm", "a\nb ", "", None, self.text()])
        if self.maybe(0.05):
            message[self.random.choice(["tool_calls", "name"])] = self.random.choice([[], None])
        if self.maybe(0.1):
            message[self.random.choice(["train", "weight"])] = self.random.choice([0, 1])
        return message

    def turns(self, count, tools):
        messages = []
        for _ in range(count):
            messages.append({"role": "user", "content": self.content()})
            if tools and self.maybe(0.5):
                calls = [self.call() for _ in range(self.random.choice([1, 1, 2]))]
                content = {"content": self.random.choice([None, "", self.text()])} if self.maybe(0.8) else {}
                messages.append({"role": "assistant", **content, "tool_calls": calls})
                messages += [{"role": "tool", "tool_call_id": "abc123456", "content": self.content(0.1, 0)} for _ in calls]
            messages.append(self.answer())
        if self.maybe(0.3):
            messages.insert(0, {"role": "system", "content": self.content(0.1)})
        return messages

    def row(self):
        """A row, and the messages and the numbers of those that are learnt that it means."""
        kind = self.random.choice(["messages"] * 6 + ["share_gpt", "alpaca", "completion", "completions"])
        extra, tools = {}, False
        if kind == "messages" and self.maybe(0.5):
            extra["tools"] = self.random.choice([[TOOL], [TOOL, TOOL], [], None])
            tools = bool(extra["tools"])
        if self.maybe(0.15):
            extra["chat_template_kwargs"] = {"enable_thinking": self.maybe(0.5)}
        texts = lambda: self.random.choice([self.text(), self.text(), self.text(), ""])  # noqa: E731
        if kind == "alpaca":
            row = {"instruction": self.text(), "input": texts(), "output": self.text()}
            row["history"] = [[self.text(), self.text()] for _ in range(self.random.randint(0, 2))]
            system = texts()
            pairs = row["history"] + [["\n\n".join(t for t in (row["instruction"], row["input"]) if t), row["output"]]]
            messages = [{"role": role, "content": t} for pair in pairs for role, t in zip(("user", "assistant"), pair)]
            if system:
                row["system"] = system
                messages.insert(0, {"role": "system", "content": system})
            return {**row, **extra}, messages
        messages = self.turns(self.random.randint(1, 3), tools)
        if kind == "share_gpt":
            names = {"user": "human", "assistant": "gpt", "system": "system"}
            messages = [{k: v for k, v in m.items() if k in ("role", "content")} for m in messages]
            given = [{"from": names[m["role"]], "value": m["content"]} for m in messages]
            return {"conversations": given, **extra}, messages
        if kind == "completion":
            messages = [{"role": "user", "content": self.text()}, {"role": "assistant", "content": self.text()}]
            return {"prompt": messages[0]["content"], "completion": messages[1]["content"], **extra}, messages
        if kind == "completions":
            return {"prompt": messages[:-1], "completion": messages[-1:], **extra}, messages
        return {"messages": messages, **extra}, messages


def joined(content):
    return "".join(part["text"] for part in content) if isinstance(content, list) else content


def repaired(value):
    """Lone surrogates become U+FFFD."""
    if isinstance(value, str):
        return re.sub("[\ud800-\udfff]", "\ufffd", value)
    if isinstance(value, list):
        return [repaired(one) for one in value]
    return {key: repaired(one) for key, one in value.items()} if isinstance(value, dict) else value


def left_out(messages):
    for message in messages:
        text = joined(message.get("content")) or ""
        if message["role"] == "assistant" and not message.get("tool_calls") and not text.strip():
            return True
        if message["role"] == "user" and not text:
            return True
    return False


def plain(value, specials):
    """With other text of the same length where a special token is spelled."""
    if isinstance(value, str):
        return re.sub("|".join(map(re.escape, specials)), lambda m: "x" * len(m[0]), value)
    if isinstance(value, list):
        return [plain(one, specials) for one in value]
    return {key: plain(one, specials) for key, one in value.items()} if isinstance(value, dict) else value


class Template:
    """A folder with a tokenizer and templates, and what transformers makes of conversations with it."""

    def __init__(self, name, folder, with_generation):
        default, tool_use = NAMED.get(name, (name, None))
        self.tokenizer = goldens.tokenizer_of(default)
        source = lambda n: goldens.source_of(n) if not with_generation else goldens.masked(  # noqa: E731
            goldens.source_of(n), goldens.TEMPLATES[n][4])
        for_masks = lambda n: goldens.masked(goldens.source_of(n), goldens.TEMPLATES[n][4])  # noqa: E731
        self.folder, self.knows_parts = folder, name in KNOWS_PARTS and not with_generation
        templates = {"default": source(default), **({"tool_use": source(tool_use)} if tool_use else {})}
        self.tokenizer.chat_template = templates if tool_use else templates["default"]
        self.tokenizer.save_pretrained(folder, save_jinja_files=name != "named")
        self.masks = {source(n): for_masks(n) for n in (default, tool_use) if n}
        self.specials = [str(t) for t in self.tokenizer.added_tokens_decoder.values() if t.special]
        self.special_ids = {i for i, t in self.tokenizer.added_tokens_decoder.items() if t.special}
        # As it is found in the files.
        self.tokenizer = type(self.tokenizer).from_pretrained(folder)

    def render(self, messages, row):
        """Text, ids, and for each id which answer it belongs to as a whole."""
        variables = {"date_string": "26 Jul 2024", **(row.get("chat_template_kwargs") or {})}  # Lockstep's day
        tools = row.get("tools")
        template = self.tokenizer.get_chat_template(None, tools)
        text = self.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, **variables)
        ids = self.tokenizer.apply_chat_template(messages, tools=tools, return_dict=True, **variables)["input_ids"]
        normal = chat_template_utils._normalize_chat_messages(messages)
        [again], [spans] = chat_template_utils.render_jinja_template(
            [normal], tools=tools, chat_template=self.masks[template], return_assistant_tokens_mask=True,
            **{**self.tokenizer.special_tokens_map, **variables})
        if again != text:
            return text, ids, None
        offsets = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        answers = [next((n for n, (begin, end) in enumerate(spans) if begin <= a and b <= end), None) for a, b in offsets]
        return text, ids, answers


def learnt_of(row, messages):
    """For each answer, whether it is learnt."""
    answers = [m for m in messages if m["role"] == "assistant"]
    if "completion" in row:
        last = len(row["completion"]) if isinstance(row["completion"], list) else 1
        return [i >= len(answers) - last and m.get("train", 1) == 1 and m.get("weight", 1) == 1 for i, m in enumerate(answers)]
    return [m.get("train", 1) == 1 and m.get("weight", 1) == 1 for m in answers]


def as_read(template, messages):
    """What transformers gets: without what Lockstep leaves out, and with joined parts where a template knows none."""
    shown = [{k: v for k, v in m.items() if k not in ("train", "weight")} for m in messages
             if m["role"] != "system" or joined(m.get("content"))]
    for m in shown:
        if "content" in m and not template.knows_parts:
            m["content"] = joined(m["content"])
        if m["role"] == "tool" and m["content"] is None:
            m["content"] = ""
    return copy.deepcopy(repaired(shown))


def compare(template, row, messages, ours):
    """What is different; "" if nothing is."""
    if "left_out" in ours or left_out(messages):
        return "" if ("left_out" in ours) == left_out(messages) or "error" in ours else "left out, or not"
    try:
        text, ids, answers = template.render(as_read(template, messages), row)
    except Exception as error:  # noqa: BLE001
        if "error" in ours:
            ours["error"] += " (so does transformers)"
            return ""
        return f"transformers refuses: {error}"
    if "error" in ours:
        return ""
    if ours["text"] != text:
        return f"text {text!r}"
    before = [template.tokenizer.bos_token_id] if template.tokenizer.bos_token_id is not None else []
    if ids[:1] != before:
        before = before if ours["ids"][:len(before)] == before else []
    else:
        before = []
    if ours["ids"] != before + ids:
        return f"ids {before + ids}"
    if answers is None:
        return ""
    learnt = learnt_of(row, messages)
    mask = "0" * len(before) + "".join(str(int(a is not None and learnt[a])) for a in answers)
    return "" if ours["learnt"] == mask else f"mask {mask}"


def compare_users(template, row, messages, ours, specials):
    """Of rows in which users, the system or tools spell special tokens: these stay text."""
    spelled = lambda m: m if m["role"] == "assistant" else plain(m, template.specials)  # noqa: E731
    innocent = {**row, **({"tools": plain(row["tools"], template.specials)} if row.get("tools") else {})}
    try:
        _, ids, _ = template.render(as_read(template, [spelled(m) for m in messages]), innocent)
    except Exception:  # noqa: BLE001
        return ""
    count = lambda some: collections.Counter(i for i in some if i in template.special_ids)  # noqa: E731
    ours_count, theirs = count(ours["ids"]), count(ids)
    bos = template.tokenizer.bos_token_id
    if bos is not None:
        ours_count[bos] = theirs[bos] = 1
    text_differs = ours["text"] != specials["text"]
    return "" if ours_count == theirs and not text_differs else f"special tokens {ours_count}, not {theirs}"


def reason(error):
    error = re.sub(r"^\S+:\d+: ", "", error)
    error = re.sub(r"message \d+( of \"\w+\")?", "message N", re.sub(r"/\S+/", "", error))
    error = re.sub(r"line \d+, column \d+", "line, column", error)
    return error[:90] + (error[-25:] if error.endswith("transformers)") else "")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    total, reasons, shown = collections.Counter(), collections.Counter(), 0
    for name in [*goldens.TEMPLATES, *NAMED]:
        for with_generation in (False, True):
            counts = collections.Counter()
            with tempfile.TemporaryDirectory() as scratch:
                template = Template(name, pathlib.Path(scratch) / "model", with_generation)
                rows = Rows(arguments.seed, template.specials)
                drawn = [rows.row() for _ in range(arguments.rows)]
                file = pathlib.Path(scratch) / "rows.jsonl"
                file.write_text("".join(json.dumps(row) + "\n" for row, _ in drawn))
                run = lambda *more: [json.loads(line) for line in subprocess.run(  # noqa: E731
                    [arguments.program, template.folder, file, *more], stdout=subprocess.PIPE,
                    check=True).stdout.decode().split("\n") if line]
                for (row, messages), ours, without in zip(drawn, run("specials"), run(), strict=True):
                    different = compare(template, row, messages, ours)
                    if not different and "ids" in ours and "ids" in without:
                        different = compare_users(template, row, messages, without, ours)
                    kind = ("different" if different else "left out" if "left_out" in ours else
                            "refused" if "error" in ours else "equal")
                    counts[kind] += 1
                    if kind == "refused":
                        reasons[reason(ours["error"])] += 1
                    elif "error" in without:
                        reasons["users' tokens: " + reason(without["error"])] += 1
                    if different and shown < 12:
                        shown += 1
                        print(f"{name}: {row}\n  {different}\n  ours {ours}\n  without users' tokens {without}")
            print(f"{name}{' with generation' if with_generation else ''}: {dict(counts)}")
            total += counts
    for text, count in reasons.most_common():
        print(f"{count:6} {text}")
    print("total:", dict(total))
    return total["different"] > 0 or total["equal"] < total["refused"]


if __name__ == "__main__":
    raise SystemExit(main())
