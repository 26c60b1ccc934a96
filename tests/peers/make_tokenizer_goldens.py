"""Writes tests/data/testdata/tokenizers: small tokenizers of many kinds, and what Hugging Face's library makes of texts.

    pip install tokenizers==0.23.3
    python3 tests/peers/make_tokenizer_goldens.py
"""
import json
import pathlib

from tokenizers import Tokenizer

import tokenizer_kinds
import tokenizer_texts

ROOT = pathlib.Path(__file__).parents[2]
OUT = ROOT / "tests/data/testdata/tokenizers"

corpus = (ROOT / "data/corpus/corpus.txt").read_text()
awkward = "\n".join(tokenizer_texts.AWKWARD)
documents = [corpus[i : i + 10000] for i in range(0, len(corpus), 10000)] + [awkward] * 3
texts = tokenizer_texts.AWKWARD + list(tokenizer_texts.fuzzed(60, seed=7)) + [corpus[:1000]]

OUT.mkdir(exist_ok=True)
for name, make in {**tokenizer_kinds.KINDS, **tokenizer_kinds.MORE_KINDS}.items():
    file = make(documents, 1000)
    tokenizer = Tokenizer.from_str(json.dumps(file))
    cases = []
    for text in texts:
        case = {"text": text}
        for key, ordinary in ("ordinary", True), ("specials", False):
            tokenizer.encode_special_tokens = ordinary
            case[key] = tokenizer.encode(text, add_special_tokens=False).ids
        if case["specials"] == case["ordinary"]:
            del case["specials"]
        decoded = tokenizer.decode(case["ordinary"], skip_special_tokens=False)
        if decoded != text:  # null: bytes that are no text, which Lockstep keeps
            case["decoded"] = None if "\ufffd" in decoded else decoded
        cases.append(case)
    tokenizer.encode_special_tokens = False
    around = tokenizer.encode("").ids  # what the post-processor adds
    compact = dict(ensure_ascii=False, separators=(",", ":"))
    lines = ",\n".join(json.dumps(case, **compact) for case in cases)
    with open(OUT / f"{name}.json", "w") as out:
        out.write(f'{{"tokenizer": {json.dumps(file, **compact)},\n"around": {around},\n"cases": [\n{lines}\n]}}\n')
