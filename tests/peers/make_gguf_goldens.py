#!/usr/bin/env python3
"""Makes what tests/models/export/testdata has of gguf-py: blocks of Q8_0 as it quantises them
(q8_0_golden.json), a file with a tensor of each type that Lockstep reads (types.gguf), with the
numbers that it dequantises (types_golden.json), and an adapter of tests/testdata/llama_parity as
llama.cpp's convert_lora_to_gguf.py writes it (adapter.gguf), with PEFT's matrices
(adapter_golden.json).

    pip install --no-deps gguf && python3 tests/peers/make_gguf_goldens.py
"""
import json
import pathlib

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.constants import GGUFType, Keys
from gguf.quants import dequantize, quantize

rng = np.random.default_rng(7)
rows = [rng.standard_normal(32) * 10.0 ** e for e in (-6, -3, -1, 0, 2, 5)]
rows += [np.zeros(32), np.arange(32) - 16, np.full(32, -1e-9), np.linspace(-6.9e6, 6.9e6, 32)]
rows += [np.r_[127, np.arange(31) + 0.5], np.r_[-127, -np.arange(31) - 0.5]]  # halves
rows += [rng.standard_normal(32) * 2e-5, rng.uniform(-1e-7, 1e-7, 32), np.r_[1, np.zeros(31)]]
rows += [np.r_[np.full(31, 1e-3), 1e3]]
x = np.stack(rows).astype(np.float32)
blocks = quantize(x, GGMLQuantizationType.Q8_0)
out = pathlib.Path(__file__).resolve().parents[2] / "tests/models/export/testdata/q8_0_golden.json"
out.parent.mkdir(exist_ok=True)
out.write_text(json.dumps({"f32_bits": x.view(np.uint32).ravel().tolist(),
                           "blocks": blocks.ravel().tolist()}) + "\n")

kinds = {name: 64 for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0")} | {"Q6_K": 512}
folder = out.parent
writer = GGUFWriter(folder / "types.gguf", "llama")
for name, columns in kinds.items():
    kind = GGMLQuantizationType[name]
    x = (rng.standard_normal((2, columns)) * 0.3).astype(np.float32)
    if name == "Q6_K":  # which gguf-py cannot make: any bits, and scales that are numbers
        data = rng.integers(0, 256, (2, columns // 256, 210), dtype=np.uint8)
        scales = np.array([[0.5, -3e-5], [7e-8, 60000]], dtype=np.float16)
        data[:, :, 208:] = scales[..., None].view(np.uint8)
        writer.add_tensor(name, data.reshape(2, -1), raw_dtype=kind)
    elif name in ("F32", "F16"):
        writer.add_tensor(name, x.astype(np.float32 if name == "F32" else np.float16))
    else:
        writer.add_tensor(name, quantize(x, kind), raw_dtype=kind)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
golden = {}
for tensor in GGUFReader(folder / "types.gguf").tensors:
    numbers = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    golden[tensor.name] = {"type": tensor.tensor_type.name, "columns": kinds[tensor.name],
                           "f32_bits": numbers.view(np.uint32).ravel().tolist()}
(folder / "types_golden.json").write_text(json.dumps(golden) + "\n")

heads, alpha = 4, 6.0
writer = GGUFWriter(folder / "adapter.gguf", "llama")
writer.add_type(GGUFType.ADAPTER)
writer.add_string(Keys.Adapter.TYPE, "lora")
writer.add_float32(Keys.Adapter.LORA_ALPHA, alpha)
golden = {}
for module, name, columns, rows, rank, dtype in (
        ("self_attn.q_proj", "attn_q", 32, 32, 3, np.float32),
        ("mlp.down_proj", "ffn_down", 48, 32, 2, np.float16)):
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((rank, columns), (rows, rank)))
    # LlamaModel.permute: the two numbers of a rotated pair become neighbours.
    stored = b.reshape(heads, 2, rows // heads // 2, rank).swapaxes(1, 2).reshape(b.shape)
    writer.add_tensor(f"blk.1.{name}.weight.lora_a", a)
    writer.add_tensor(f"blk.1.{name}.weight.lora_b", stored if name == "attn_q" else b)
    bits = [x.astype(np.float32).view(np.uint32).ravel().tolist() for x in (a, b)]
    golden[f"model.layers.1.{module}"] = {"scale": alpha / rank, "a_bits": bits[0],
                                          "b_bits": bits[1]}
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
(folder / "adapter_golden.json").write_text(json.dumps(golden) + "\n")
