#!/usr/bin/env python3
"""Makes tests/testdata/peft_names.json: which modules PEFT adapts, with which rank and scale, and which it saves.

    python3 tests/peers/make_peft_names.py

Needs torch, transformers and peft. The fields of adapter_config.json that name modules are drawn.
"""
import json
import pathlib
import random
import re
import warnings

import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.utils import ModulesToSaveWrapper
from transformers import Qwen2Config, Qwen2ForCausalLM

warnings.filterwarnings("ignore")
DATA = pathlib.Path(__file__).resolve().parents[1] / "testdata"
LAYERS = 12
LISTS = ["q_proj", "v_proj", "self_attn.o_proj", "proj", "mlp.up_proj", "layers.1.mlp.down_proj", "down_proj",
         "model.layers.11.self_attn.k_proj", "gate_proj", "1.self_attn.q_proj"]
REGEXES = [r".*\.(q|v)_proj", r"model\.layers\.[0-3]\.mlp\..*", r"q_proj", r".*layers\.\d\.self_attn\.[a-z]_proj",
           r"(?!.*mlp).*_proj", "all-linear", "All-Linear", r".*\.1?1\..*", r".*k_proj|.*o_proj"]
PATTERNS = ["q_proj", r"layers\.1\..*_proj", "layers.1.self_attn.q_proj", r".*mlp.*", r"^model\.layers\.0.*", "_proj",
            r"(k|v)_proj", r"\d\.mlp\.up_proj", "self_attn.o.proj"]
SAVED = ["lm_head", "head", "norm", "embed_tokens", "mlp", "layers.1.self_attn.q_proj", "q_proj", "input_layernorm"]


def draw(rng):
    some = lambda values, most=3: rng.sample(values, rng.randint(1, most))  # noqa: E731
    fields = {"r": rng.randint(1, 6), "lora_alpha": rng.randint(1, 9), "use_rslora": rng.random() < 0.3}
    fields["target_modules"] = rng.choice(REGEXES) if rng.random() < 0.4 else some(LISTS)
    if rng.random() < 0.4:
        fields["exclude_modules"] = rng.choice(REGEXES) if rng.random() < 0.5 else some(LISTS)
    if rng.random() < 0.4:
        fields["modules_to_save"] = some(SAVED, 2)
    if rng.random() < 0.4:
        fields["layers_to_transform"] = rng.choice([1, 11, [0, 2], [1, 10], [], [3]])
    if rng.random() < 0.2:
        fields["layers_pattern"] = rng.choice(["layers", ["layers"], ["blocks", "layers"], "model.layers", "h", "lay.rs", []])
    for key, most in [("rank_pattern", 7), ("alpha_pattern", 20)]:
        if rng.random() < 0.4:
            fields[key] = {pattern: rng.randint(1, most) for pattern in some(PATTERNS)}
    return fields


def answer(model, fields):
    try:
        config = LoraConfig(task_type="CAUSAL_LM", **fields)
    except ValueError:
        return None
    try:
        peft = get_peft_model(model, config)
    except ValueError as error:
        if "not supported" in str(error):  # it names a norm, for example
            return "skip"
        assert re.search("No modules were targeted|not found", str(error)), error
        return {"targets": {}, "saved": []}
    name = lambda key: key.removeprefix("base_model.model.")  # noqa: E731
    targets = {name(key): [module.r["default"], module.scaling["default"]]
               for key, module in peft.named_modules() if isinstance(module, LoraLayer)}
    saved = [name(key) for key, module in peft.named_modules() if isinstance(module, ModulesToSaveWrapper)]
    return {"targets": targets, "saved": saved}


def main():
    rng = random.Random(5)
    modules, cases = [], []
    while len(cases) < 120:
        torch.manual_seed(0)
        with torch.device("meta"):
            model = Qwen2ForCausalLM(Qwen2Config(hidden_size=8, intermediate_size=8, num_hidden_layers=LAYERS, vocab_size=8,
                                                 num_attention_heads=1, num_key_value_heads=1, tie_word_embeddings=False))
        modules = modules or [key for key, module in model.named_modules() if list(module.parameters(recurse=False))]
        fields = draw(rng)
        found = answer(model, fields)
        if found == "skip":
            continue
        if found:  # by the numbers of the modules
            number = {key: i for i, key in enumerate(modules)}
            found = {"targets": [[number[key], *of] for key, of in found["targets"].items()],
                     "saved": [i for i, key in enumerate(modules)
                               if any(key == s or key.startswith(s + ".") for s in found["saved"])]}
        cases.append({"config": fields, "found": found})
    dump = lambda value: json.dumps(value, separators=(",", ":"))  # noqa: E731
    with open(DATA / "peft_names.json", "w") as out:
        lines = ",\n".join(dump(case) for case in cases)
        out.write(f'{{"modules": {dump(modules)},\n"cases": [\n{lines}\n]}}\n')
    print(len(cases), "cases", sum(case["found"] is None for case in cases), "refused,",
          sum(bool(case["found"] and case["found"]["targets"]) for case in cases), "with adapters")


if __name__ == "__main__":
    main()
