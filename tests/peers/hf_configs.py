#!/usr/bin/env python3
"""Draws folders of every family that Lockstep loads, and compares the loss with transformers'.

    bazel build -c opt //tests:dump_logits
    python3 tests/peers/hf_configs.py [--draws 300] [--seed 1] [--only SEED] [--keep FOLDER]

Each draw is a config.json with sizes and fields as files of old and new versions have them (rotary
embedding, windows, biases, ties, caps, widths of heads, nulls, absent fields), and weights saved by
transformers: in one file or in shards, of several dtypes, with names that older files have. The losses
must agree within 1e-4, or Lockstep must refuse the folder by the name of the field or weight. What
transformers itself cannot load is counted apart. Needs torch and transformers; skipped without.
"""
import argparse
import collections
import json
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import warnings

try:
    import numpy as np
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(0)

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "bazel-bin/tests/dump_logits"
ABSENT = object()
warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

FAMILIES = ["gpt2", "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "olmo2",
            "smollm3", "nanochat"]


class Draw:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.family = self.rng.choice(FAMILIES)
        self.config = {"model_type": self.family}
        self.gpt2() if self.family == "gpt2" else self.llama_like()
        self.config["pad_token_id"] = self.rng.choice([None, 0, 3])
        self.put("use_cache", [True, False])
        self.put(self.rng.choice(["dtype", "torch_dtype"]), ["float32", "bfloat16"])
        self.put("is_causal", [True], odd=[False])

    def put(self, key, values, odd=(), absent=0.4, odds=0.04):
        """One of the values, with a small chance one of the odd ones; perhaps none."""
        if odd and self.rng.random() < odds:
            self.config[key] = self.rng.choice(odd)
        elif self.rng.random() >= absent:
            self.config[key] = self.rng.choice(values)

    def gpt2(self):
        c, pick = self.config, self.rng.choice
        c.update(vocab_size=pick([40, 67]), n_embd=pick([16, 24]), n_layer=pick([1, 2, 3]), n_head=pick([2, 4]))
        c[pick(["n_positions", "n_positions", "max_position_embeddings"])] = pick([24, 48])
        self.put("n_ctx", [c.get("n_positions", 48), 16])
        self.put("n_inner", [None, 20, 64])
        self.put("activation_function", ["gelu_new", "gelu", "relu", "relu2", "silu", "gelu_pytorch_tanh"],
                 ["tanh", "gelu_fast", "quick_gelu"])
        self.put("layer_norm_epsilon", [1e-5, 1e-3])
        self.put("tie_word_embeddings", [True, False])
        self.put("scale_attn_weights", [True], [False])
        self.put("scale_attn_by_inverse_layer_idx", [False], [True])
        self.put("reorder_and_upcast_attn", [False, True])
        self.put("resid_pdrop", [0.0, 0.1])

    def llama_like(self):
        c, pick, family = self.config, self.rng.choice, self.family
        heads = pick([2, 4])
        c.update(vocab_size=pick([40, 67]), hidden_size=heads * pick([4, 6, 8]), intermediate_size=pick([12, 20]),
                 num_hidden_layers=pick([1, 2, 3, 4]), num_attention_heads=heads)
        c["num_key_value_heads"] = pick([1, 2, heads])
        if self.rng.random() < 0.15:
            null = family in ("llama", "qwen2", "qwen3", "olmo2", "smollm3", "nanochat")
            c["num_key_value_heads"] = pick([None, ABSENT]) if null else ABSENT
        c["max_position_embeddings"] = pick([32, 64])
        self.put("head_dim", [4, 6, 10, 12] + [None] * (family in ("llama", "mistral", "mixtral")), absent=0.3)
        self.put("rms_norm_eps", [1e-6, 1e-5, 1e-2])
        self.put("tie_word_embeddings", [True, False])
        act = "hidden_activation" if family.startswith("gemma") else "hidden_act"
        usual = ("gelu_pytorch_tanh" if family.startswith("gemma") else
                 "relu2" if family == "nanochat" else "silu")
        self.put(act, [usual], ["gelu", "relu", "swish", "gelu_new", "silu", "gelu_pytorch_tanh"], odds=0.08)
        if family.startswith("gemma"):
            self.put("hidden_act", ["gelu", "gelu_pytorch_tanh"])
        self.put("attention_bias", [False], [True], odds=0.25 if family == "llama" else 0.04)
        self.put("mlp_bias", [c.get("attention_bias", False)], [True, False], odds=0.1)
        self.put("attention_dropout", [0.0, 0.1])
        self.put("pretraining_tp", [1], [2])
        self.put("clip_qkv", [None], [0.5])
        self.put("logits_scaling", [1.0], [2.0])
        self.rope()
        self.windows()
        if family.startswith("gemma"):
            self.put("query_pre_attn_scalar", [4, 20, c.get("head_dim") or 8, 256], absent=0.2)
            self.put("attn_logit_softcapping", [None, 0.5, 50.0])
        if family.startswith("gemma") or family == "nanochat":
            self.put("final_logit_softcapping", [None, 0.4, 30.0])
            self.put("use_bidirectional_attention", [False, None], [True])
        if family in ("mixtral", "qwen3_moe"):
            experts = pick([2, 4, 5])
            c["num_local_experts" if family == "mixtral" else pick(["num_experts", "num_local_experts"])] = experts
            c["num_experts_per_tok"] = pick([1, 2])
            self.put("router_aux_loss_coef", [0.0, 0.001])
            self.put("output_router_logits", [False], [True])
            self.put("router_jitter_noise", [0.0], [0.1])
            self.put("norm_topk_prob", [True, False])
        if family == "qwen3_moe":
            c["moe_intermediate_size"] = pick([8, 12])
            self.put("decoder_sparse_step", [1], [2])
            self.put("mlp_only_layers", [[], None, [0]], [[1]])
            self.put("shared_expert_intermediate_size", [None], [8])
        if family == "smollm3":
            self.put("no_rope_layer_interval", [1, 2, 3, 4], [0])
            layers = c["num_hidden_layers"]
            n = pick([2, 3])
            self.put("no_rope_layers", [None, [1] * layers, [int((i + 1) % n != 0) for i in range(layers)]],
                     [[0] * layers, [1 - i % 2 for i in range(layers)][::-1]], absent=0.6)

    def rope(self):
        c, pick = self.config, self.rng.choice
        self.put("rope_theta", [100.0, 1000, 10000.0, 5e5])
        llama3 = {"factor": pick([2.0, 8.0]), "low_freq_factor": pick([1.0, 2.0]), "high_freq_factor": 4.0,
                  "original_max_position_embeddings": pick([8, 16])}
        if self.rng.random() < 0.15:
            del llama3[pick(list(llama3))]
        kinds = [{}, {"rope_type": "default"}, {"rope_type": "linear", "factor": pick([2.0, 4])},
                 {"type": "linear", "factor": 3.0}, {"rope_type": "llama3", **llama3}]
        odd = [{"rope_type": "dynamic", "factor": 2.0}, {"rope_type": "yarn", "factor": 2.0}, {"type": "yarn", "factor": 4.0},
               {"rope_type": "linear"}, {"factor": 2.0}, {"rope_type": "proportional"}]
        for key in ("rope_scaling", "rope_parameters"):
            if self.rng.random() > 0.35:
                continue
            rope = dict(pick(odd if self.rng.random() < 0.1 else kinds))
            if self.rng.random() < 0.5:
                rope["rope_theta"] = pick([300.0, 20000])
            if self.rng.random() < 0.04:
                rope["partial_rotary_factor"] = pick([0.5, 1.0])
            if self.family == "gemma3_text" and key == "rope_parameters":
                rope = {"full_attention": rope, "sliding_attention": {"rope_type": "default"}}
                if self.rng.random() < 0.5:
                    rope["sliding_attention"]["rope_theta"] = pick([50.0, 10000.0])
                if self.rng.random() < 0.2:
                    del rope[pick(list(rope))]
            c[key] = pick([rope] * 9 + [None])
        self.put("partial_rotary_factor", [1.0], [0.5], absent=0.9)
        if self.family == "gemma3_text":
            self.put("rope_local_base_freq", [10.0, 10000.0])

    def windows(self):
        c, pick, family = self.config, self.rng.choice, self.family
        if family == "llama" and self.rng.random() < 0.8:
            return
        layers = c["num_hidden_layers"]
        self.put("sliding_window", [None, 3, 5, 100], absent=0.3)
        self.put("use_sliding_window", [False, True])
        self.put("max_window_layers", [0, layers, 28], [1])
        n = pick([2, 3])
        kinds = [["full_attention"] * layers, ["sliding_attention"] * layers,
                 ["full_attention" if (i + 1) % n == 0 else "sliding_attention" for i in range(layers)]]
        self.put("layer_types", kinds, [[pick(kinds[0] + kinds[1]) for _ in range(layers)], None], absent=0.7, odds=0.1)
        self.put("sliding_window_pattern", [1, 2, 3, 6])

    def save(self, folder):
        """The folder, made by transformers of what it understands of the config."""
        raw = {k: v for k, v in self.config.items() if v is not ABSENT}
        config = transformers.AutoConfig.for_model(**json.loads(json.dumps(raw)))
        torch.manual_seed(self.rng.randrange(1 << 30))
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p) * 0.25)
        dtype = self.rng.choice([torch.float32] * 3 + [torch.bfloat16, torch.float16])
        model.to(dtype).save_pretrained(folder, max_shard_size=self.rng.choice(["5GB", "5GB", "8KB"]))
        (folder / "config.json").write_text(json.dumps(raw, indent=1))
        single = folder / "model.safetensors"
        if single.exists():
            self.rename(single)
        return raw

    def rename(self, single):
        """As other programs and older versions wrote the same weights."""
        weights = load_file(single)
        prefix = "transformer." if self.family == "gpt2" else "model."
        kind = self.rng.choice(["none"] * 5 + ["bare", "head", "both", "stale index"])
        embedding = prefix + ("wte.weight" if self.family == "gpt2" else "embed_tokens.weight")
        if kind == "bare":
            weights = {k.removeprefix(prefix): v for k, v in weights.items()}
        elif kind == "head" and "lm_head.weight" not in weights:
            weights["lm_head.weight"] = weights.pop(embedding)
        elif kind == "both" and "lm_head.weight" not in weights:
            weights["lm_head.weight"] = weights[embedding].clone()
        elif kind == "stale index":
            single.with_name("model.safetensors.index.json").write_text(
                json.dumps({"weight_map": {k: "model-00001-of-00001.safetensors" for k in weights}}))
            save_file({k: v * 0 for k, v in weights.items()}, single.with_name("model-00001-of-00001.safetensors"))
        save_file(weights, single, metadata={"format": "pt"})


