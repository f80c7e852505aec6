"""Inputs may have any name, those of the exporter's own arguments among them."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from grids import first_of
from small_exports import new_path
from small_models import encoder_decoder, logits_of

from keras_tfm import runtime
from keras_tfm.export import export_saved_model, export_tflite
from keras_tfm.export.signatures.signature import Argument, Signature
from keras_tfm.generation import generate

SIZES = {"source_length": 5, "max_length": 7, "start_id": 1, "prompt_length": 3}
ROLES = ["predict", "generate", "encode", "prefill", "decode"]


def of_kind(signature, kind):
    return [name for name, x in signature["inputs"].items() if x["kind"] == kind]


# Of the exporter's arguments, of TensorFlow's and LiteRT's functions, and names that no identifier
# may have. Each is once the source's name and once the target's; by default the exporter's own.
NAMES = [
    *("self", "position", "padding", "cache_0", "cache_0_key", "encoded_0", "length", "missing"),
    *("own", "room", "é", "a b", "0", "a/b", "given", "name", "kwargs", "logits", "_x", "x"),
]
DEFAULT = [("cache_0", "padding")]
PAIRS = [
    *DEFAULT,
    *(
        pytest.param(*pair, marks=pytest.mark.slow)
        for pair in [
            *zip(NAMES[::2], NAMES[1::2], strict=True),
            *zip(NAMES[1::2], NAMES[::2], strict=True),
            ("padding", "padding_"),
        ]
        if pair not in DEFAULT
    ),
]
SOURCE, PROMPT = [[3, 4, 5]], [[1, 2]]


@pytest.fixture(scope="module")
def plain():
    """The model with ordinary names."""
    return encoder_decoder()


def renamed(plain, source, target):
    inputs = [keras.Input((None,), dtype="int32", name=f"ids_{i}") for i in range(2)]
    outputs = plain({"source": inputs[0], "target": inputs[1]})
    with pytest.warns(UserWarning, match="must match the names of the corresponding tensors"):
        return keras.Model({source: inputs[0], target: inputs[1]}, outputs, name="small")


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_every_signature_takes_inputs_of_any_name(plain, source, target):
    model = renamed(plain, source, target)
    report = export_tflite(model, new_path(), ROLES, target=target, verify=False, **SIZES)
    file = runtime.load(report.path)
    wanted = generate(plain, {"source": np.array(SOURCE), "target": np.array(PROMPT)}, 7).tokens
    inputs = {source: SOURCE, target: PROMPT}
    np.testing.assert_array_equal(file.generate(inputs).tokens, wanted)
    streamed = [int(tokens[0]) for tokens in file.stream(inputs)]
    assert streamed == wanted[0, 2:].tolist()
    logits = file.predict({source: SOURCE, target: wanted})["output"]
    expected = logits_of(plain, SOURCE, wanted)
    np.testing.assert_allclose(logits, expected, atol=1e-5)  # float32, sums in another order


def test_the_exporters_names_are_the_plain_ones_where_they_are_free(plain):
    report = export_tflite(plain, new_path(), ROLES, verify=False, **SIZES)
    assert list(report.signatures["generate"]["inputs"]) == ["source", "target", "padding"]
    decode = report.signatures["decode"]
    assert of_kind(decode, "position") == ["position"] and of_kind(decode, "input") == ["target"]
    assert all(name.startswith("cache_") for name in of_kind(decode, "cache"))


def test_a_decoder_only_model_whose_input_is_called_position(plain):
    """The step's token and its position are two arguments."""
    from small_models import decoder_only

    base = decoder_only()
    tokens = keras.Input((None,), dtype="int32", name="position")
    model = keras.Model(tokens, base(tokens), name="small")
    sizes = {"max_length": 7, "prompt_length": 3}
    file = runtime.load(
        export_tflite(model, new_path(), ["prefill", "decode"], verify=False, **sizes).path
    )
    assert of_kind(file.signatures["decode"], "position") == ["position_"]
    wanted = generate(base, np.array([[1, 5]]), 7).tokens
    np.testing.assert_array_equal(file.generate([[1, 5]]).tokens, wanted)


@pytest.mark.parametrize("source", first_of(["é", "a b", "self"]))
def test_a_saved_model_names_its_parameters_by_identifiers(plain, tmp_path, source):
    model = renamed(plain, source, "target")
    path = export_saved_model(model, tmp_path / "served", max_length=7, start_id=1)
    served = tf.saved_model.load(str(path)).signatures["generate"]
    parameter = {"a b": "a_b", "é": "input__", "self": "input_self"}[source]
    tokens = served(**{parameter: tf.constant(SOURCE)})["tokens"]
    wanted = generate(plain, np.array(SOURCE), 7, 1).tokens
    np.testing.assert_array_equal(tokens, wanted)


def test_parameters_are_different_identifiers():
    argument = Argument(tf.TensorSpec((1,), "int32"))
    names = ["a b", "a_b", "A_B", "a-b", "self", "Self", "é", "ü", "", "1", "ok"]
    signature = Signature("x", "predict", dict, dict.fromkeys(names, argument))
    assert list(signature.parameters) == names
    assert signature.parameters["ok"] == "ok" and signature.parameters["a_b"] == "a_b"
    # TensorFlow writes the names of inputs in lower case.
    assert len({x.lower() for x in signature.parameters.values()}) == len(names)
    assert all(x.isidentifier() and x.isascii() for x in signature.parameters.values())
