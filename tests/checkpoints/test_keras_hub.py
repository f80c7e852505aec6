"""Blocks with KerasHub's weights return KerasHub's values."""

import keras
import numpy as np
import pytest
from blocks import residual_of

from keras_tfm import export, generation, layers, runtime
from keras_tfm.checkpoints import copy_keras_hub_weights, load_huggingface, save_huggingface
from keras_tfm.checkpoints.keras_hub import decoders, encoder_decoders
from keras_tfm.checkpoints.keras_hub.families import FAMILIES
from keras_tfm.checkpoints.keras_hub.family import HubFamily
from keras_tfm.generation.tokenizers.keras_hub import (
    LANGUAGE_MODELS,
    OTHER_BACKBONES,
    refuse_keras_hub,
)

hub = pytest.importorskip("keras_hub").layers

D, H, F, C = 12, 3, 20, 10
rng = np.random.default_rng(0)


def noise(*shape):
    return rng.normal(size=shape).astype("float32")


def shaken(layer):
    """Norms and biases that are not 1 and 0."""
    for weight in layer.weights:
        weight.assign(weight + 0.3 * noise(*weight.shape))
    return layer


ARGUMENTS = [
    {},
    {"normalize_first": True, "activation": "gelu", "layer_norm_epsilon": 1e-3},
    {"activation": "silu", "dropout": 0.4},
]
# float32, with sums in another order.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_an_encoder(arguments):
    old = hub.TransformerEncoder(F, H, **arguments)
    new = layers.TransformerEncoderBlock(F, H, **arguments)
    old.build((None, None, D))
    new.build((None, None, D))
    copy_keras_hub_weights(shaken(old), new)
    x, mask = noise(2, 7, D), np.arange(7) < np.array([[7], [4]])
    y = new(x, mask=mask)
    np.testing.assert_allclose(
        np.where(mask[..., None], y, 0),
        np.where(mask[..., None], old(x, padding_mask=mask), 0),
        **CLOSE,
    )


@pytest.mark.parametrize("arguments", ARGUMENTS)
@pytest.mark.parametrize("cross", [True, False])
def test_a_decoder(arguments, cross):
    old = hub.TransformerDecoder(F, H, **arguments)
    new = layers.TransformerDecoderBlock(F, H, cross_attention=cross, **arguments)
    shapes = [(None, None, D), (None, None, C)][: 1 + cross]
    old.build(*shapes)
    new.build(*shapes)
    copy_keras_hub_weights(shaken(old), new)
    x, context = noise(2, 7, D), noise(2, 5, C)
    mask = np.arange(5) < np.array([[5], [2]])
    if cross:
        found, expected = (
            new(x, context, context_mask=mask),
            old(x, context, encoder_padding_mask=mask),
        )
    else:
        found, expected = new(x), old(x)
    np.testing.assert_allclose(found, expected, **CLOSE)


def test_adapters_are_merged():
    old, new = hub.TransformerEncoder(F, H), layers.TransformerEncoderBlock(F, H)
    old.build((None, None, D))
    new.build((None, None, D))
    shaken(old)._feedforward_intermediate_dense.enable_lora(2)
    old._self_attention_layer._query_dense.enable_lora(2)
    for weight in old.weights:
        if weight.name.startswith("lora"):
            weight.assign(noise(*weight.shape))
    copy_keras_hub_weights(old, new)
    x = noise(2, 7, D)
    np.testing.assert_allclose(new(x), old(x), **CLOSE)


def test_embeddings_and_the_tied_output():
    old = hub.TokenAndPositionEmbedding(13, 9, D)
    token = layers.TokenEmbedding(13, D)
    position = layers.PositionEmbedding(9)
    old.build((None, None))
    token.build((None, None))
    position.build((None, None, D))
    copy_keras_hub_weights(shaken(old.token_embedding), token)
    copy_keras_hub_weights(shaken(old.position_embedding), position)
    ids, x = rng.integers(1, 13, (2, 7)), noise(2, 7, D)
    np.testing.assert_allclose(position(token(ids)), old(ids), **CLOSE)
    np.testing.assert_allclose(
        token(x, reverse=True), old.token_embedding(x, reverse=True), **CLOSE
    )