def loss_of(logits, ids):
    logits = torch.tensor(np.asarray(logits), dtype=torch.float64)
    return torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:])).item()


def peer_loss(folder, ids):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, dtype=torch.float32, attn_implementation="eager")
    left = {k: v for k, v in info.items() if v}
    if left:
        raise ValueError(f"loaded with {left}")
    with torch.no_grad():
        return loss_of(model.eval()(torch.tensor(ids)[None]).logits[0].numpy(), ids)


def compare(seed, folder):
    """(what came out, words about it)"""
    draw = Draw(seed)
    try:
        config = draw.save(folder)
    except Exception as error:  # transformers has no such model
        return "not drawn", f"{draw.family}: {str(error).strip().splitlines()[-1][:150]}"
    ids = [draw.rng.randrange(config["vocab_size"]) for _ in range(24)]
    try:
        theirs = peer_loss(folder, ids)
    except Exception as error:
        theirs, why = None, str(error).strip().splitlines()[-1][:150]
    done = subprocess.run([PROGRAM, folder, *map(str, ids)], capture_output=True, text=True)
    if done.returncode != 0:
        message = done.stderr.replace(str(folder) + "/", "").strip()
        named = re.search(r'config\.json: ("|the model\'s \w+ =)|safetensors', message)
        return ("refused" if named else "NOT NAMED"), f"{draw.family}: {message[:220]}"
    ours = loss_of([[float(x) for x in line.split()] for line in done.stdout.splitlines()], ids)
    if theirs is None:
        return "only Lockstep", f"{draw.family}: {why}"
    words = f"{draw.family}: loss {ours:.6f}, in transformers {theirs:.6f}"
    return ("equal" if abs(ours - theirs) <= 1e-4 else "DIFFERENT"), words


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int)
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--program", default=PROGRAM)
    options = parser.parse_args()
    globals()["PROGRAM"] = options.program
    seeds = [options.only] if options.only is not None else range(options.seed, options.seed + options.draws)
    counts, reasons = collections.Counter(), collections.Counter()
    for seed in seeds:
        folder = options.keep or pathlib.Path(tempfile.mkdtemp())
        folder.mkdir(exist_ok=True)
        kind, words = compare(seed, folder)
        counts[kind] += 1
        if kind != "equal":
            reasons[kind, re.sub(r"\d+", "N", words)] += 1
        if kind.isupper() or options.only is not None or options.verbose:
            print(f"draw {seed}: {kind}: {words}")
        if not options.keep:
            shutil.rmtree(folder)
    for (kind, words), count in sorted(reasons.items(), key=lambda item: (item[0][0], -item[1])):
        if not kind.isupper():
            print(f"{count:4} {kind}: {words}")
    print(dict(counts))
    return any(kind.isupper() for kind in counts)


if __name__ == "__main__":
    sys.exit(main())
