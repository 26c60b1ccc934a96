#!/usr/bin/env python3
"""Makes tests/data/testdata/conversation_goldens.json: the tokens and the masks that transformers makes of conversations.

    pip install transformers==5.23 jinja2
    python3 tests/peers/make_conversation_goldens.py

A template without {% generation %} blocks gets them here, by hand, around what the assistant writes; Lockstep gets it
as it is, and must find the same answers.
"""
import json
import pathlib

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

TESTDATA = pathlib.Path(__file__).resolve().parents[1] / "data" / "testdata"
USER, ASSISTANT = "user", "assistant"


def chat(*contents, system=None):
    messages = [{"role": "system", "content": system}] if system else []
    for i, content in enumerate(contents):
        messages.append({"role": (USER, ASSISTANT)[i % 2], "content": content})
    return messages


CALL = {"id": "abc123456", "type": "function",
        "function": {"name": "weather", "arguments": {"city": "Köln", "days": [1, 2.5], "x": None}}}
CHATS = {
    "one": chat("What is 2+2?", "It is 4."),
    "turns": chat("Hi", "Hello!", " Wie heißt du? \n", "Ünï 日本 🙂\n\n1. a\n2. b", "Bye", "Bye", "Bye", "Bye"),
    "system": chat("Hi", "Hello", "Hello", "Hi", system="Be brief."),
    "trimmed": chat("Hi\n", "Hello \n", "x", "y  "),
    "thinking": chat("a", "<think>\nhm\n</think>\n\nA", "b", "<think>\nso\n</think>\n\nB"),
    "no_last_thought": chat("a", "<think>\nhm\n</think>\n\nA", "b", "B"),
    "calls": [{"role": USER, "content": "Weather?"},
              {"role": ASSISTANT, "content": "", "tool_calls": [CALL]},
              {"role": "tool", "tool_call_id": "abc123456", "content": "{\"t\": 20}"},
              {"role": ASSISTANT, "content": "20 degrees"},
              {"role": USER, "content": "Thanks"}, {"role": ASSISTANT, "content": "Yes."}],
    "not_nfc": chat("Cafe\u0301 e\u0301", "A\u030a is \u00c5", "Bye", "e\u0301"),
}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}}}}]
GEN, END = "{% generation %}", "{% endgeneration %}"

# file: the tokenizer, the special tokens added to it, bos and eos, and what is replaced for the masks.
TEMPLATES = {
    "chatml": ("qwen2", [], None, "<|endoftext|>", [
        ("{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}",
         "{{ '<|im_start|>' + message['role'] + '\\n' }}{% if message['role'] == 'assistant' %}" + GEN +
         "{{ message['content'] + '<|im_end|>' }}" + END + "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}"
         "{{ '\\n' }}")]),
    "chatml_masked": ("qwen2", [], None, "<|endoftext|>", []),
    "qwen2_5": ("qwen2", [], None, "<|im_end|>", [
        ("""(message.role == "assistant" and not message.tool_calls)""", "false"),
        ("""{{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}""",
         """{{- '<|im_start|>' + message.role + '\\n' }}
        {%- generation %}
            {{- message.content }}"""),
        ("""{{- '\\n<tool_call>\\n{"name": "' }}""",
         """{{- ('\\n' if message.content or not loop.first else '') + '<tool_call>\\n{"name": "' }}"""),
        ("""{{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}""",
         """{{- '<|im_end|>' }}{% endgeneration %}{{- '\\n' }}
    {%- elif message.role == "tool" %}""")]),
    "qwen3": ("qwen2", [], None, "<|im_end|>", []),
    "llama3": ("llama3", ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"], "<|begin_of_text|>", "<|eot_id|>", [
        ("{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}",
         "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}"
         "{%- if message.role == 'assistant' %}" + GEN + "{{- message['content'] | trim + '<|eot_id|>' }}" + END +
         "{% else %}{{- message['content'] | trim + '<|eot_id|>' }}{% endif %}"),
        ("{{- '{\"name\": \"' + tool_call.name", GEN + "{{- '{\"name\": \"' + tool_call.name"),
        ("{{- \"}<|eot_id|>\" }}", "{{- \"}<|eot_id|>\" }}" + END)]),
    "mistral": ("tekken", ["</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
                           "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"], "<s>", "</s>", [
        ("{{- \" \" + message[\"content\"]|trim + eos_token}}",
         GEN + "{{- \" \" + message[\"content\"]|trim + eos_token}}" + END),
        ("{{- \"[TOOL_CALLS] [\" }}", GEN + "{{- \"[TOOL_CALLS] [\" }}"),
        ("{%- endfor %}\n    {%- elif message[\"role\"] == \"assistant\" %}",
         "{%- endfor %}" + END + "\n    {%- elif message[\"role\"] == \"assistant\" %}")]),
    "gemma": ("gemma", ["<end_of_turn>"], "<s>", "</s>", [
        ("{%- if message['content'] is string -%}\n        {{ message['content'] | trim }}",
         "{%- if message['role'] == 'assistant' -%}{%- generation -%}{{ message['content'] | trim }}{{ '<end_of_turn>' }}"
         "{%- endgeneration -%}{%- elif message['content'] is string -%}\n        {{ message['content'] | trim }}"),
        ("    {{ '<end_of_turn>\\n' }}",
         "    {{ '\\n' if message['role'] == 'assistant' else '<end_of_turn>\\n' }}")]),
    "llama2": ("llama2_prepend", [], "<s>", "</s>", [
        ("{{ ' ' + content.strip() + ' ' + eos_token }}", GEN + "{{ ' ' + content.strip() + ' ' + eos_token }}" + END)]),
    "phi": ("qwen2", ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"], None, "<|endoftext|>", [
        ("""{{'<|assistant|>
' + message['content'] + '<|end|>
'}}""", """{{'<|assistant|>
'}}{% generation %}{{ message['content'] + '<|end|>' }}{% endgeneration %}{{ '\n' }}""")]),
}


