#!/usr/bin/env python3
"""Compares vocabularies that Lockstep trains with those of tokenizers' BpeTrainer, and the times.

    bazel build -c opt //tests/data:train_bpe
    python3 tests/peers/train_bpe.py [MEGABYTES]     # of Python's sources and /usr/share/doc; 30 by default
    python3 tests/peers/train_bpe.py --goldens [TINYSHAKESPEARE_TXT]

Needs tokenizers 0.23 or newer. Compares 1,500 random corpora with tokenizers and with the definition,
then whole tokenizer.json files trained on real text with the pre-tokenizers of GPT-2, Llama 3 and Qwen 2;
each time is the best of three, taken in turns. The second form makes
tests/data/testdata/bpe_training_goldens.json. PROGRAM in the environment names another train_bpe.
"""
import collections
import hashlib
import json
import os
import pathlib
import random
import subprocess
import sys
import sysconfig
import tempfile
import time

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("PROGRAM", ROOT / "bazel-bin/tests/data/train_bpe")
ALPHABET = pre_tokenizers.ByteLevel.alphabet()

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
GPT2_WORDS = {"normalizer": None, "pre_tokenizer": {
    "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}}


def split_words(regex, normalizer=None):
    return {"normalizer": normalizer, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}}


WORDS = {"GPT-2": GPT2_WORDS, "Llama 3": split_words(LLAMA3),
         "Qwen 2": split_words(LLAMA3.replace("{1,3}", ""), {"type": "NFC"})}


def ours(requests):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for request in requests:
            file.write(json.dumps(request, ensure_ascii=False) + "\n")
        file.flush()
        lines = subprocess.run([PROGRAM, file.name], check=True, capture_output=True, text=True).stdout
    answers = [json.loads(line) for line in lines.splitlines()]
    return [(json.loads(a["tokenizer"]), a["seconds"]) for a in answers]


def theirs(request):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.decoder = decoders.ByteLevel()
    texts = request.get("texts")
    if texts is None:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
        texts = [" ".join([word] * count) for word, count in request["words"].items()]
    else:
        fields = json.loads(tokenizer.to_str())
        fields.update({name: request[name] for name in ("normalizer", "pre_tokenizer")})
        tokenizer = Tokenizer.from_str(json.dumps(fields))
    trainer = trainers.BpeTrainer(
        vocab_size=request["vocab_size"], min_frequency=request["min_frequency"],
        special_tokens=request["special_tokens"], initial_alphabet=ALPHABET, show_progress=False)
    start = time.perf_counter()
    tokenizer.train_from_iterator(texts, trainer, length=len(texts))
    return json.loads(tokenizer.to_str()), time.perf_counter() - start


def definition(request):
    """Merges by the definition: the most frequent pair, of equal ones that with the smallest ids."""
    tokens = request["special_tokens"] + sorted(ALPHABET)
    ids = {token: i for i, token in enumerate(tokens)}
    words = [([ids[c] for c in word], count) for word, count in request["words"].items()]
    merges = []
    while len(tokens) < request["vocab_size"]:
        counts = collections.Counter()
        for word, count in words:
            for pair in zip(word, word[1:]):
                counts[pair] += count
        pair, count = min(counts.items(), key=lambda item: (-item[1], item[0]), default=(None, 0))
        if count < max(1, request["min_frequency"]):
            break
        merges.append([tokens[pair[0]], tokens[pair[1]]])
        tokens.append("".join(merges[-1]))
        for word, _ in words:
            i = 0
            while i + 1 < len(word):
                if (word[i], word[i + 1]) == pair:
                    word[i:i + 2] = [len(tokens) - 1]
                i += 1
    return merges


def random_request(rng):
    letters = "abcd"[:rng.randint(2, 4)]
    words = collections.Counter()
    longest = rng.choice([4, 12, 40])
    for _ in range(rng.randint(1, 30)):
        words["".join(rng.choice(letters) for _ in range(rng.randint(1, longest)))] += rng.randint(1, 5)
    special = rng.choice([[], ["<|endoftext|>"], ["<s>", "</s>", "<pad>"]])
    return {"words": words, "special_tokens": special, "min_frequency": rng.randint(0, 3),
            "vocab_size": 256 + len(special) + rng.choice([3, 20, 100, 1000])}


def compare_random():
    rng = random.Random(1)
    requests = [random_request(rng) for _ in range(1500)]
    merges = 0
    for request, (mine, _) in zip(requests, ours(requests)):
        model, theirs_model = mine["model"], theirs(request)[0]["model"]
        assert model == theirs_model, request
        assert model["merges"] == definition(request), request
        merges += len(model["merges"])
    print(f"1,500 random corpora: {merges} merges, all equal to tokenizers' and to the definition")


def real_texts(limit):
    texts, size = [], 0
    folders = [pathlib.Path(sysconfig.get_paths()["stdlib"]), pathlib.Path("/usr/share/doc")]
    for path in sorted(p for folder in folders for p in folder.rglob("*") if p.is_file()):
        if size >= limit:
            break
        try:
            text = path.read_bytes().decode("utf-8")
        except (UnicodeDecodeError, OSError):
            continue
        if text and "\0" not in text:
            texts.append(text)
            size += len(text.encode())
    return texts, size


def compare_real(megabytes):
    texts, size = real_texts(megabytes * 1e6)
    print(f"{len(texts)} files of Python and /usr/share/doc, {size / 1e6:.1f} MB, {os.cpu_count()} CPUs")
    cases = [("GPT-2", 1000, 0), ("GPT-2", 8192, 2), ("GPT-2", 32000, 2), ("GPT-2", 50000, 0),
             ("Llama 3", 32000, 2), ("Qwen 2", 32000, 2)]
    for words, vocab_size, min_frequency in cases:
        request = {"texts": texts, "special_tokens": ["<|endoftext|>", "<|pad|>"],
                   "vocab_size": vocab_size, "min_frequency": min_frequency, **WORDS[words]}
        times = []
        for _ in range(3):
            (mine, seconds), = ours([request])
            other, other_seconds = theirs(request)
            assert mine == other, f"{words}, vocab_size {vocab_size}: the files differ"
            times.append((seconds, other_seconds))
        best, other_best = map(min, zip(*times))
        print(f"{words}, vocab_size {vocab_size}, min_frequency {min_frequency}: {len(mine['model']['merges'])} "
              f"merges, equal; Lockstep {best:.2f} s, tokenizers {other_best:.2f} s: "
              f"{other_best / best:.1f} times as long", flush=True)


def make_goldens(tiny_shakespeare):
    def train(path, **options):
        text = pathlib.Path(path).read_bytes().decode("utf-8")
        return theirs({"texts": [text], "min_frequency": 2, **GPT2_WORDS, **options})[0]["model"]

    out = ROOT / "tests/data/testdata/bpe_training_goldens.json"
    goldens = json.loads(out.read_text()) if out.exists() else {}
    model = train(ROOT / "data/corpus/corpus.txt", vocab_size=1000, special_tokens=["<|endoftext|>"])
    tokens = {i: token for token, i in model["vocab"].items()}
    goldens["tokens"] = {i: tokens[i] for i in (1, 34, 128, 256, 257, 500, 999)}
    goldens["merges"] = model["merges"]
    if tiny_shakespeare:
        merges = train(tiny_shakespeare, vocab_size=20000, special_tokens=[])["merges"]
        lines = "".join(f"{left} {right}\n" for left, right in merges)
        goldens["tinyshakespeare"] = {
            "merges": len(merges), "sha256": hashlib.sha256(lines.encode()).hexdigest()}
    out.write_text(json.dumps(goldens, ensure_ascii=False) + "\n")


if sys.argv[1:2] == ["--goldens"]:
    make_goldens(sys.argv[2] if len(sys.argv) > 2 else None)
else:
    compare_random()
    compare_real(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
