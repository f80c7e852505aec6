"""Files on LiteRT's own GPU delegate: on a GPU, or in software by SwiftShader.

Debian's packages `chromium` and `libvulkan1` have SwiftShader:
`VK_DRIVER_FILES=/usr/lib/chromium/vk_swiftshader_icd.json`. Without a Vulkan driver only what is
said about that is tested.
"""

import functools
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import delegate_runner
import keras
import numpy as np
import pytest
from families import small_model
from gpu_graphs import REWRITTEN, TAKEN, converted, for_gpu
from keras_weights import randomize

import keras_tfm
from keras_tfm import layers, models
from keras_tfm.export import VerificationError, check_in_float16, export_tflite
from keras_tfm.export.verification import on_gpu as gpu_verification
from keras_tfm.export.verification.on_gpu import GpuCheck, check_on_gpu
from keras_tfm.runtime.inspection.gpu_support import check_file


def values():
    x = keras.Input((None, 5), name="values")
    y = layers.PositionalEncoding()(keras.layers.Dense(6)(x))
    y = layers.TransformerEncoderBlock(7, num_heads=3)(y)
    return keras.Model(x, layers.SequencePooling()(y))


def with_positions(position):
    ids = keras.Input((None,), dtype="int32", name="ids")
    attention = layers.MultiHeadSelfAttention(3, causal=True, position=position)
    x = layers.TransformerDecoderBlock(7, self_attention=attention, cross_attention=False)(
        layers.TokenEmbedding(11, 6)(ids)
    )
    return keras.Model(ids, keras.layers.Dense(11)(x))


# Of what is generated.
LENGTH = 7
PREDICT = {"signatures": ["predict"]}
STEPS = {"signatures": ["prefill", "decode"], "prompt_length": 4, "max_length": LENGTH}
SOURCE = {"source_length": 5, "max_length": LENGTH, "start_id": 1}
TRANSLATE = {"signatures": ["encode", "decode"], **SOURCE}
CASES = {
    "values": (values, {**PREDICT, "source_length": 5}),
    "alibi": (lambda: with_positions(layers.ALiBi()), STEPS),
    "shaw": (lambda: with_positions(layers.RelativePositionEmbedding(3)), STEPS),
    "transformer, predict": (partial(small_model, "transformer"), {**PREDICT, **SOURCE}),
    **{
        f"{family}, predict": (partial(small_model, family), {**PREDICT, "source_length": 5})
        for family in (
            *("bert", "deberta-v2", "electra", "albert", "roberta", "distilbert", "mpnet"),
            *("clip", "clip_text_model", "lxmert", "vilbert", "imagegpt"),
        )
    },
    **{
        f"{family}, predict": (partial(small_model, family), PREDICT)
        for family in (
            *("vit", "dinov2_with_registers", "resnet", "detr", "clip_vision_model"),
            *("flava_image_codebook", "dvae", "evoformer, recycled"),
        )
    },
    **{
        family: (partial(small_model, family), STEPS)
        for family in ("gpt2", "llama", "gemma3_text", "dalle")
    },
    **{
        family: (partial(small_model, family), TRANSLATE)
        for family in ("transformer", "bart", "t5")
    },
    "mbart, classifier": (
        lambda: models.sequence_classifier(small_model("mbart"), num_classes=3),
        {**PREDICT, "source_length": 5},
    ),
    "whisper": (partial(small_model, "whisper"), {**TRANSLATE, "source_length": 1400}),
}


WIDE = {"dim": 32, "num_layers": 1, "num_heads": 4, "intermediate_dim": 64}
# Weights of eight bits need layers of some width.
QUANTIZED = {
    "gpt, int8": ("int8", lambda: models.gpt(300, **WIDE, max_length=9), STEPS),
    "bert, int8": (
        "int8",
        lambda: models.bert(300, **WIDE, max_length=9),
        {**PREDICT, "source_length": 5},
    ),
    "resnet, int8": ("int8", lambda: models.resnet(32, 16, (64, 128), (1, 1)), PREDICT),
    "clip, float16": (
        "float16",
        lambda: models.clip((16, 16), 8, 300, 9, 299, 32, WIDE, WIDE),
        {**PREDICT, "source_length": 9},
    ),
    "t5, float16": ("float16", partial(small_model, "t5"), TRANSLATE),
    "llama, float16": ("float16", partial(small_model, "llama"), STEPS),
}


