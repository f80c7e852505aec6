"""Files over 2 GB, whose weights lie behind the flatbuffer: the same layout, forced on a small one.

A real file of 2.15 GB was converted, loaded with and without a weight cache, and gave the right
numbers; it took 6 minutes and 14 GB of memory.
"""

import itertools
from pathlib import Path

import keras
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from small_exports import new_path

from keras_tfm import runtime
from keras_tfm.export import export_tflite
from keras_tfm.models import transformer
from keras_tfm.runtime import flatbuffer
from keras_tfm.runtime.inspection import inspect_file

SIZES = {"source_length": 5, "max_length": 6, "start_id": 1}


def model():
    keras.utils.set_random_seed(0)
    return transformer(96, dim=64, num_layers=1, num_heads=2, intermediate_dim=128)


def buffers(content):
    """The numbers of the constants inside and behind the flatbuffer, without metadata."""
    file = schema.Model.GetRootAsModel(content, 0)
    own = {file.Metadata(i).Buffer() for i in range(file.MetadataLength())}
    found = [file.Buffers(i) for i in range(file.BuffersLength()) if i not in own]
    return sum(x.DataLength() > 0 for x in found), sum(x.Offset() > 1 for x in found)


@pytest.mark.parametrize(
    "quantization",
    ["int8", *(pytest.param(x, marks=pytest.mark.slow) for x in ("float32", "float16", "int4"))],
)
def test_weights_behind_the_flatbuffer(monkeypatch, tmp_path, quantization):
    monkeypatch.setattr(flatbuffer, "_LARGEST", 0)
    report = export_tflite(model(), new_path(), ["generate", "predict"], quantization, **SIZES)
    content = Path(report.path).read_bytes()
    inside, behind = buffers(content)
    assert inside == 0 and behind > 5
    places = sorted({(x.Offset(), x.Size()) for x in all_buffers(content) if x.Offset() > 1})
    assert all(offset % 16 == 0 for offset, _ in places)
    assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(places))
    assert report.bytes_by_kind == inspect_file(report.path).bytes_by_kind

    monkeypatch.undo()
    usual = export_tflite(
        model(), new_path(), ["generate", "predict"], quantization, verify=False, **SIZES
    )
    inside, behind = buffers(Path(usual.path).read_bytes())
    assert inside > 5 and behind == 0
    assert usual.layers["embedding"] == report.layers["embedding"]
    inputs = {"source": [[3, 4, 5]], "target": [[1, 6]]}
    wanted = runtime.load(usual.path).predict(inputs)["output"]
    for options in ({}, {"weight_cache": tmp_path}):
        found = runtime.load(report.path, **options).predict(inputs)["output"]
        np.testing.assert_allclose(found, wanted, atol=1e-6)  # the same kernels and numbers

    damaged = bytearray(content)
    damaged[places[-1][0]] ^= 1
    (tmp_path / "damaged.tflite").write_bytes(damaged)
    with pytest.raises(ValueError, match="is damaged: expected the checksum"):
        runtime.load(tmp_path / "damaged.tflite")


def all_buffers(content):
    file = schema.Model.GetRootAsModel(content, 0)
    return [file.Buffers(i) for i in range(file.BuffersLength())]


def test_a_converters_offsets_are_put_back_inside_a_small_file():
    report = export_tflite(model(), new_path(), ["predict"], **SIZES)
    inside, behind = buffers(Path(report.path).read_bytes())
    assert inside > 5 and behind == 0
