"""Compares Lockstep's tokenizers with Hugging Face's on many texts, and their speed, and tiktoken's.

    pip install tokenizers==0.23.3 tiktoken==0.14.0
    bazel build -c opt //tests/data:tokenize
    python3 tests/peers/tokenizer_parity.py bazel-bin/tests/data/tokenize [--kinds gpt2 gemma]
        [--megabytes 20] [--fuzz 1000000] [--text FILE ...]

For each kind of tokenizer a vocabulary is trained on part of the text. Ids must be equal for all of
the text and all random strings, with special tokens and without; so must decoded text, where it is
UTF-8. Speeds are of one thread, by its processor time; caches
make them better on an idle machine.
"""
import argparse
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import time

os.environ["RAYON_NUM_THREADS"] = "1"
import tiktoken
from tokenizers import Tokenizer

import tokenizer_kinds
import tokenizer_texts


def write_texts(path, texts):
    with open(path, "wb") as file:
        for text in texts:
            data = text.encode()
            file.write(struct.pack("<I", len(data)) + data)


def read_results(path):
    data, at = path.read_bytes(), 0
    while at < len(data):
        (count,) = struct.unpack_from("<I", data, at)
        ids = list(struct.unpack_from(f"<{count}i", data, at + 4))
        at += 4 + 4 * count
        (size,) = struct.unpack_from("<I", data, at)
        yield ids, data[at + 4 : at + 4 + size]
        at += 4 + size


class Kind:
    def __init__(self, name, program, texts, vocab_size, folder):
        self.name, self.program, self.folder = name, program, pathlib.Path(folder)
        make = {**tokenizer_kinds.KINDS, **tokenizer_kinds.MORE_KINDS}[name]
        self.json = make(texts, vocab_size)
        self.file = self.folder / f"{name}.json"
        self.file.write_text(json.dumps(self.json, ensure_ascii=False))
        self.peer = Tokenizer.from_str(json.dumps(self.json))

    def lockstep(self, texts, specials):
        write_texts(self.folder / "in", texts)
        arguments = [self.program, self.file, self.folder / "in", self.folder / "out"]
        result = subprocess.run(arguments + ["specials" if specials else "ordinary"], stdout=subprocess.PIPE, check=True)
        return read_results(self.folder / "out"), float(result.stdout)

    def compare(self, texts, specials):
        """The number of texts with other ids or decoded text."""
        self.peer.encode_special_tokens = not specials
        ours, _ = self.lockstep(texts, specials)
        different = 0
        for begin in range(0, len(texts), 10000):
            part = texts[begin : begin + 10000]
            theirs = [e.ids for e in self.peer.encode_batch_fast(part, add_special_tokens=False)]
            decoded = self.peer.decode_batch(theirs, skip_special_tokens=False)
            for text, ids, back, (our_ids, our_back) in zip(part, theirs, decoded, ours):
                same_text = "\ufffd" in back or back.encode() == our_back
                if ids == our_ids and same_text:
                    continue
                different += 1
                if different <= 3:
                    print(f"  {self.name}: {text[:200]!r}\n    theirs {ids[:40]} {back[:99]!r}\n    ours   {our_ids[:40]} {our_back[:99]!r}")
        return different

    def speeds(self, pieces):
        """MB/s of Lockstep, tokenizers and, where it has the kind, tiktoken; best of three."""
        megabytes = sum(len(piece.encode()) for piece in pieces) / 1e6
        ours = min(self.lockstep(pieces, True)[1] for _ in range(3))
        speeds = {"Lockstep": megabytes / ours}
        self.peer.encode_special_tokens = False
        speeds["tokenizers"] = megabytes / best(lambda: self.peer.encode_batch_fast(pieces, add_special_tokens=False))
        encoding = self.tiktoken()
        if encoding:
            speeds["tiktoken"] = megabytes / best(lambda: [encoding.encode_ordinary(piece) for piece in pieces])
        return speeds

    def tiktoken(self):
        pre_tokenizer = self.json["pre_tokenizer"]
        if self.name not in ("gpt2", "llama3", "gpt4o", "tekken"):
            return None
        pattern = tokenizer_kinds.GPT2
        if pre_tokenizer["type"] == "Sequence":
            pattern = pre_tokenizer["pretokenizers"][0]["pattern"]["Regex"]
        # GPT-2's alphabet of bytes.
        themselves = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        others = [byte for byte in range(256) if byte not in themselves]
        byte_of = {chr(b): b for b in themselves} | {chr(256 + i): b for i, b in enumerate(others)}
        special = {token["content"]: token["id"] for token in self.json["added_tokens"]}
        ranks = {
            bytes(byte_of[c] for c in token): ident
            for token, ident in self.json["model"]["vocab"].items()
            if token not in special
        }
        return tiktoken.Encoding(self.name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)


def best(run):
    times = []
    for _ in range(3):
        begin = time.process_time()
        run()
        times.append(time.process_time() - begin)
    return min(times)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--kinds", nargs="*", default=list(tokenizer_kinds.KINDS))
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--fuzz", type=int, default=1000000)
    parser.add_argument("--vocab_size", type=int, default=16000)
    parser.add_argument("--text", nargs="*", default=[], help="more text files")
    parser.add_argument("--speed", action=argparse.BooleanOptionalAction, default=True)
    arguments = parser.parse_args()
    text = tokenizer_texts.mixed_text(int(arguments.megabytes * 1e6), arguments.text)
    documents = [text[i : i + 10000] for i in range(0, len(text), 10000)]
    fuzzed = list(tokenizer_texts.fuzzed(arguments.fuzz, seed=1))
    total = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.kinds:
            kind = Kind(name, arguments.program, documents[::8], arguments.vocab_size, folder)
            half = len(fuzzed) // 2
            different = kind.compare(tokenizer_texts.AWKWARD, True) + kind.compare(tokenizer_texts.AWKWARD, False)
            different += kind.compare(documents, False) + kind.compare(fuzzed[:half], True)
            different += kind.compare(fuzzed[half:], False)
            line = f"{name}: {different} differences in {len(documents)} documents and {len(fuzzed)} strings"
            if arguments.speed:
                speeds = kind.speeds(documents[: len(documents) // 4])
                line += "; MB/s: " + ", ".join(f"{who} {speed:.1f}" for who, speed in speeds.items())
            print(line, flush=True)
            total += different
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