# Graphs like those of other cases: BERT's, a step of learned positions, ViT's, convolutions, and
# what a file of two towers holds. `.ci/full` runs them, too.
LOOK_ALIKES = {
    *(f"{x}, predict" for x in ("electra", "albert", "roberta", "distilbert", "mpnet")),
    *("clip_text_model, predict", "clip_vision_model, predict", "imagegpt, predict"),
    *("transformer, predict", "dinov2_with_registers, predict", "flava_image_codebook, predict"),
    *("gpt2", "bart", "bert, int8", "t5, float16", "llama, float16"),
}
assert {*CASES, *QUANTIZED} >= LOOK_ALIKES


def cases(names):
    """The cases to run; those that look like others on request."""
    return [pytest.param(name, marks=[pytest.mark.slow] * (name in LOOK_ALIKES)) for name in names]


IN_SOFTWARE = "swiftshader" in os.environ.get("VK_DRIVER_FILES", "")


@functools.cache
def has_gpu(folder):
    """Whether the delegate finds a Vulkan driver."""
    x = keras.Input((3,), name="x")
    path = folder / "dense.tflite"
    export_tflite(keras.Model(x, keras.layers.Dense(2)(x)), path, accelerator="gpu", verify=False)
    return check_on_gpu(path).ran


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    if not has_gpu(tmp_path_factory.mktemp("gpu")):
        pytest.skip("no GPU with a Vulkan driver")


@functools.cache
def results_of_graphs(folder):
    """What the delegate makes of the graphs as they are and rewritten, as (expected, found)."""
    from ai_edge_litert.interpreter import Interpreter

    expected = {}
    for number, (case, (function, shapes, _)) in enumerate(REWRITTEN.items()):
        content = converted(function, *shapes)
        for kind, file in (("given", content), ("rewritten", for_gpu(content))):
            path = folder / f"{number}_{kind}.tflite"
            path.write_bytes(file)
            interpreter = Interpreter(model_content=file)
            ((name, tensors),) = interpreter.get_signature_list().items()
            runner = interpreter.get_signature_runner(name)
            inputs = {
                x: np.random.default_rng(i).normal(size=runner.get_input_details()[x]["shape"])
                for i, x in enumerate(tensors["inputs"])
            }
            inputs = {x: y.astype("float32") for x, y in inputs.items()}
            np.savez(path.with_suffix(".npz"), **{f"{name}|{x}": y for x, y in inputs.items()})
            (expected[case, kind],) = runner(**inputs).values()
    runner = Path(delegate_runner.__file__)
    subprocess.run([sys.executable, runner, folder], check=True, capture_output=True, env=paths())
    results = {}
    for number, case in enumerate(REWRITTEN):
        for kind in ("given", "rewritten"):
            path = folder / f"{number}_{kind}.out.npz"
            found = next(iter(np.load(path).values())) if path.exists() else None
            results[case, kind] = expected[case, kind], found
    return results


def paths():
    """The environment of a process that imports this package."""
    root = str(Path(keras_tfm.__file__).parent.parent)
    return {**os.environ, "PYTHONPATH": root}


@pytest.fixture(scope="module")
def results(gpu, tmp_path_factory):
    return results_of_graphs(tmp_path_factory.mktemp("graphs"))


# The results are computed once, not by each worker.
@pytest.mark.xdist_group("graphs")
@pytest.mark.parametrize("case", REWRITTEN)
def test_the_delegate_agrees_with_the_findings(results, case):
    """What `check` finds is refused or wrong; without findings, the graph is right."""
    expected, found = results[case, "given"]
    is_right = found is not None and np.abs(found - expected).max() < 1e-2
    assert is_right == (case in TAKEN)
    expected, found = results[case, "rewritten"]
    assert found is not None
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("case", cases(CASES))
def test_a_family_is_whole_and_right_on_the_delegate(gpu, case, tmp_path):
    make, arguments = CASES[case]
    path = tmp_path / "x.tflite"
    export_tflite(randomize(make()), path, accelerator="gpu", verify=False, **arguments)
    assert check_file(path) == []
    found = check_on_gpu(path)
    assert found.ran and not found.failures, str(found)
    # In float16, 11 bits. SwiftShader computes in float32 all the same, so the CPU rounds, too.
    if not IN_SOFTWARE or case in ("values", "llama", "t5"):
        half = check_on_gpu(path, float32=False)
        assert half.ran and not half.failures, str(half)
    rounded = check_in_float16(path)
    # ViLBERT's random weights enlarge rounding tenfold, in float32 too.
    largest = 0.03 if case.startswith("vilbert") else 0.01
    assert max(rounded.errors.values()) < largest and rounded.warning is None, str(rounded)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_an_error(wrong):
    """On either side, and beside other outputs that are right: `max(0.0, nan)` is 0."""
    right, others = np.array([1.0, 2.0]), np.array([1.0, wrong])
    assert (
        gpu_verification.relative_error(right, others)
        == gpu_verification.relative_error(others, right)
        == np.inf
    )