def test_sinusoids_are_the_same():
    x = noise(2, 7, D)
    np.testing.assert_allclose(
        layers.PositionalEncoding()(x), x + hub.SinePositionEncoding()(x), atol=1e-6
    )


def test_layers_inside_models():
    def model(encoder, name):
        x = keras.Input((None, D))
        return keras.Model(x, encoder(x), name=name)

    old = hub.TransformerEncoder(F, H, name="encoder")
    new = layers.TransformerEncoderBlock(F, H, name="encoder")
    before, after = model(old, "encoder"), model(new, "encoder")
    copy_keras_hub_weights(shaken(old), new)
    x = noise(2, 7, D)
    np.testing.assert_allclose(after(x), before(x), **CLOSE)


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({"normalize_first": True}, "normalize_first=False, .* normalize_first=True"),
        ({"num_heads": 4}, "num_heads=3, .* num_heads=4"),
        ({"intermediate_dim": 19}, "intermediate_dim=20, .* intermediate_dim=19"),
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon=1e-05, .* layer_norm_epsilon=1e-06"),
        ({"activation": "gelu"}, "activation='relu', .* activation='gelu'"),
        ({"residual": residual_of("sandwich")}, "another residual"),
        ({"causal": True}, "another causal"),
    ],
)
def test_other_arguments_are_an_error_and_copy_nothing(arguments, text):
    old = hub.TransformerEncoder(F, H)
    new = layers.TransformerEncoderBlock(**{"intermediate_dim": F, "num_heads": H, **arguments})
    old.build((None, None, D))
    new.build((None, None, D))
    before = [np.array(x) for x in new.get_weights()]
    with pytest.raises(ValueError, match=text):
        copy_keras_hub_weights(old, new)
    assert all((x == y).all() for x, y in zip(before, new.get_weights(), strict=True))


def test_layers_that_do_not_correspond_are_an_error():
    old, new = hub.TransformerEncoder(F, H), layers.TransformerEncoderBlock(F, H)
    with pytest.raises(ValueError, match=r"transformer_encoder.* has no weights yet"):
        copy_keras_hub_weights(old, new)
    with pytest.raises(TypeError, match=r"needs a TransformerEncoderBlock .* got keras\.Dense"):
        copy_keras_hub_weights(old, keras.layers.Dense(3))
    with pytest.raises(TypeError, match=r"one of KerasHub's .*, got keras_tfm.Transf"):
        copy_keras_hub_weights(new, old)


def test_other_widths_and_untied_tables_are_an_error():
    old, new = hub.PositionEmbedding(9), layers.PositionEmbedding(8)
    old.build((None, None, D))
    new.build((None, None, D))
    with pytest.raises(ValueError, match=r"positions is \(9, 12\) and \(8, 12\)"):
        copy_keras_hub_weights(old, new)


@pytest.mark.parametrize(
    "theirs, ours, text",
    [
        ({"tie_weights": False}, {}, "tie_weights=False"),
        ({"logit_soft_cap": 30.0}, {}, "logit_soft_cap=30.0"),
        ({}, {"scale": True}, "does not scale"),
        ({"mask_zero": True}, {}, "mask_zero=True, .* mask_id=None"),
        ({}, {"mask_zero": True}, "mask_zero=False, .* mask_id=0"),
    ],
)
def test_embeddings_that_would_give_other_values_are_an_error(theirs, ours, text):
    old, new = hub.ReversibleEmbedding(13, D, **theirs), layers.TokenEmbedding(13, D, **ours)
    old.build((None, None))
    new.build((None, None))
    with pytest.raises(ValueError, match=text):
        copy_keras_hub_weights(old, new)


def causal_lm():
    """Of a family that this library lacks."""
    models = pytest.importorskip("keras_hub").models
    backbone = models.BloomBackbone(
        vocabulary_size=11, num_layers=1, num_heads=H, hidden_dim=D, intermediate_dim=F
    )
    return models.BloomCausalLM(backbone=backbone, preprocessor=None)


def with_one_input(task):
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    mask = keras.ops.ones_like(tokens)
    return keras.Model(tokens, task({"token_ids": tokens, "padding_mask": mask}))


PAGE = "from-kerashub.md"


