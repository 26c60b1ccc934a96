"""The kinds of tokenizer.json that models use, trained by Hugging Face's library on a given text.

    pip install tokenizers==0.23.3
"""
import json

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + REST
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
NANOCHAT = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}{1,2}")
GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTIONS}?|"
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTIONS}?|\p{{N}}{{1,3}}|" + REST.replace(r"[\r\n]*", r"[\r\n/]*")
)
TEKKEN = GPT4O.replace(CONTRACTIONS + "?", "").replace(r"\p{N}{1,3}", r"\p{N}")
# Patterns without a matcher of their own in Lockstep: PCRE2 compiles them.
CL100K = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
DEEPSEEK = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def added(content, ident, special=True, **flags):
    base = dict(single_word=False, lstrip=False, rstrip=False, normalized=False)
    return {"id": ident, "content": content, **base, "special": special, **flags}


def add(file, tokens):
    """Appends added tokens with the ids that the library gives them."""
    vocab, new = file["model"]["vocab"], 0
    for content, flags in tokens:
        file["added_tokens"].append(added(content, vocab.get(content, len(vocab) + new), **flags))
        new += content not in vocab


def template(bos):
    return processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, 0)])


def byte_level(split, normalizer=None, before=(), bos=None, ignore_merges=False, prefix=False, extra=()):
    """split: a regex, or None for GPT-2's inside of ByteLevel; before: other pre-tokenizers."""

    def make(texts, vocab_size):
        steps = list(before)
        if split:
            steps.append(pre_tokenizers.Split(Regex(split), "isolated"))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=split is None))
        tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
        if normalizer:
            tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[bos or "<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        tokenizer.post_processor = template(bos) if bos else processors.ByteLevel(trim_offsets=False)
        file = json.loads(tokenizer.to_str())
        add(file, extra)
        return file

    return make


def sentencepiece(kind):
    """kind: prepend (Llama 2 of old), metaspace (new), gemma, or unknown (no bytes to fall back to)."""

    def make(texts, vocab_size):
        control = ["<unk>", "<s>", "</s>"]
        all_bytes = [] if kind == "unknown" else [f"<0x{b:02X}>" for b in range(256)]
        trained = Tokenizer(models.BPE())
        trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=control + all_bytes,
            limit_alphabet=min(1000, vocab_size // 5),
            show_progress=False,
        )
        trained.train_from_iterator(texts, trainer)
        file = json.loads(trained.to_str())
        file["model"].update(unk_token="<unk>", fuse_unk=kind != "unknown", byte_fallback=kind != "unknown")
        file["added_tokens"] = [added(content, i) for i, content in enumerate(control)]
        replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
        file["decoder"] = {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        }
        if kind == "metaspace":
            file["pre_tokenizer"] = {
                "type": "Metaspace",
                "replacement": "▁",
                "prepend_scheme": "first",
                "split": False,
            }
        elif kind == "gemma":
            file["normalizer"] = replace
            file["pre_tokenizer"] = {
                "type": "Split",
                "pattern": {"String": " "},
                "behavior": "MergedWithPrevious",
                "invert": False,
            }
            file["decoder"]["decoders"].pop()
            runs = ["\n" * n for n in range(2, 6)] + ["▁" * n for n in range(2, 6)]
            add(file, [(run, dict(special=False)) for run in runs] + [("<start_of_turn>", {})])
        else:
            prepend = {"type": "Prepend", "prepend": "▁"}
            file["normalizer"] = {"type": "Sequence", "normalizers": [prepend, replace]}
            file["pre_tokenizer"] = None
        if kind != "unknown":
            tokens = {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}
            sequence = lambda name, n: {"Sequence": {"id": name, "type_id": n}}
            single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, sequence("A", 0)]
            file["post_processor"] = {
                "type": "TemplateProcessing",
                "single": single,
                "pair": single + [sequence("B", 1)],
                "special_tokens": tokens,
            }
        return file

    return make


THINK = [("<think>", dict(special=False)), ("<tool_call>", dict(special=False, normalized=True))]
FLAGS = [
    ("<left>", dict(lstrip=True)),
    ("<right>", dict(rstrip=True)),
    ("<both>", dict(lstrip=True, rstrip=True, special=False)),
    ("word", dict(single_word=True, special=False)),
    ("é", dict(normalized=True, special=False)),
    ("<le", dict(special=False)),
    ("<mask>", dict(lstrip=True, normalized=True)),
    ("  ", dict(special=False, normalized=True)),
]

# The eight kinds that Lockstep has matchers for, and others.
KINDS = {
    "gpt2": byte_level(None),
    "llama3": byte_level(LLAMA3, bos="<|begin_of_text|>", ignore_merges=True),
    "qwen2": byte_level(QWEN2, normalizer=normalizers.NFC(), extra=THINK),
    "gpt4o": byte_level(GPT4O),
    "tekken": byte_level(TEKKEN, bos="<s>"),
    "smollm": byte_level(None, before=[pre_tokenizers.Digits(individual_digits=True)]),
    "llama2_prepend": sentencepiece("prepend"),
    "llama2_metaspace": sentencepiece("metaspace"),
    "gemma": sentencepiece("gemma"),
}
MORE_KINDS = {
    "nanochat": byte_level(NANOCHAT),
    "cl100k": byte_level(CL100K),
    "deepseek": byte_level(
        DEEPSEEK,
        before=[
            pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
            pre_tokenizers.Split(Regex(r"[一-龥぀-ゟ゠-ヿ]+"), "isolated"),
        ],
    ),
    "flags": byte_level(None, normalizer=normalizers.NFC(), prefix=True, extra=FLAGS),
    "behaviors": byte_level(
        None,
        before=[
            pre_tokenizers.Split(",", "merged_with_previous"),
            pre_tokenizers.Split(Regex(r"[a-c]+"), "merged_with_next"),
            pre_tokenizers.Split(Regex(r"-"), "contiguous"),
            pre_tokenizers.Split(Regex(r"\s"), "removed"),
            pre_tokenizers.Split(Regex(r"[^x]+"), "merged_with_next", invert=True),
        ],
    ),
    "unknown": sentencepiece("unknown"),
}
