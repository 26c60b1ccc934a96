"""Texts on which tokenizers differ, and where to find some megabytes of text on a Debian machine."""
import gettext
import pathlib
import random
import sys
import unicodedata

from tokenizers import normalizers

AWKWARD = [
    "",
    "Hello, world! It's 2024, isn't it? We'll see; THEY'VE SAID I'M HE'D. 'ſ 'Ss",
    "  leading and trailing   ",
    "tabs\tand\nnewlines\r\n\r\n\n   \n x\n\n\n\n\n\ny \r \n",
    "for (int64_t i = 0; i < n; ++i) {\n    y[i] += alpha * x[i];  // axpy/\n\n}\n",
    "1234567890 3.14159 1,000,000 ½ ² Ⅷ ٣٤ 𞓱𞓲 a1b22c333d4444",
    "naïve façade Ångström Straße ЁЖИК привет мир camelCaseHTTPServer ǅ ﬁ",
    "日本語のテキスト、中文文本。한국어 ᄒ\u1161\u11ab",
    "العربية עברית हिन्दी ไทย",
    "🙂🚀👩‍👩‍👧‍👦🏳️‍🌈 e\u0301 \u00a0nbsp\u2003em\u3000wide\u2028line\u0085nel",
    "\u180e\u200b\ufeff zero \u1680 widths\u180e\u180e x",
    "\x00\x01\x1c\x1d\x1f\x7f controls",
    "a" * 300 + " " * 200 + "x" + " " * 200 + "=" * 150,
    "Letters newer than Unicode 14: \U0002ebf0\U00031350 \U00013460 \ua7cb\ua7dc \U000105c0\U00010d40\U00010d41",
    "<|im_start|>user\nHi <think>x</think><|im_end|><s> a</s>b<unk><start_of_turn> <tool_call>é e\u0301",
    " ▁▁under ▁ score▁",
    "word words sword word-word a word.  <left>  x  <right>  <both>  y<le <left> <mask>",
    "a\u0323\u0307b\u0307\u0323 q\u0307\u0323 \u0344 \u212b \u1e9b\u0323 \u0958 \uac00\u11a8",
    "a,b,,c -- d---e xxaxbxcx,abc",
]

PIECES = (
    ["'s", "'S", "'ll", "'LL", "'ſ", "'", "''", "don't", "I'VE", "'re", "'d"]
    + [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", " \n", "\u00a0", "\u3000", "\u180e", "\u2028", "\u0085"]
    + ["a", "the", "The", "HTTP", "Server", "é", "e\u0301", "ß", "Ж", "ж", "中", "文字", "한", "ᄒ", "\u1161", "ไ", "ท"]
    + ["ǅ", "ʰ", "ª", "\u0301", "\u0323", "\u0903", "हि", "न्", "İ", "ı", "ſ"]
    + ["1", "12", "123", "12345", "½", "Ⅷ", "٣", "²", "\U0001d7ce"]
    + ["!", "?!", "...", "/", "//", "-", "_", "(", ")", "<", ">", "▁", "▁▁", "🙂", "👩‍👩‍👧", "\u200d", "\u200b", "\x00"]
    + ["\U0002ebf0", "\U00031350", "\U00013460", "\ua7cb", "\ua7dc", "\U00010d40", "\U00010d50", "\U00010d70", "\U0001fae8", "\U00011f43"]
    + ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|begin_of_text|>", "<s>", "</s>", "<unk>", "<think>"]
    + ["<tool_call>", "<start_of_turn>", "<left>", "<right>", "<both>", "word", "<le", "<mask>", "<0x41>", "a,b", "xx"]
)


def is_exception(character):
    """Whether parts of Hugging Face's library have different versions of Unicode for it."""
    if "\U00011de0" <= character <= "\U00011de9" or "\U00016ff4" <= character <= "\U00016ff6":
        return True  # numbers of Unicode 17, which Digits knows, and patterns do not
    # NFC does not order marks that are newer than Unicode 9.
    marked = "\u0301" + character
    return normalizers.NFC().normalize_str(marked) != unicodedata.normalize("NFC", marked)


def fuzzed(count, seed):
    """Random strings of awkward pieces, a tenth of them with random characters."""
    rng = random.Random(seed)
    for _ in range(count):
        pieces = rng.choices(PIECES, k=rng.randint(1, 12))
        if rng.random() < 0.1:
            code = rng.randrange(0x20000) if rng.random() < 0.9 else rng.randrange(0x110000)
            if not 0xD800 <= code < 0xE000 and not is_exception(chr(code)):
                pieces.insert(rng.randrange(len(pieces) + 1), chr(code))
        yield "".join(pieces)


def mixed_text(size, extra=()):
    """`size` characters of code, prose and program messages in many languages, in blocks of 4,000."""
    blocks = []

    def take(texts, share):
        total = 0
        for text in texts:
            text = text[:100000]
            for i in range(0, len(text), 4000):
                blocks.append(text[i : i + 4000])
            total += len(text)
            if total > share * size:
                return

    def read(paths):
        for path in paths:
            try:
                yield pathlib.Path(path).read_text(encoding="utf-8", errors="strict")
            except (OSError, UnicodeDecodeError):
                pass

    def messages():
        for path in sorted(pathlib.Path("/usr/share/locale").glob("*/LC_MESSAGES/*.mo")):
            try:
                with open(path, "rb") as file:
                    catalog = gettext.GNUTranslations(file)._catalog
            except (OSError, ValueError, LookupError):  # damaged or of another encoding
                continue
            yield "\n".join(text for text in catalog.values() if isinstance(text, str))

    library = pathlib.Path(gettext.__file__).parent
    take(read(extra), 0.1)
    take(read(sorted(library.glob("**/*.py"))), 0.4)
    take(messages(), 0.4)
    take(read(sorted(pathlib.Path("/usr/share").glob("**/*.txt"))), 1)
    random.Random(1).shuffle(blocks)
    text = "".join(blocks)[:size]
    if len(text) < size:
        print(f"only {len(text)} of {size} characters of text were found", file=sys.stderr)
    return text
