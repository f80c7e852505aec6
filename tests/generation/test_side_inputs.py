"""Inputs beside the tokens of a decoder-only model, as those ported from transformers have them."""

import keras
import pytest
from small_exports import new_path

from keras_tfm import layers
from keras_tfm.export import export_tflite
from keras_tfm.generation import Generator
from keras_tfm.generation.interface import interface_of

V = 13


def ported(*names):
    """A GPT whose mask, positions and other values are inputs."""
    inputs = {"input_ids": keras.Input((None,), dtype="int32", name="input_ids")}
    embedding = layers.TokenEmbedding(V, 8)
    x, mask = embedding(inputs["input_ids"]), None
    for name in names:
        shape, dtype = ((None, 3), "float32") if name == "speakers" else ((None,), "int32")
        given = inputs[name] = keras.Input(shape, dtype=dtype, name=name)
        if name == "attention_mask":
            mask = given > 0
        elif name == "position_ids":
            x = x + keras.layers.Embedding(9, 8)(given)
        else:
            x = x + keras.layers.Dense(8)(given)
    x = layers.TransformerDecoderBlock(11, num_heads=2, cross_attention=False)(x, mask=mask)
    return keras.Model(inputs, embedding(x, reverse=True), name="ported")


@pytest.mark.parametrize(
    "names", [["attention_mask"], ["position_ids", "attention_mask"], ["speakers"]]
)
def test_they_are_named_before_anything_is_asked_for(names):
    model = ported(*names)
    names = [name for name in model.input if name != "input_ids"]
    for step in (
        lambda: Generator(model, 9, target="input_ids"),
        lambda: export_tflite(
            model, new_path(), ["prefill", "decode"], target="input_ids", prompt_length=4,
            max_length=9,
        ),
        lambda: export_tflite(
            model, new_path(), ["generate"], target="input_ids", prompt_length=4, max_length=9,
            source_length=9,
        ),
    ):  # fmt: skip
        with pytest.raises(ValueError) as error:
            step()
        text = str(error.value)
        assert text.startswith(f"ported cannot be stepped: it reads {names} for each token of 'in")
        assert "build the model without them" in text and "\n" not in text


def test_a_source_and_its_mask_have_a_length_of_their_own():
    source, mask, target, places = (
        keras.Input((None,), dtype="int32", name=name)
        for name in ("source", "source_mask", "target", "places")
    )
    x = layers.TransformerEncoderBlock(11, 2)(layers.TokenEmbedding(V, 8)(source), mask=mask > 0)
    y = layers.TokenEmbedding(V, 8)(target)
    inputs = {"source": source, "source_mask": mask, "target": target}
    block = layers.TransformerDecoderBlock(11, 2)
    whole = keras.Model(inputs, keras.layers.Dense(V)(block(y, x, context_mask=mask > 0)))
    assert interface_of(whole).side_inputs("target") == []
    y = block(y + keras.layers.Embedding(9, 8)(places), x, context_mask=mask > 0)
    tied = keras.Model({**inputs, "places": places}, keras.layers.Dense(V)(y))
    assert interface_of(tied).side_inputs("target") == ["places"]
