#!/usr/bin/env python3
"""Makes tests/models/export/testdata/q8_0_golden.json: blocks of Q8_0 as gguf-py quantises them.

    pip install --no-deps gguf && python3 tests/peers/make_gguf_goldens.py
"""
import json
import pathlib

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import quantize

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
