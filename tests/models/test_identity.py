"""What a model knows of itself, and what that survives."""

import inspect
import itertools
import json

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from execution import saving, tensorflow_only

import keras_tfm
from keras_tfm import layers, models
from keras_tfm.layers import RotaryEmbedding, gelu_tanh
from keras_tfm.models import describe, with_dtype
from keras_tfm.models.identity import IDENTITY_ROLES, Identity, Marker, Origin

SMALL = {"dim": 8, "num_layers": 2, "num_heads": 2, "intermediate_dim": 11}
IDS = np.array([[2, 5, 6, 3, 0], [2, 7, 3, 0, 0]])
MODELS = {
    "bert": lambda: models.bert(13, **SMALL),
    "masked": lambda: models.masked_language_model(models.bert(13, **SMALL), next_sentence=True),
    "classifier": lambda: models.sequence_classifier(models.bert(13, **SMALL), 3, dropout=0.2),
    "gpt": lambda: models.gpt(13, **SMALL, max_length=7),
    "gpt features": lambda: models.backbone(models.gpt(13, **SMALL)),
    "t5": lambda: models.t5(13, **SMALL, num_decoder_layers=1, gated=True),
    "t5 encoder": lambda: models.encoder(models.t5(13, **SMALL)),
    "transformer": lambda: models.transformer(13, 17, **SMALL, position=RotaryEmbedding()),
}
FAMILIES = {"masked": "bert", "classifier": "bert", "gpt features": "gpt", "t5 encoder": "t5"}
KINDS = {
    "masked": "masked_language_model", "classifier": "sequence_classifier", "gpt": "language_model",
    "t5": "language_model", "transformer": "language_model", "t5 encoder": "encoder",
}  # fmt: skip
every_model = pytest.mark.parametrize("name", MODELS)


def inputs_of(model):
    if not isinstance(model.input, dict):
        return IDS
    return {name: np.zeros_like(IDS) if name == "segments" else IDS for name in model.input}


def saved(model, tmp_path):
    model.save(tmp_path / "model.keras")
    return keras.saving.load_model(tmp_path / "model.keras")


def adapted(model):
    for layer in model._flatten_layers(include_self=False):
        if isinstance(layer, keras.layers.Dense | layers.MultiHeadSelfAttention) and hasattr(
            layer, "enable_lora"
        ):
            layer.enable_lora(2)
    return model


def quantized(model):
    model.quantize("int8")
    return model


def in_half_precision(described):
    """With the policy of a position that is a layer."""
    text = json.dumps(described)
    return json.loads(text.replace('"name": "float32"', '"name": "mixed_bfloat16"'))


COPIES = {
    "saved": saved,
    "cloned": lambda model, path: keras.models.clone_model(model),
    "cloned with the same layers": lambda model, path: keras.models.clone_model(
        model, clone_function=lambda layer: layer
    ),
    "with dtype": lambda model, path: with_dtype(model, "mixed_bfloat16"),
    "with LoRA": lambda model, path: adapted(model),
    "quantized": lambda model, path: quantized(model),
    "of keras.Model": lambda model, path: keras.Model(model.input, model.output),
}


@every_model
def test_a_model_knows_what_made_it(name):
    model = MODELS[name]()
    assert model.family == FAMILIES.get(name, name)
    assert (model.head and model.head.kind) == KINDS.get(name)
    assert {key: model.arguments[key] for key in SMALL} == SMALL
    assert "name" not in model.arguments
    assert model.features.shape[1:] == (None, 8)
    assert [block.name for block in model.blocks] == [
        x.name for x in model.layers if x.name.removesuffix("_0")[:7] in ("encoder", "decoder")
        and x.name[8:].isdigit()
    ]  # fmt: skip
    assert isinstance(model.embedding, layers.TokenEmbedding)


def test_arguments_are_as_they_were_given_with_defaults():
    model = models.transformer(13, dim=6, num_layers=1, num_heads=2, normalize_first=True)
    assert model.arguments == {
        "source_vocabulary_size": 13, "target_vocabulary_size": None, "dim": 6, "num_layers": 1,
        "num_heads": 2, "intermediate_dim": 2048, "dropout": 0.1, "activation": "relu",
        "gated": False, "position": None, "layer_norm_epsilon": 1e-5, "normalize_first": True,
        "final_norm": None, "share_embeddings": None, "head_dim": None, "value_dim": None,
        "num_key_value_heads": None, "dtype": None,
    }  # fmt: skip


@every_model
def test_the_arguments_build_the_model_again(name):
    model = MODELS[name]()
    again = getattr(models, model.family)(**model.arguments, name=model.name)
    if model.head is None:
        again = again if name == "bert" else models.backbone(again)
    elif model.head.kind != "language_model":
        again = getattr(models, model.head.kind)(again, **model.head.arguments)
    assert [(w.path, w.shape) for w in again.weights] == [(w.path, w.shape) for w in model.weights]
    assert describe(again) == describe(model)


