#!/usr/bin/env python3
"""Makes tests/testdata/nf4: matrices and a small Llama in 4 bits, as bitsandbytes has them.

    python3 tests/peers/make_nf4_goldens.py

Needs torch, transformers and bitsandbytes 0.50 or newer, which computes on the CPU. matrices.safetensors
has for each matrix `name` the weights, what bitsandbytes makes of them, in its own file format under
name.weight, and the dequantised values in f32, bf16 and f16. Its mean of the scales is summed in f64
instead, since that of torch depends on the instruction set, and scales of 8 bits are the nearest.
model.safetensors and config.json are a folder as transformers saves it; logits.json has ids and that
model's logits, computed in f32.
"""
import json
import pathlib

import torch
from bitsandbytes import functional as bnb
from safetensors.torch import load_file, save_file
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests/testdata/nf4"
SHAPES = {  # whole blocks, a last block that is shorter, several groups of scales, an odd number
    "whole": ((4, 64), torch.float32),
    "rest": ((6, 50), torch.bfloat16),
    "groups": ((150, 130), torch.bfloat16),
    "odd": ((5, 13), torch.float16),
}


def quantize(weight, nested):
    packed, state = bnb.quantize_4bit(weight, quant_type="nf4", blocksize=64)
    if nested:
        state.offset = state.absmax.double().mean().float()
        distances = state.absmax - state.offset
        state.absmax, state.state2 = bnb.quantize_blockwise(distances, blocksize=256)
        # bitsandbytes' CPU library looks codes up in a table, by rounded numbers, and of 65,536 random ones
        # 108 do not get the nearest code. Its PyTorch code (backends/default) compares, as here.
        code, largest = state.state2.code, state.state2.absmax.repeat_interleave(256)[:len(distances)]
        state.absmax = torch.bucketize(distances / largest, (code[:-1] + code[1:]) / 2).to(torch.uint8)
        state.nested = True
    return packed, state


def matrices():
    torch.manual_seed(1)
    tensors = {}
    for shape_name, (shape, dtype) in SHAPES.items():
        weight = (torch.randn(shape) * 0.02).to(dtype)
        weight[0, 3:5] = 0
        for nested in (True, False):
            if not nested and shape_name == "groups":
                continue
            name = shape_name + (".nested" if nested else ".f32")
            packed, state = quantize(weight, nested)
            tensors[name + ".original"] = weight.clone()
            tensors[name + ".weight"] = packed
            for key, value in state.as_dict(packed=True).items():
                tensors[f"{name}.weight.{key}"] = value.clone()
            for to in (torch.float32, torch.bfloat16, torch.float16):
                if weight.numel() > 1000 and to != dtype:
                    continue
                state.dtype = to
                tensors[f"{name}.{str(to)[6:]}"] = bnb.dequantize_4bit(packed, state).reshape(shape)
    save_file(tensors, OUT / "matrices.safetensors")


def model():
    torch.manual_seed(2)
    config = LlamaConfig(vocab_size=31, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=24,
                         initializer_range=0.2, bos_token_id=None, eos_token_id=None)
    full = OUT / "full"
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(full)
    quantization = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                                      bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.float32)
    quantized = LlamaForCausalLM.from_pretrained(full, quantization_config=quantization,
                                                 dtype=torch.float32, device_map="cpu")
    quantized.save_pretrained(OUT)
    for file in full.iterdir():
        file.unlink()
    full.rmdir()
    (OUT / "generation_config.json").unlink(missing_ok=True)
    # Rows are whole blocks: where they are shorter, bitsandbytes 0.50 dequantises wrongly on the CPU.
    stored = load_file(OUT / "model.safetensors")
    plain = LlamaForCausalLM(config).to(torch.float32)
    for name, p in plain.named_parameters():
        value = stored[name]
        if value.dtype == torch.uint8:
            state = bnb.QuantState.from_dict({k: v for k, v in stored.items() if k.startswith(name + ".")},
                                             device="cpu")
            value = bnb.dequantize_4bit(value, state)
        p.data = value.to(torch.float32)
    ids = torch.tensor([[i * 7 % 31 for i in range(20)]])
    with torch.no_grad():
        logits = plain(ids).logits
    golden = {"ids": ids.tolist()[0], "logits": [round(x, 6) for x in logits[0].flatten().tolist()]}
    (OUT / "logits.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    matrices()
    model()