WITHOUT_TOOLS = ("chatml", "chatml_masked", "gemma", "llama2", "phi")


def masked(template, replacements):
    for old, new in replacements:
        assert template.count(old) == 1, old
        template = template.replace(old, new)
    return template


def tokenizer_of(name):
    """The small tokenizer of testdata that goes with a template, with the special tokens of the latter."""
    tokenizer_name, added, bos, eos, _ = TEMPLATES[name]
    file = json.loads((TESTDATA / "tokenizers" / f"{tokenizer_name}.json").read_text())["tokenizer"]
    size = 1 + max([*file["model"]["vocab"].values(), *(t["id"] for t in file["added_tokens"])])
    for i, content in enumerate(added):
        file["added_tokens"].append({"id": size + i, "content": content, "single_word": False, "lstrip": False,
                                     "rstrip": False, "normalized": False, "special": True})
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(file)), bos_token=bos, eos_token=eos)


def source_of(name):
    return (TESTDATA / "chat_templates" / f"{name}.jinja").read_text()


def main():
    cases = []
    for name, (_, _, _, _, replacements) in TEMPLATES.items():
        tokenizer, source = tokenizer_of(name), source_of(name)
        template = masked(source, replacements)
        for chat_name, messages in CHATS.items():
            variables = {"tools": TOOLS} if chat_name == "calls" else {}
            if name == "llama3":
                variables["date_string"] = "26 Jul 2024"
            if chat_name == "calls" and name in WITHOUT_TOOLS:
                continue
            try:
                text = tokenizer.apply_chat_template(messages, chat_template=source, tokenize=False, **variables)
            except Exception:  # turns that the template refuses
                continue
            again = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, **variables)
            assert again == text, (name, chat_name, text, again)
            out = tokenizer.apply_chat_template(messages, chat_template=template, return_dict=True,
                                                return_assistant_tokens_mask=True, **variables)
            cases.append({"template": name, "chat": chat_name, "variables": variables, "ids": out["input_ids"],
                          "mask": "".join(map(str, out["assistant_masks"]))})

    goldens = {
        "chats": CHATS,
        "tokenizers": {name: {"file": t[0], "added": t[1], "bos_token": t[2], "eos_token": t[3]}
                       for name, t in TEMPLATES.items()},
    }
    with open(TESTDATA / "conversation_goldens.json", "w") as out:
        dump = lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":"))  # noqa: E731
        lines = ",\n".join(dump(case) for case in cases)
        out.write(f'{{"chats": {dump(goldens["chats"])},\n"tokenizers": {dump(goldens["tokenizers"])},\n"cases": [\n{lines}\n]}}\n')
    print(len(cases), "cases")


if __name__ == "__main__":
    main()
