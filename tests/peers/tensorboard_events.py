#!/usr/bin/env python3
"""Checks the tensorboard/ of a run with TensorBoard's own reader.

    python3 tests/peers/tensorboard_events.py out

Needs pip's tensorboard. Every step of out/metrics.jsonl must be there once, with its values, and
every sample; exits with 1 if not. With --golden it prints the bytes that
tests/models/report/event_file_test.cc expects.
"""
import json
import math
import pathlib
import struct
import sys

from tensorboard.backend.event_processing import event_accumulator
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c


def record(event):
    data = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))


def golden():
    print("version", record(event_pb2.Event(wall_time=1.5, file_version="brain.Event:2")).hex())
    values = [summary_pb2.Summary.Value(tag="train/loss", simple_value=3.5),
              summary_pb2.Summary.Value(tag="lr", simple_value=1e-3)]
    print("scalars", record(event_pb2.Event(wall_time=2.25, step=300, summary=summary_pb2.Summary(value=values))).hex())
    metadata = summary_pb2.SummaryMetadata(
        plugin_data=summary_pb2.SummaryMetadata.PluginData(plugin_name="text"),
        data_class=summary_pb2.DATA_CLASS_TENSOR)
    shape = tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)])
    tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, tensor_shape=shape,
                                    string_val=["a é\n    b".encode()])
    value = summary_pb2.Summary.Value(tag="sample", metadata=metadata, tensor=tensor)
    print("text", record(event_pb2.Event(wall_time=4, step=7, summary=summary_pb2.Summary(value=[value]))).hex())


def main(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    reader = event_accumulator.EventAccumulator(
        str(folder / "tensorboard"), size_guidance={event_accumulator.SCALARS: 0, event_accumulator.TENSORS: 0})
    reader.Reload()
    keys = {"train/loss": "loss", "train/grad_norm": "grad_norm", "train/learning_rate": "lr",
            "train/tokens_per_second": "tokens_per_second", "train/step_ms": "ms",
            "train/memory_bytes": "memory_bytes", "validation/loss": "val_loss"}
    bad = sorted(set(reader.Tags()["scalars"]) ^ set(keys))
    for tag, key in keys.items():
        if tag in bad:
            continue
        ours = [(line["step"], line[key]) for line in lines if key in line]
        theirs = [(e.step, e.value) for e in reader.Scalars(tag)]
        same = len(ours) == len(theirs) and all(
            a[0] == b[0] and math.isclose(a[1], b[1], rel_tol=1e-6) for a, b in zip(ours, theirs))
        print(f"{tag}: {len(theirs)} values of steps {theirs[0][0]} to {theirs[-1][0]}:", "same" if same else "DIFFERENT")
        if not same:
            bad.append(tag)
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    texts = [(e.step, e.tensor_proto.string_val[0].decode()) for e in reader.Tensors("sample")]
    wanted = [(s["step"], "    " + (s["prompt"] + s["text"]).replace("\n", "\n    ")) for s in samples]
    print(f"sample: {len(texts)} texts:", "same" if texts == wanted else "DIFFERENT")
    if texts != wanted:
        bad.append("sample")
    print("files:", *sorted(p.name for p in (folder / "tensorboard").iterdir()))
    sys.exit(f"differs: {bad}" if bad else 0)


if __name__ == "__main__":
    golden() if sys.argv[1] == "--golden" else main(pathlib.Path(sys.argv[1]))