# tests/models/test_contract.py saves, clones and casts every family; `quantize` traces each layer.
DEFAULT = {
    *itertools.product(("bert", "gpt", "gpt features"), ("cloned with the same layers",)),
    *itertools.product(("bert", "masked", "gpt", "gpt features"), ("of keras.Model",)),
}


@saving
@tensorflow_only
@pytest.mark.parametrize(
    ("name", "copy"),
    [
        pytest.param(*x, marks=[pytest.mark.slow] * (x not in DEFAULT))
        for x in itertools.product(MODELS, COPIES)
    ],
)
@pytest.mark.filterwarnings("ignore:.*quantize.*:UserWarning")
def test_it_survives(name, copy, tmp_path):
    model = MODELS[name]()
    family, described, head = model.family, describe(model), model.head
    blocks, embedding = [x.name for x in model.blocks], model.embedding.name
    again = COPIES[copy](model, tmp_path)
    if copy == "of keras.Model":
        assert describe(again) == described
        return
    assert isinstance(again, models.Model)
    assert again.family == family and again.head == head
    if copy == "with dtype":
        assert again.arguments["dtype"] == "mixed_bfloat16"
        described["arguments"]["dtype"] = "mixed_bfloat16"
        described = in_half_precision(described)
    assert describe(again) == described
    assert json.loads(json.dumps(described)) == described
    assert [x.name for x in again.blocks] == blocks
    assert again.embedding.name == embedding and again.embedding in again.layers
    # In this model's own graph, and of it.
    keras_tfm.Model(again.input, again.features)(inputs_of(again))


def test_the_features_are_what_the_logits_are_made_of():
    model = models.gpt(13, **SMALL)
    x = keras_tfm.Model(model.input, model.features)(IDS)
    assert_close(model.embedding(x, reverse=True), model(IDS), 1e-6)
    norm = to_numpy(model.get_layer("decoder_norm")(keras_tfm.Model(
        model.input, model.blocks[-1].output)(IDS)))  # fmt: skip
    np.testing.assert_array_equal(to_numpy(x), norm)


def test_the_embedding_of_an_encoder_decoder_is_the_target_s():
    model = models.transformer(13, 17, **SMALL)
    assert model.embedding.name == "target_embedding"
    assert models.encoder(model).embedding.name == "source_embedding"


def test_features_of_a_model_that_shares_its_layers_are_in_its_own_graph():
    model = models.gpt(13, **SMALL)
    twin = keras.models.clone_model(model, clone_function=lambda layer: layer)
    assert twin.features is not model.features
    assert_close(keras_tfm.Model(twin.input, twin.features)(IDS), models.backbone(model)(IDS), 0.0)


def test_objects_among_the_arguments(tmp_path):
    model = models.gpt(13, **SMALL, activation=gelu_tanh, dtype=keras.DTypePolicy("float32"))
    again = models.gpt(13, **SMALL, activation="tanh")
    assert keras.models.clone_model(model).arguments["activation"] is gelu_tanh
    assert describe(model)["arguments"]["activation"]["config"] == "keras_tfm>gelu_tanh"
    assert describe(again)["arguments"]["activation"] == "tanh"
    position = keras_tfm.layers.RotaryEmbedding(max_wavelength=99)
    model = models.transformer(13, **SMALL, position=position)
    assert model.arguments["position"] is position
    assert keras.models.clone_model(model).arguments["position"].max_wavelength == 99
    marker = model.get_layer("features_marker")
    assert not marker.weights and marker._layers == []


def hand_composed(kind=keras_tfm.Model):
    ids = keras.Input((None,), dtype="int32", name="tokens")
    embedding = layers.TokenEmbedding(13, 6, mask_zero=True, name="words")
    x = layers.TransformerEncoderBlock(11, 2, normalize_first=True, name="one")(embedding(ids))
    x = layers.LayerNormalization(name="last_norm")(x)
    return kind(ids, embedding(x, reverse=True), name="own")


def test_a_hand_composed_model_has_none_of_it():
    model = hand_composed()
    assert (model.family, model.head, model.embedding, model.features) == (None,) * 4
    assert (model.arguments, model.blocks, describe(model)) == ({}, [], None)
    assert describe(hand_composed(keras.Model)) is None


def test_a_model_inside_a_model_is_not_the_model():
    inner = models.gpt(13, **SMALL)
    ids = keras.Input((None,), dtype="int32")
    assert models.Model(ids, inner(ids)).family is None


def test_two_families_in_one_graph_are_a_new_model():
    def renamed(layer):
        return type(layer).from_config({**layer.get_config(), "name": f"second_{layer.name}"})

    first, second = models.gpt(13, **SMALL), models.gpt(13, **SMALL)
    second = keras.models.clone_model(
        second, clone_function=renamed, input_tensors=keras.Input((None,), dtype="int32")
    )
    both = models.Model([first.input, second.input], [first.output, second.output])
    assert (first.family, both.family, both.features) == ("gpt", None, None)


