#!/usr/bin/env python3
"""Makes tests/models/evaluate/testdata: what lm-evaluation-harness and nanochat make of the task files there.

    python3 tests/peers/make_evaluate_goldens.py NANOCHAT      # a clone, for its core_eval.py

Needs torch, transformers, tokenizers and lm_eval 0.4.13. `model` is a tiny GPT-2 with random weights and a
tokenizer trained on the rows; `tokenizer_bos` is the same tokenizer, which puts a token before each text as
Llama's does. golden.json has, for each call of the harness, its requests with their scores and its figures; for each
task of CORE what is right; and what Python's random draws.
"""
import importlib.util
import json
import os
import pathlib
import random
import shutil
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = os.environ["DISABLE_MULTIPROC"] = "1"
import lm_eval
import torch
import yaml
from lm_eval.filters.extraction import RegexFilter
from lm_eval.api.metrics import exact_match_hf_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

DATA = pathlib.Path(__file__).resolve().parents[1] / "models/evaluate/testdata"
EVALS = DATA / "evals"
HARNESS = pathlib.Path(lm_eval.__file__).parent / "tasks"
BLOCK = 300
EOT = "<|endoftext|>"

# The harness' file of a task and the splits of its data.
TASKS = {
    "hellaswag": ("hellaswag/hellaswag.yaml", ["train", "validation"]),
    "arc_easy": ("arc/arc_easy.yaml", ["train", "test"]),
    "arc_challenge": ("arc/arc_challenge.yaml", ["train", "test"]),
    "piqa": ("piqa/piqa.yaml", ["train", "validation"]),
    "winogrande": ("winogrande/default.yaml", ["train", "validation"]),
    "lambada_openai": ("lambada/lambada_openai.yaml", ["test"]),
    "gsm8k": ("gsm8k/gsm8k.yaml", ["train", "test"]),
}
CALLS = [("hellaswag", 0, None, ""), ("hellaswag", 2, None, ""), ("hellaswag", 4, 3, ""), ("arc_easy", 0, None, ""),
         ("arc_easy", 3, 2, ""), ("arc_challenge", 0, None, ""), ("piqa", 0, None, ""), ("piqa", 2, None, ""),
         ("winogrande", 0, None, ""), ("winogrande", 2, None, ""), ("lambada_openai", 0, None, ""),
         ("lambada_openai", 2, None, ""), ("mmlu", 0, None, ""), ("mmlu", 2, None, ""), ("mmlu", 1, 1, ""),
         ("gsm8k", 2, None, ""), ("text", 0, None, ""), ("hellaswag", 0, None, "bos"), ("piqa", 1, None, "bos"),
         ("lambada_openai", 0, None, "bos")]


def texts():
    for path in sorted(EVALS.rglob("*.jsonl")):
        yield path.read_text(encoding="utf-8")
    yield (EVALS / "text.txt").read_text(encoding="utf-8")


def make_model():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts(), trainers.BpeTrainer(
        vocab_size=384, special_tokens=[EOT, "<s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    plain = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=EOT, eos_token=EOT)
    plain.save_pretrained(DATA / "model")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token=EOT).save_pretrained(
        DATA / "tokenizer_bos")
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=384, n_positions=BLOCK, n_embd=16, n_layer=2, n_head=2,
                                       bos_token_id=0, eos_token_id=0))
    with torch.no_grad():
        for name, p in model.named_parameters():
            # Logits that differ as those of trained models do.
            p.copy_(torch.randn_like(p) * (0.3 if p.ndim == 2 else 0.1) + (name.endswith("ln_f.weight") * 2))
        # A token that the model often prefers, so that some last words are what it would say.
        hat = tokenizer.encode(" hat").ids[-1]
        model.transformer.ln_f.bias[0] = 8
        model.transformer.wte.weight[:, 0] = 0
        model.transformer.wte.weight[hat, 0] = 1
    model.save_pretrained(DATA / "model")
    for path in DATA.glob("*/*"):
        if path.name in ("generation_config.json",):
            path.unlink()
    return model.eval()


def local(task, splits, files):
    """A task of the harness with the rows of files below EVALS."""
    return {"include": str(HARNESS / task), "dataset_path": "json", "dataset_name": None,
            "dataset_kwargs": {"data_files": {s: str(files[s]) for s in splits}}}


def write_configs(folder):
    for name, (path, splits) in TASKS.items():
        config = local(path, splits, {s: EVALS / name / f"{s}.jsonl" for s in splits}) | {"task": name + "_local"}
        (folder / f"{name}.yaml").write_text(yaml.dump(config))
    subjects = {}
    for split in ["dev", "test"]:
        for line in (EVALS / "mmlu" / f"{split}.jsonl").read_text().splitlines():
            subjects.setdefault(json.loads(line)["subject"], {}).setdefault(split, []).append(line)
    for subject, rows in subjects.items():
        files = {}
        for split, lines in rows.items():
            files[split] = folder / f"{subject}_{split}.jsonl"
            files[split].write_text("\n".join(lines) + "\n")
        config = local("mmlu/default/mmlu_%s.yaml" % subject, files, files)
        (folder / f"{subject}.yaml").write_text(yaml.dump(config | {"task": f"mmlu_local_{subject}", "tag": None}))
    (folder / "mmlu.yaml").write_text(yaml.dump({
        "group": "mmlu_local", "task": [f"mmlu_local_{s}" for s in subjects],
        "aggregate_metric_list": [{"metric": "acc", "weight_by_size": True}]}))
    (folder / "text.jsonl").write_text(json.dumps({"text": (EVALS / "text.txt").read_text()}) + "\n")
    (folder / "text.yaml").write_text(yaml.dump({
        "task": "text_local", "dataset_path": "json", "output_type": "loglikelihood_rolling", "doc_to_text": "",
        "dataset_kwargs": {"data_files": {"test": str(folder / "text.jsonl")}}, "test_split": "test",
        "doc_to_target": "{{text}}", "metric_list": [{"metric": m} for m in (
            "word_perplexity", "byte_perplexity", "bits_per_byte")]}))


