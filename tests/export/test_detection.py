"""DETR in a file: every rounding, in one part of XNNPACK, and what its file says about it."""

import functools
from pathlib import Path

import numpy as np
import pytest
from compare import assert_close, to_numpy
from execution import tensorflow_only
from keras_weights import randomize
from small_detectors import QUERIES, detector

from keras_tfm import models, runtime
from keras_tfm.export import export_tflite

pytestmark = tensorflow_only
# Wide enough that LiteRT quantizes the matrices: those below 1,024 elements stay in float32.
SIZE = (75, 107)
WIDE = {
    "dim": 64, "num_heads": 4, "intermediate_dim": 128,
    "backbone": {"stem_dim": 16, "dims": (32, 64), "depths": (1, 2), "bottleneck": False},
}  # fmt: skip


@pytest.fixture(scope="module")
def model():
    return randomize(detector(SIZE, **WIDE))


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    """The report of its verified file, each once."""

    @functools.cache
    def of(quantization):
        path = tmp_path_factory.mktemp("detection") / "x.tflite"
        return export_tflite(model, path, quantization=quantization)

    return of


@pytest.fixture(scope="module")
def pixels():
    return np.random.default_rng(3).integers(0, 256, (1, *SIZE, 3)).astype("uint8")


# The largest share of float32's bytes.
@pytest.mark.parametrize(
    ("quantization", "share"),
    [
        ("float32", 1.0),
        pytest.param("float16", 0.6, marks=pytest.mark.slow),
        pytest.param("int8", 0.45, marks=pytest.mark.slow),
    ],  # models/test_contract.py verifies one
)
def test_its_file(model, pixels, quantization, share, exported):
    report = exported(quantization)
    (graph,) = report.subgraphs
    # All but the cast of the uint8 pixels. In float16, the weights' conversions stand before it.
    assert graph.nodes - graph.delegated == graph.operators["CAST"] == 1
    assert graph.partitions == (2 if quantization == "float16" else 1)
    weights = sum(x.numpy().nbytes for x in model.weights)
    assert report.bytes < share * weights + 200_000
    (check,) = report.verification.checks
    # Without the rounding only float32 errors remain: every weight was recognised.
    assert check.graph_error < 1e-4
    found = runtime.load(report.path).predict({"pixels": pixels})
    expected = model(pixels)
    assert found["boxes"].shape == (1, QUERIES, 4)
    if quantization == "float32":
        for name in ("logits", "boxes"):
            assert_close(found[name], to_numpy(expected[name]), 1e-4)


def test_sinusoids_are_a_constant(exported):
    from keras_tfm.runtime import flatbuffer

    file = flatbuffer.read(Path(exported("float32").path).read_bytes())
    names = {x.builtinCode for x in file.operatorCodes}
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
    assert not names & {schema.BuiltinOperator.SIN, schema.BuiltinOperator.COS}


def test_auxiliary_outputs_stay_out(tmp_path):
    trained = detector(SIZE, auxiliary_outputs=True)
    model = models.without_auxiliary_outputs(trained)
    report = export_tflite(model, tmp_path / "x.tflite", verify=False)
    outputs = runtime.load(report.path).predict({"pixels": np.zeros((1, *SIZE, 3), "uint8")})
    assert set(outputs) == {"logits", "boxes"}