@pytest.mark.parametrize(
    "use",
    [
        lambda task, path: generation.generate(task, [[3, 4]], max_length=5),
        lambda task, path: generation.generate(
            task, {"token_ids": [[3, 4]], "padding_mask": [[1, 1]]}, 5, target="token_ids"
        ),
        lambda task, path: generation.generate(task.backbone, [[3, 4]], max_length=5),
        lambda task, path: generation.generate(with_one_input(task), [[3, 4]], max_length=5),
        lambda task, path: export.export_tflite(task, path, prompt_length=3, max_length=5),
        lambda task, path: export.export_saved_model(
            task, path.parent / "saved", start_id=1, max_length=5
        ),
        lambda task, path: export.export_litertlm(
            task, path.with_suffix(".litertlm"), None, max_length=5
        ),
        lambda task, path: save_huggingface(task, path.parent / "folder"),
    ],
)
def test_errors_about_a_task_name_the_page(use, tmp_path):
    with pytest.raises(ValueError, match=PAGE) as caught:
        use(causal_lm(), tmp_path / "model.tflite")
    assert "BloomCausalLM of KerasHub" in str(caught.value) or "Backbone" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_way_is_named_for_what_it_takes():
    """No error recommends `from_keras_hub` for a class that it refuses."""
    assert {*LANGUAGE_MODELS, *OTHER_BACKBONES} == set(FAMILIES)
    writers = [*vars(decoders).values(), *vars(encoder_decoders).values()]
    assert set(LANGUAGE_MODELS) == {x.backbone for x in writers if isinstance(x, HubFamily)}
    task = causal_lm()  # of Bloom
    for model in (task, task.backbone, with_one_input(task)):
        with pytest.raises(ValueError, match=r"no layers for a BloomBackbone, .* LlamaBackbone, "):
            generation.generate(model, [[3, 4]], max_length=5)
    names = pytest.importorskip("keras_hub").models
    sizes = {"num_layers": 1, "num_heads": H, "hidden_dim": D, "intermediate_dim": F}
    gpt = names.GPT2Backbone(vocabulary_size=11, max_sequence_length=7, **sizes)
    own = type("OwnBackbone", (names.GPT2Backbone,), {})
    for model, message in (
        (names.GPT2CausalLM(gpt), "from_keras_hub makes a model of keras_tfm with the same"),
        (type("OwnTask", (names.GPT2CausalLM,), {})(gpt), "with the weights of its backbone, see"),
        (own(vocabulary_size=11, max_sequence_length=7, **sizes), "no layers for a OwnBackbone, "),
    ):
        with pytest.raises(ValueError, match=message):
            refuse_keras_hub(model)


def test_a_task_that_cannot_be_converted_is_exported_for_predict(tmp_path):
    task = causal_lm()
    path = export.export_tflite(task, tmp_path / "x.tflite", ["predict"], source_length=5).path
    inputs = {"token_ids": np.array([[3, 4, 9, 0, 0]]), "padding_mask": np.array([[1, 1, 1, 0, 0]])}
    found = runtime.load(path).predict({k: x.astype("int32") for k, x in inputs.items()})
    # float32, one block.
    expected = keras.ops.convert_to_numpy(task(inputs))
    np.testing.assert_allclose(found["output"][0, :3], expected[0, :3], atol=1e-5)


def test_a_preset_of_keras_hub_is_not_a_folder_of_hugging_face(tmp_path):
    causal_lm().backbone.save_to_preset(str(tmp_path / "preset"))
    with pytest.raises(ValueError, match=f"is a preset of KerasHub: .*from_keras_hub.*{PAGE}"):
        load_huggingface(tmp_path / "preset")


def test_a_layer_of_keras_hub_is_named():
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = hub.TransformerDecoder(F, H)(hub.TokenAndPositionEmbedding(11, 7, D)(tokens))
    with pytest.raises(ValueError, match=f"cannot be stepped.* of KerasHub.*{PAGE}") as caught:
        generation.generate(keras.Model(tokens, keras.layers.Dense(11)(x)), [[3, 4]], 5)
    assert "keras_tfm.layers has layers that can be stepped" in str(caught.value)
    assert "from_keras_hub" not in str(caught.value)