def call(manager, model, task, shots, limit, bos):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(DATA / ("tokenizer_bos" if bos else "model"))
    lm = HFLM(pretrained=model, tokenizer=tokenizer, max_length=BLOCK, batch_size=2, dtype="float32", device="cpu")
    out = lm_eval.simple_evaluate(model=lm, tasks=[task + "_local"], num_fewshot=shots, limit=limit,
                                  task_manager=manager, log_samples=True, bootstrap_iters=100000)
    requests, seen = [], set()
    for name in out["samples"]:
        for sample in out["samples"][name]:
            if (name, sample["doc_id"]) in seen:  # once per filter
                continue
            seen.add((name, sample["doc_id"]))
            for arguments, answer in zip(sample["arguments"], sample["resps"]):
                requests.append([*map(str, arguments[:2]), *(answer[0] if isinstance(answer[0], tuple)
                                                             else [answer[0]])])
    results = {name.replace("_local", ""): {k: v for k, v in figures.items() if isinstance(v, float)}
               for name, figures in out["results"].items()}
    return {"task": task, "shots": shots, "limit": limit or 0, "tokenizer": bos, "requests": requests,
            "results": results}


def filters():
    rows = []
    for text in ["#### 7", "so #### -1,234.5. And #### 8", "it is $1,200.", "no number", "####7 then 12", "3 - 4",
                 "#### .", "- , . $", "a 5", "#### -", "12.\n#### x", "x-7y", "1.2.3", "$$", "the answer is -$5"]:
        strict = RegexFilter(r"#### (\-?[0-9\.\,]+)", 0).apply([[text]], [{}])[0][0]
        flexible = RegexFilter(r"(-?[$0-9.,]{2,})|(-?[0-9]+)", -1).apply([[text]], [{}])[0][0]
        rows.append([text, strict, flexible])
    matches = []
    ignore = [",", "\\$", "(?s).*#### ", "\\.$"]
    for answer, reference in [("7", "3 + 4\n#### 7"), ("7.", "#### 7"), ("$1,200", "x #### y #### 1200"), ("7", "8"),
                              ("[INVALID]", "[invalid]"), ("7.\n", "7\n"), ("1.0", "1"), ("#### 7", "7..")]:
        score = exact_match_hf_evaluate([answer], [reference], regexes_to_ignore=ignore, ignore_case=True)
        matches.append([answer, reference, bool(score["exact_match"])])
    return {"answers": rows, "matches": matches}


class CoreTokenizer:
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def get_bos_token_id(self):
        return 0

    def __call__(self, prompts, prepend):
        return [[prepend] + self.tokenizer.encode(p, add_special_tokens=False) for p in prompts]


class CoreModel:
    max_seq_len = BLOCK

    def __init__(self, model):
        self.model = model

    def __call__(self, ids):
        return self.model(ids).logits


def core(nanochat, model):
    spec = importlib.util.spec_from_file_location("core_eval", nanochat / "nanochat/core_eval.py")
    core_eval = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(core_eval)
    tokenizer = CoreTokenizer(PreTrainedTokenizerFast.from_pretrained(DATA / "model"))
    out = []
    for name, file, kind, delimiter in [
            ("copa", "commonsense_reasoning/copa", "multiple_choice", " "),
            ("arc_easy", "world_knowledge/arc_easy", "multiple_choice", "\nAnswer: "),
            ("winograd", "language_understanding/winograd_wsc", "schema", " "),
            ("lambada_openai", "language_understanding/lambada_openai", "language_modeling", " "),
            ("jeopardy", "world_knowledge/jeopardy_all", "language_modeling", "\nAnswer: ")]:
        rows = [json.loads(line) for line in (EVALS / "core/eval_data" / f"{file}.jsonl").read_text().splitlines()]
        random.Random(1337).shuffle(rows)
        for shots, limit in [(0, 0), (1, 0), (2, 3)]:
            data = rows[:limit] if limit else rows
            if shots >= len(data):
                continue
            meta = {"task_type": kind, "num_fewshot": shots, "continuation_delimiter": delimiter}
            right = [bool(core_eval.evaluate_example(i, CoreModel(model), tokenizer, data, "cpu", meta))
                     for i in range(len(data))]
            out.append({"task": name, "shots": shots, "limit": limit, "right": right})
    return out


def draws():
    def shuffled(seed, n):
        order = list(range(n))
        random.Random(seed).shuffle(order)
        return order
    return {"samples": [[s, n, k, random.Random(s).sample(range(n), k)]
                        for s, n, k in [(1234, 10, 5), (1234, 21, 3), (1234, 22, 3), (1, 1000, 9), (7, 40, 10), (2, 3, 3)]],
            "shuffles": [[s, n, shuffled(s, n)] for s, n in [(1337, 12), (0, 1), (5, 40)]],
            "numbers": [[s, random.Random(s).random()] for s in (0, 1, 1337, 4294967295)]}


def main():
    model = make_model()
    with tempfile.TemporaryDirectory() as folder:
        write_configs(pathlib.Path(folder))
        manager = TaskManager(include_path=folder)
        calls = [call(manager, model, *arguments) for arguments in CALLS]
    golden = {"random": draws(), "filters": filters(), "core": core(pathlib.Path(sys.argv[1]), model), "calls": calls}
    (DATA / "golden.json").write_text(json.dumps(golden, ensure_ascii=False, indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
