"""Writes gpt2_goldens.json: how two other implementations encode some texts, with the same files.

    pip install tiktoken==0.14.0 tokenizers==0.23.3
    python3 make_gpt2_goldens.py FOLDER_WITH_ENCODER_JSON_AND_VOCAB_BPE [TINYSHAKESPEARE_TXT]
"""
import hashlib
import json
import pathlib
import random
import struct
import sys

import tiktoken
import tokenizers
from tiktoken.load import data_gym_to_mergeable_bpe_ranks

folder = pathlib.Path(sys.argv[1])
encoder, bpe = str(folder / "encoder.json"), str(folder / "vocab.bpe")
gpt2 = tiktoken.Encoding(
    "gpt2",
    pat_str=r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    mergeable_ranks=data_gym_to_mergeable_bpe_ranks(bpe, encoder),
    special_tokens={"<|endoftext|>": 50256},
)
hugging_face = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(encoder, bpe))
hugging_face.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)

TEXTS = [
    "",
    "Hello world",
    "Hello, world! It's 2024, isn't it? We'll see; they've said they're I'm he'd.",
    "  leading and trailing   ",
    "tabs\tand\nnewlines\r\n\r\n\n   \n x",
    "for (int64_t i = 0; i < n; ++i) {\n    y[i] += alpha * x[i];  // axpy\n}\n",
    "<|endoftext|>",
    "1234567890 3.14159 1,000,000 ½ ² Ⅷ ٣٤",
    "naïve façade Ångström Straße ЁЖИК привет мир",
    "日本語のテキスト、中文文本。한국어",
    "العربية עברית हिन्दी ไทย",
    "🙂🚀👩‍👩‍👧‍👦🏳️‍🌈 e\u0301 \u00a0nbsp\u2003em\u3000wide\u2028line\u0085nel",
    "\u180e\u200b\ufeff zero \u1680 widths\u180e\u180e x",
    "\x00\x01\x1c\x1d\x1f\x7f controls",
    "don't DON'T 'S 's'd'll ''' \"quoted\" --dashes-- ...",
    "a" * 1000,
    " " * 500 + "x" + " " * 500,
    "ab" * 300 + "!" * 300 + "=" * 301,
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
    "https://example.org/a/b?c=d&e=f#g user@example.org C:\\path\\file.txt",
]
randomness = random.Random(1)
ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz     ETAOIN'.,\n",
    " \t\n\r\u00a0\u2003ab'1!",
    "aeiouéèßñжщю中文字カナ한글١٢🙂🚀 '\u0301\n",
]
for alphabet in ALPHABETS:
    for length in (20, 50, 100, 150):
        TEXTS.append("".join(randomness.choice(alphabet) for _ in range(length)))

cases = []
for text in TEXTS:
    ids = gpt2.encode_ordinary(text)
    assert ids == hugging_face.encode(text).ids, text
    cases.append({"text": text, "ids": ids})
goldens = {"cases": cases}
if len(sys.argv) > 2:
    ids = gpt2.encode_ordinary(open(sys.argv[2], encoding="utf-8", newline="").read())
    packed = struct.pack(f"<{len(ids)}H", *ids)
    goldens["tinyshakespeare"] = {"count": len(ids), "uint16_sha256": hashlib.sha256(packed).hexdigest()}
lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
rest = {k: v for k, v in goldens.items() if k != "cases"}
with open(pathlib.Path(__file__).with_name("gpt2_goldens.json"), "w") as out:
    out.write(json.dumps(rest)[:-1] + (", " if rest else "") + '"cases": [\n' + lines + "\n]}\n")
