#!/usr/bin/env python3
"""The time of a training step with low-rank adapters: PEFT's and train_gpt's, of the same GPT-2, in turns.

  pip install torch transformers peft
  bazel build -c opt //models:train_gpt
  python3 tests/peers/lora_speed.py --train_gpt bazel-bin/models/train_gpt [--layers 12] [--rank 16]

Adapters of all matrices, fp32, AdamW, no dropout. Prints the medians of each round and their quotient.
"""
import argparse, json, os, statistics, subprocess, sys, tempfile, time
import numpy as np

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("--train_gpt", required=True)
p.add_argument("--layers", type=int, default=12)
p.add_argument("--width", type=int, default=768)
p.add_argument("--heads", type=int, default=12)
p.add_argument("--vocab", type=int, default=50257)
p.add_argument("--batch", type=int, default=2)
p.add_argument("--seq", type=int, default=256)
p.add_argument("--rank", type=int, default=16)
p.add_argument("--steps", type=int, default=6)
p.add_argument("--rounds", type=int, default=3)
p.add_argument("--threads", type=int, default=os.cpu_count())
p.add_argument("--peft", metavar="FOLDER", help="only PEFT's steps (this program calls itself)")
a = p.parse_args()
SKIP = 2  # first steps


def peft_step_ms(folder):
    import torch
    import peft
    import transformers
    torch.set_num_threads(a.threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    model = peft.get_peft_model(model, peft.LoraConfig(
        r=a.rank, lora_alpha=16, target_modules=["c_attn", "c_proj", "c_fc"], task_type="CAUSAL_LM"))
    model.train()
    trained = [q for q in model.parameters() if q.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    tokens = torch.from_numpy(np.fromfile(folder + "/tokens.bin", dtype=np.uint16).astype(np.int64))
    times = []
    for step in range(a.steps):
        begin = step * a.batch * a.seq
        ids = tokens[begin:begin + a.batch * a.seq].view(a.batch, a.seq)
        start = time.perf_counter()
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[SKIP:])


def train_gpt_step_ms(folder, out):
    subprocess.run([a.train_gpt, f"--init_from={folder}", f"--data.path={folder}/tokens.bin",
                    f"--lora.rank={a.rank}", f"--model.block_size={a.seq}",
                    f"--train.batch_size={a.batch}", f"--train.steps={a.steps}", "--optim.warmup=0",
                    "--train.eval_batches=1", "--train.eval_every=0", "--train.sample_tokens=0",
                    "--checkpoint.every=0", f"--threads={a.threads}", f"--out_dir={out}",
                    "--device=cpu"], check=True, stdout=subprocess.DEVNULL)
    with open(out + "/metrics.jsonl") as lines:
        times = [line["ms"] for line in map(json.loads, lines) if "ms" in line]
    return statistics.median(times[SKIP:])


if a.peft:
    print(peft_step_ms(a.peft))
    sys.exit()

import torch
import transformers
with tempfile.TemporaryDirectory() as folder:
    torch.manual_seed(1)
    transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=a.layers, n_embd=a.width, n_head=a.heads, vocab_size=a.vocab,
        attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0)).save_pretrained(folder)
    np.random.default_rng(1).integers(0, a.vocab, a.batch * a.seq * (a.steps + 2) * 2).astype(
        np.uint16).tofile(folder + "/tokens.bin")
    for i in range(a.rounds):
        theirs = float(subprocess.run(
            [sys.executable, *sys.argv, "--peft", folder], check=True, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
        ours = train_gpt_step_ms(folder, f"{folder}/out{i}")
        print(f"PEFT {theirs:.0f} ms, train_gpt {ours:.0f} ms a step: {theirs / ours:.2f} times as fast")
