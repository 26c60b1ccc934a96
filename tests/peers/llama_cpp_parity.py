#!/usr/bin/env python3
"""Compares exported GGUF files with their sources: by gguf-py, and by llama.cpp itself.

    pip install --no-deps gguf
    bazel build -c opt //models:export_gpt //tests:dump_logits
    python3 tests/peers/llama_cpp_parity.py [FAMILY ...]

Tiny random models of every family that GGUF has are made by transformers, with a tokenizer of the
family's kind from tests/data/testdata/tokenizers, and exported in every dtype. gguf-py reads the
files: names are those of its name map, values those of the source (of its own quantisation for
q8_0). With llama-cpp-python (`LLAMA_CPP_LIB_PATH` may name the folder of libllama.so), the logits
and greedy tokens of f32 files are compared with Lockstep's, and the ids of some texts with those of
transformers. Needs torch and transformers.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFReader, get_tensor_name_map
from gguf.quants import quantize

transformers.logging.disable_progress_bar()
ROOT = pathlib.Path(__file__).resolve().parents[2]
LLAMA3 = dict(rope_type="llama3", rope_theta=1e4, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
LENGTH = 48
# Family: (tokenizer, changes of config.json)
FAMILIES = {
    "gpt2": ("gpt2", dict(n_embd=64, n_layer=2, n_head=4, n_positions=64)),
    "llama": ("llama3", dict(rope_parameters=LLAMA3)),
    "llama_characters": ("characters", dict(model_type="llama")),
    "llama2": ("llama2_prepend", dict(model_type="llama", tie_word_embeddings=True)),
    "mistral": ("llama2_metaspace", dict(head_dim=32, sliding_window=None)),
    "mixtral": ("llama2_prepend", dict(num_local_experts=4, num_experts_per_tok=2)),
    "qwen2": ("qwen2", dict(tie_word_embeddings=True)),
    "qwen3": ("qwen2", dict(head_dim=32, tie_word_embeddings=True)),
    "qwen3_moe": ("qwen2", dict(head_dim=32, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
                                norm_topk_prob=True, decoder_sparse_step=1)),
    "gemma2": ("gemma", dict(head_dim=32, query_pre_attn_scalar=32, sliding_window=8)),
    "gemma3_text": ("gemma", dict(head_dim=32, query_pre_attn_scalar=32, sliding_window=8, num_hidden_layers=6)),
    "olmo2": ("gpt2", dict()),
    "smollm3": ("smollm", dict(num_hidden_layers=4, no_rope_layers=[1, 1, 1, 0], use_sliding_window=False)),
}
TEXTS = ["The quick brown fox", "  two  spaces\n\nand lines\t", "naïve Straße 東京 🙂", "x = 12345; don't", ""]
SENTENCEPIECE = ("llama2_prepend", "llama2_metaspace", "gemma")


def complete(model):
    """All merges that make a token, as files that come from SentencePiece have them."""
    vocab, merges = model["vocab"], {}
    for merge in model["merges"]:
        token = "".join(merge.split(" ") if isinstance(merge, str) else merge)
        splits = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in vocab and token[i:] in vocab]
        merges.setdefault(token, sorted(splits, key=lambda s: (vocab[s[0]], vocab[s[1]])))
    model["merges"] = [list(split) for splits in merges.values() for split in splits]


def characters():
    """What Lockstep writes for a token for each character."""
    vocab = {c: i for i, c in enumerate(sorted(set("".join(TEXTS))))}
    cut = dict(type="Split", pattern=dict(Regex=r"[\s\S]"), behavior="Isolated", invert=False)
    return dict(version="1.0", truncation=None, padding=None, added_tokens=[], normalizer=None, pre_tokenizer=cut,
                post_processor=None, decoder=dict(type="Fuse"),
                model=dict(type="WordLevel", vocab=vocab, unk_token="<unk>"))


def make(family, folder):
    kind, changes = FAMILIES[family]
    golden = ROOT / f"tests/data/testdata/tokenizers/{kind}.json"
    tokenizer = characters() if kind == "characters" else json.loads(golden.read_text())["tokenizer"]
    complete(tokenizer["model"]) if kind in SENTENCEPIECE else None
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    ids = list(tokenizer["model"]["vocab"].values()) + [t["id"] for t in tokenizer["added_tokens"]]
    sizes = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, max_position_embeddings=64)
    sizes = ({} if family == "gpt2" else sizes) | dict(vocab_size=max(ids) + 4, pad_token_id=None, bos_token_id=None,
                                                       eos_token_id=None) | changes
    config = transformers.AutoConfig.for_model(sizes.pop("model_type", family), **sizes)
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for name, p in model.named_parameters():  # weights that matter, also norms and biases
        torch.nn.init.normal_(p, 1.0 if "norm" in name and "gemma" not in family else 0.0, 0.15)
    model.save_pretrained(folder)
    return model


def expected(family, model):
    """The tensors of the file by their names, as f32."""
    c = model.config
    head = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    out, experts = {}, {}
    for name, p in model.state_dict().items():
        x = p.detach().numpy()
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        if family == "gpt2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
            x = x.T
        if "gemma" in family and name.endswith("norm.weight"):
            x = x + np.float32(1)
        if c.model_type in ("llama", "mistral", "mixtral", "smollm3") and ("q_proj" in name or "k_proj" in name):
            x = x.reshape(-1, 2, head // 2, x.shape[-1]).swapaxes(1, 2).reshape(x.shape)
        if name.endswith("experts.gate_up_proj"):
            out[name.replace("gate_up_proj", "gate_proj.weight")], out[name.replace("gate_up_proj", "up_proj.weight")] = (
                np.split(x, 2, axis=1))
        elif name.endswith("experts.down_proj"):
            out[name + ".weight"] = x
        else:
            out[name] = x
    return out


def check_reader(family, file, dtype, model):
    reader = GGUFReader(file)
    arch = reader.fields["general.architecture"].contents()
    names = get_tensor_name_map(next(a for a, n in MODEL_ARCH_NAMES.items() if n == arch), model.config.num_hidden_layers)
    tensors = {t.name: t for t in reader.tensors}
    want = {names.get_name(n, try_suffixes=(".weight", ".bias")): x for n, x in expected(family, model).items()}
    assert None not in want, [n for n in expected(family, model) if names.get_name(n, try_suffixes=(".weight", ".bias")) is None]
    assert set(want) == set(tensors) - {"rope_freqs.weight"}, set(want) ^ set(tensors)
    for name, x in want.items():
        t = tensors[name]
        assert list(t.shape) == list(x.shape)[::-1], name
        data = t.data if t.tensor_type in (GGMLQuantizationType.F32, GGMLQuantizationType.F16) else t.data.view(np.uint8)
        quantized = quantize(x, t.tensor_type)
        assert np.array_equal(data.reshape(-1).view(np.uint8), np.ascontiguousarray(quantized).reshape(-1).view(np.uint8)), (name, dtype)
    kinds = {t.tensor_type.name for t in reader.tensors}
    assert dtype.upper() in kinds and kinds <= {dtype.upper(), "F32"}, kinds
    return len(tensors)


def check_llama_cpp(lib, family, file, ids, model, dump):
    """Largest differences of logits, and whether greedy tokens are equal."""
    import ctypes
    params = lib.llama_model_default_params()
    params.use_mmap = False
    m = lib.llama_model_load_from_file(str(file).encode(), params)
    assert m, file
    cp = lib.llama_context_default_params()
    cp.n_ctx, cp.n_batch, cp.n_ubatch, cp.n_threads, cp.n_threads_batch = 64, 64, 64, 1, 1
    cp.type_k = cp.type_v = 0  # f32
    cp.flash_attn_type = 0
    ctx = lib.llama_init_from_model(m, cp)
    vocab, n = lib.llama_model_get_vocab(m), model.config.vocab_size

    def logits(tokens, first):
        batch = lib.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, t in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = int(t), first + i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, 1
        assert lib.llama_decode(ctx, batch) == 0
        rows = [np.ctypeslib.as_array(lib.llama_get_logits_ith(ctx, i), (n,)).astype(np.float64) for i in range(len(tokens))]
        lib.llama_batch_free(batch)
        return np.array(rows)

    theirs = logits(ids, 0)
    ours = dump(ids)
    with torch.no_grad():
        hf = model(torch.tensor(ids)[None]).logits[0].double().numpy()
    # Greedy: 12 more tokens of each.
    a, b, last = list(ids), list(ids), theirs[-1]
    for _ in range(12):
        a.append(int(last.argmax()))
        last = logits([a[-1]], len(a) - 1)[0]
        b.append(int(dump(b)[-1].argmax()))

    def tokenize(text, special):
        buffer = (ctypes.c_int32 * 512)()
        raw = text.encode()
        k = lib.llama_tokenize(vocab, raw, len(raw), buffer, 512, special, True)
        return list(buffer[:k])

    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(file.parent / "hf/tokenizer.json"))
    wrong = [t for t in TEXTS if t and tokenize(t, True) != tokenizer(t)["input_ids"]]
    lib.llama_free(ctx)
    lib.llama_model_free(m)
    return np.abs(theirs - ours).max(), np.abs(hf - ours).max(), np.abs(ours).max(), a == b, wrong


def main():
    try:
        import llama_cpp as lib
        quiet = lib.llama_log_callback(lambda *_: None)  # which must live
        lib.llama_log_set(quiet, None)
    except ImportError:
        lib = None
        print("without llama-cpp-python, only gguf-py reads the files")
    failed = False
    for family in sys.argv[1:] or FAMILIES:
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch)
            (folder / "hf").mkdir()
            model = make(family, folder / "hf").eval()
            for dtype in ("f32", "f16", "bf16", "q8_0"):
                file = folder / f"{dtype}.gguf"
                subprocess.run([ROOT / "bazel-bin/models/export_gpt", f"--checkpoint={folder}/hf", "--format=gguf",
                                f"--dtype={dtype}", f"--out={file}"], check=True, stdout=subprocess.DEVNULL)
                tensors = check_reader(family, file, dtype, model)
            line = f"{family}: {tensors} tensors equal in f32, f16, bf16, q8_0"
            if lib:
                dump = lambda ids: np.array([[float(x) for x in row.split()] for row in subprocess.run(
                    [ROOT / "bazel-bin/tests/dump_logits", folder / "hf", *map(str, ids)], check=True,
                    capture_output=True, text=True).stdout.splitlines()])
                ids = np.random.default_rng(7).integers(0, model.config.vocab_size, LENGTH).tolist()
                error, hf, largest, greedy, wrong = check_llama_cpp(lib, family, folder / "f32.gguf", ids, model, dump)
                # llama.cpp looks GELU up in a table of f16.
                limit = (1e-3 if family.startswith(("gpt2", "gemma")) else 1e-5) * largest
                told = 1 if family == "mistral" else 0  # export_gpt's note: a text that begins with a space
                failed = failed or not greedy or not error <= limit or len(wrong) > told
                line += (f"; logits up to {largest:.2f} differ from llama.cpp's by {error:.1e}, from transformers' by "
                         f"{hf:.1e}; greedy tokens {'equal' if greedy else 'DIFFER'}; ids of "
                         f"{len(TEXTS) - 1 - len(wrong)} of {len(TEXTS) - 1} texts equal {wrong or ''}")
            print(line, flush=True)
    sys.exit(failed)


main()