def test_a_subclass_may_name_its_attributes_as_it_likes():
    class Own(keras_tfm.Model):
        def __init__(self):
            ids = keras.Input((None,), dtype="int32")
            embedding, dense = keras.layers.Embedding(3, 2), keras.layers.Dense(2)
            super().__init__(ids, dense(embedding(ids)))
            self.blocks, self.embedding, self.head = [dense], embedding, None

    model = Own()
    assert len(model.weights) == 3 and model.embedding is model.layers[1]
    assert len(model.blocks) == 1 and model.head is None
    assert model.family is None and describe(model) is None


def test_a_marker_changes_neither_values_nor_masks_nor_dtypes():
    x = layers.TokenEmbedding(13, 6, mask_zero=True, dtype="float16")(IDS)
    y = Marker("head", "some")(x)
    assert y is x
    np.testing.assert_array_equal(y._keras_mask, IDS != 0)
    symbolic = Marker("head", "some")(keras.Input((3, 6), dtype="bfloat16"))
    assert (symbolic.shape, symbolic.dtype) == ((None, 3, 6), "bfloat16")


EARLIER = {
    "FeaturesMarker": "features", "EncodedMarker": "encoded", "PairMarker": "towers",
    "AlignmentMarker": "alignment", "PairsMarker": "pairs", "PooledMarker": "pooled",
    "VisualMarker": "visual", "HeadMarker": "head",
}  # fmt: skip


@pytest.mark.parametrize("name", EARLIER)
def test_files_of_when_each_role_had_a_class_still_load(name):
    """As such a `.keras` file has them; every model of that time was loaded once by hand."""
    role, config = EARLIER[name], {"name": "some_marker", "trainable": True, "dtype": "float32"}
    if role == "head":
        config |= {"kind": "token_classifier", "arguments": {"num_classes": 3}}
    elif role in IDENTITY_ROLES:
        config |= {"family": "bert", "arguments": {"dim": 8}, "embedding": "words", "blocks": ["b"]}
    layer = keras.saving.deserialize_keras_object(
        {
            "module": "keras_tfm.models.identity",
            "class_name": name,
            "config": config,
            "registered_name": f"keras_tfm>{name}",
            "build_config": {"input_shape": [None, None, 8]},
        }
    )
    assert (type(layer), layer.role, layer.name) == (Marker, role, "some_marker")
    if role == "head":
        assert layer.origin == Origin("token_classifier", {"num_classes": 3})
    elif role in IDENTITY_ROLES:
        assert layer.identity == Identity("bert", {"dim": 8}, "words", ("b",))
    else:
        assert layer.origin == Origin(None, {})


def test_a_marker_of_an_unknown_role():
    with pytest.raises(ValueError, match=r"role must be one of \['features', .*, got 'feature'"):
        Marker("feature")


def test_a_head_s_arguments_are_those_of_its_function():
    head = models.sentence_embedding(models.bert(13, **SMALL), prompts={"query": "find: "}).head
    parameters = set(inspect.signature(models.sentence_embedding).parameters)
    assert set(head.arguments) == parameters - {"model", "features", "dtype"}
    assert head.arguments["prompts"] == {"query": "find: "}


def test_a_builder_is_still_the_function_that_was_written():
    assert inspect.signature(models.marian).parameters["vocabulary_size"].annotation is int
    assert models.marian.__name__ == "marian" and "Marian" in models.marian.__doc__
    model = models.marian(11, **SMALL)
    assert (model.arguments["pad_id"], model.arguments["start_id"]) == (10, 10)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        models.marian()


def test_arguments_are_recorded_with_the_types_of_their_fields():
    """An integer of a float argument as a float: `transformers` refuses it in some fields."""
    model = models.falcon_h1(
        11, **SMALL, mamba_heads=2, mamba_head_dim=4, state_dim=3, rope_theta=100,
        pad_id=np.int64(0), key_multiplier=np.float32(0.5),
        mlp_multipliers=(2, np.float32(0.5)), time_step_limit=(0, 1),
    )  # fmt: skip
    given = model.arguments
    for name in ("rope_theta", "key_multiplier"):
        assert type(given[name]) is float
    for name in ("mlp_multipliers", "time_step_limit"):
        assert [type(x) for x in given[name]] == [float, float]
    assert type(given["pad_id"]) is int
    assert (given["num_key_value_heads"], given["rope_theta"]) == (None, 100.0)
    assert json.loads(json.dumps(describe(model))) == describe(model)


@pytest.mark.parametrize("name", ["ssm_multipliers", "mlp_multipliers"])
@pytest.mark.parametrize("factors", [0.5, [1.0], [1.0, "a", 1.0, 1.0, 1.0], [1.0, "a"]])
def test_wrong_lists_of_factors_are_named(name, factors):
    with pytest.raises((TypeError, ValueError), match=f"^{name} must "):
        models.falcon_h1(11, **SMALL, **{name: factors})