def test_the_export_says_what_the_delegate_does(gpu, tmp_path):
    model = randomize(small_model("gpt2"))
    report = export_tflite(model, tmp_path / "gpt.tflite", accelerator="gpu", **STEPS)
    assert report.verification.gpu.ran
    assert max(report.verification.gpu.errors.values()) < 1e-5
    assert "GPU delegate, error relative to the largest value: prefill_4" in str(report)


@pytest.mark.parametrize("case", cases(QUANTIZED))
def test_weights_of_eight_and_sixteen_bits_are_right(gpu, case, tmp_path):
    quantization, make, arguments = QUANTIZED[case]
    report = export_tflite(
        randomize(make()),
        tmp_path / "x.tflite",
        accelerator="gpu",
        verify=False,
        quantization=quantization,
        **arguments,
    )
    assert report.quantization == quantization and check_file(report.path) == []
    # In int8, the CPU rounds activations, the delegate does not.
    found = check_on_gpu(report.path, tolerance=0.05 if quantization == "int8" else 1e-5)
    assert found.ran and not found.failures, str(found)


def test_what_the_delegate_refuses_is_kept_and_said(gpu, tmp_path):
    voxels = keras.Input((4, 4, 4, 2), name="voxels")
    y = keras.layers.GlobalAveragePooling3D()(keras.layers.Conv3D(3, 2)(voxels))
    report = export_tflite(
        keras.Model(voxels, y), tmp_path / "voxels.tflite", accelerator="gpu", **PREDICT
    )
    assert report.path.endswith("voxels.tflite") and not report.verification.gpu.ran
    assert "CONV_3D" in report.verification.gpu.reason
    assert {x.operator for x in check_file(report.path)} >= {"CONV_3D"}


def test_a_file_of_several_models_runs_there(gpu, tmp_path):
    """CLIP's text has an end token, whose features the model returns."""
    towers = {"text": small_model("clip_text_model"), "image": small_model("clip_vision_model")}
    report = export_tflite(
        towers, tmp_path / "clip.tflite", accelerator="gpu", source_length=LENGTH
    )
    assert report.verification.gpu.ran and set(report.verification.gpu.errors) == set(towers)


def dense(folder):
    x = keras.Input((3,), name="x")
    return export_tflite(
        keras.Model(x, keras.layers.Dense(2)(x)), folder / "dense.tflite", accelerator="gpu"
    )


def test_without_a_gpu_the_report_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("VK_DRIVER_FILES", str(tmp_path / "none.json"))
    report = dense(tmp_path)
    assert not report.verification.gpu.ran and not report.verification.failures
    assert "GPU delegate: not run: this machine has no GPU with a Vulkan driver" in str(report)


def test_a_file_of_several_models_runs_on_the_delegate_too(tmp_path, monkeypatch):
    monkeypatch.setenv("VK_DRIVER_FILES", str(tmp_path / "none.json"))
    x = keras.Input((3,), name="x")
    towers = {name: keras.Model(x, keras.layers.Dense(2)(x)) for name in ("one", "two")}
    report = export_tflite(towers, tmp_path / "towers.tflite", accelerator="gpu")
    assert "GPU delegate: not run: this machine has no GPU" in str(report)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("", "{}"),
        ("INFO: loaded\nERROR: no\nGATHER: Only 1D\nGATHER: Only 1D\n", "GATHER: Only 1D ({})"),
    ],
)
def test_a_process_that_ends_is_a_reason(tmp_path, monkeypatch, log, reason):
    ended = "running the GPU delegate in a separate process failed with exit code -11: no message"

    def end(what, module, path, inputs, outputs, log_path, precision, seconds):
        Path(log_path).write_text(log)
        raise RuntimeError(ended)

    monkeypatch.setattr(gpu_verification, "run_module", end)
    report = dense(tmp_path)
    assert report.verification.gpu == GpuCheck(False, reason.format(ended))


def test_a_wrong_file_is_not_kept(tmp_path, monkeypatch):
    def answer(what, module, path, inputs, outputs, log, precision, seconds):
        np.savez(outputs, **{"predict|output": np.full((1, 2), 9.0, "float32")})

    monkeypatch.setattr(gpu_verification, "run_module", answer)
    with pytest.raises(VerificationError, match=r"predict: on the GPU delegate, expected a relat"):
        dense(tmp_path)
    assert list(tmp_path.iterdir()) == []
