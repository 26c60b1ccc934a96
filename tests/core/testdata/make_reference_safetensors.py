"""Makes reference.safetensors with the reference implementation (pip install safetensors numpy).

python3 make_reference_safetensors.py reference.safetensors
"""
import sys

import numpy as np
from safetensors.numpy import save_file

def ramp(dtype, *shape):
    return np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape).astype(dtype)

save_file(
    {
        "w.f64": ramp(np.float64, 3),
        "w.i64": ramp(np.int64, 2),
        "w.f32.b": ramp(np.float32, 2, 3),
        "w.f32.a": ramp(np.float32, 5),
        "w.i32": ramp(np.int32, 3),
        "w.f16": ramp(np.float16, 1, 3),
        "w.u16": ramp(np.uint16, 3),
        "w.u8": ramp(np.uint8, 5),
        "w.bool": ramp(np.int64, 2).astype(bool),
        "quote\"back\\slash\n\u00fc": ramp(np.float32, 1),
        "scalar": np.array(7, dtype=np.float32),
        "empty": np.zeros((0, 4), dtype=np.float32),
    },
    sys.argv[1],
    metadata={"format": "pt"},
)
