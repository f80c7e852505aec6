"""Heads on models that were composed by hand: what they are put on is said, never guessed."""

import keras
import numpy as np
import pytest
from blocks import encoder_block
from compare import assert_close, to_numpy
from execution import saving

import keras_tfm
from keras_tfm import layers, models

IDS = np.array([[2, 5, 6, 3, 0], [2, 7, 3, 0, 0]])
SMALL = {"dim": 6, "num_layers": 1, "num_heads": 2, "intermediate_dim": 11}


def pre_norm(kind=keras_tfm.Model, **options):
    """Its last normalisation is no part of a block, and is named as its maker likes."""
    ids = keras.Input((None,), dtype="int32", name="tokens")
    embedding = layers.TokenEmbedding(13, 6, mask_zero=True, name="words")
    x = layers.PositionalEncoding(name="places")(embedding(ids))
    for i in range(2):
        x = encoder_block(11, 2, normalize_first=True, name=f"block_{i}", **options)(x)
    norm = layers.LayerNormalization(name="after_all_blocks")
    model = kind(ids, embedding(norm(x), reverse=True), name="own")
    norm.gamma.assign(np.linspace(0.5, 2.0, 6))  # else its absence could hardly be seen
    norm.beta.assign(np.linspace(-1.0, 1.0, 6))
    return model


def in_a_row():
    """The layers up to the last norm as a `keras.Sequential`."""
    parts = [x for x in pre_norm().layers if "token_mask" not in x.name]
    return keras.Sequential(parts, name="in_a_row")


def normed(model):
    return keras.Model(model.input, model.get_layer("after_all_blocks").output)(IDS)


HEADS = {
    "backbone": (models.backbone, {}),
    "masked": (models.masked_language_model, {"embedding": "words"}),
    "next": (models.next_sentence, {}),
    "sequence": (models.sequence_classifier, {"num_classes": 3}),
    "token": (models.token_classifier, {"num_classes": 4}),
    "question": (models.question_answering, {}),
}
every_head = pytest.mark.parametrize("name", HEADS)


@pytest.mark.parametrize("kind", [keras_tfm.Model, keras.Model])
@pytest.mark.parametrize("by", ["name", "tensor"])
def test_a_head_keeps_the_last_norm(kind, by):
    model = pre_norm(kind)
    features = "after_all_blocks"
    if by == "tensor":
        features = model.get_layer(features).output
    assert_close(models.backbone(model, features=features)(IDS), normed(model), 0.0)
    classifier = models.token_classifier(model, 4, features=features)
    dense = classifier.get_layer("classifier")
    assert_close(classifier(IDS), dense(normed(model)), 1e-6)
    assert classifier.get_layer("after_all_blocks") is model.get_layer("after_all_blocks")


@every_head
def test_without_features_it_is_an_error(name):
    make, options = HEADS[name]
    with pytest.raises(ValueError, match=r"or features=.*: 'own' has no features of its own") as e:
        make(pre_norm(), **options)
    assert "\n" not in str(e.value)


@every_head
def test_every_head_takes_features(name):
    make, options = HEADS[name]
    model = make(pre_norm(), **options, features="after_all_blocks")
    assert "after_all_blocks" in [x.name for x in model.layers]
    assert isinstance(model, models.Model) and model.family is None
    assert all(np.isfinite(to_numpy(y)).all() for y in keras.tree.flatten(model(IDS)))


@every_head
def test_a_sequential_gets_every_head(name):
    """As the functional model of its layers, which they share."""
    make, options = HEADS[name]
    model = in_a_row()
    keras.utils.set_random_seed(1)
    found = make(model, **options, features="after_all_blocks")
    functional = keras.Model(model.inputs[0], model.outputs[0])
    keras.utils.set_random_seed(1)
    expected = make(functional, **options, features="after_all_blocks")
    assert found.name == "in_a_row" and found.get_layer("words") is model.get_layer("words")
    for x, y in zip(*(keras.tree.flatten(m(IDS)) for m in (found, expected)), strict=True):
        assert_close(x, y, 0.0)


def test_what_only_builders_make_refuses_a_sequential():
    model = in_a_row()
    for part in (models.encoder, models.decoder):
        with pytest.raises(ValueError, match="expected an encoder-decoder model of keras_tfm"):
            part(model)
    with pytest.raises(
        TypeError, match=r"got keras.*Sequential; of .* of a keras\.Sequential keras_tfm"
    ):
        models.enable_quantization(model, "int8")
    assert (
        models.enable_quantization(keras_tfm.Model(model.inputs[0], model.outputs[0]), "int4") > 0
    )


@saving
def test_the_next_head_needs_no_features(tmp_path):
    """What they are was said once; a file keeps it."""
    model = models.token_classifier(pre_norm(), 4, features="after_all_blocks")
    assert (model.family, model.head.kind, model.head.arguments["num_classes"]) == (
        None, "token_classifier", 4
    )  # fmt: skip
    model.save(tmp_path / "model.keras")
    for x in (model, keras_tfm.load_model(tmp_path / "model.keras")):
        other = models.question_answering(x)
        assert (other.head.kind, other.features.shape) == ("question_answering", (None, None, 6))
        assert "classifier" not in [layer.name for layer in other.layers]
        assert_close(models.backbone(other)(IDS), normed(model), 0.0)


def test_options_of_a_head_on_a_hand_composed_model():
    model = models.masked_language_model(
        pre_norm(),
        features="after_all_blocks",
        embedding="words",
        activation="relu",
        layer_norm_epsilon=0.3,
        kernel_initializer="ones",
        dtype="mixed_bfloat16",
    )
    dense, norm = model.get_layer("transform"), model.get_layer("transform_norm")
    assert (dense.activation, norm.epsilon) == (keras.activations.relu, 0.3)
    assert (dense.compute_dtype, norm.compute_dtype) == ("bfloat16", "bfloat16")
    assert np.all(to_numpy(dense.kernel) == 1.0)
    assert model.get_layer("after_all_blocks").compute_dtype == "float32"


def test_options_of_a_head_on_a_family_are_the_family_s():
    bert = models.bert(13, **SMALL, activation="silu", layer_norm_epsilon=0.2, dropout=0.3)
    model = models.masked_language_model(bert)
    assert model.get_layer("transform").activation is keras.activations.silu
    assert model.get_layer("transform_norm").epsilon == 0.2
    assert models.token_classifier(bert, 2).get_layer("classifier_dropout").rate == 0.3
    assert models.token_classifier(bert, 2, 0.1).get_layer("classifier_dropout").rate == 0.1
    model = models.masked_language_model(bert, activation="relu")
    assert model.get_layer("transform").activation is keras.activations.relu


def test_a_masked_language_model_needs_an_embedding():
    with pytest.raises(ValueError, match=r"expected embedding=, a TokenEmbedding .* got None"):
        models.masked_language_model(pre_norm(), features="after_all_blocks")
    model = pre_norm()
    named, given = (
        models.masked_language_model(model, features="after_all_blocks", embedding=x)
        for x in ("words", model.get_layer("words"))
    )
    assert named.get_layer("words") is given.get_layer("words") is model.get_layer("words")


def test_positions_of_a_model_with_one_input():
    model = models.masked_language_model(
        pre_norm(), positions=True, features="after_all_blocks", embedding="words"
    )
    assert list(model.input) == ["tokens", "mask_positions"]
    assert model({"tokens": IDS, "mask_positions": np.array([[1], [0]])}).shape == (2, 1, 13)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ("nothing", r"features must name one of \['tokens', .*, got 'nothing'"),
        ("tokens", r"features must be \(B, T, D\), got shape \(None, None\)"),
        ("words", "features must name a layer with one output, got 'words' with 2"),
        (np.zeros((1, 2, 3)), "features must be a symbolic tensor of 'own' or a layer's name"),
        (keras.Input((None, 6)), "features must be a symbolic tensor of 'own' or a layer's name"),
    ],
    ids=["unknown", "rank", "several", "array", "another graph"],
)
def test_features_that_are_none(features, message):
    with pytest.raises(ValueError, match=message):
        models.backbone(pre_norm(), features=features)


def test_layers_after_a_family_s_features_are_not_dropped_in_silence():
    bert = models.bert(13, **SMALL, segments=False)
    ending = keras.layers.Dense(7, name="more")(bert.output["features"])
    model = models.Model(bert.input, ending, name="longer")
    with pytest.raises(ValueError, match=r"expected features=.*'longer' has layers after its own"):
        models.token_classifier(model, 3)
    head = models.token_classifier(model, 3, features="more")
    assert "more" in [x.name for x in head.layers]
    assert (head.family, head.features.shape[-1]) == (None, 7)


def test_a_part_of_the_outputs_is_still_the_family_s():
    bert = models.bert(13, **SMALL, segments=False)
    for name in ("features", "pooled"):
        part = models.Model(bert.input, bert.output[name])
        assert models.token_classifier(part, 3).family == "bert"


def test_a_layer_of_a_model_between_is_not_a_feature_of_its_own():
    """The output of a nested model's call, not the tensor inside."""
    ids = keras.Input((None,), dtype="int32", name="outer")
    inner = models.backbone(models.gpt(13, **SMALL, name="inner"))
    model = models.Model(ids, keras.layers.Dense(2)(inner(ids)))
    assert_close(models.backbone(model, features="inner")(IDS), inner(IDS), 1e-6)


def test_encoders():
    model = models.t5(13, **SMALL)
    part = models.encoder(model)
    assert part.head.kind == "encoder" and [x.name for x in part.blocks] == ["encoder_0"]
    classifier = models.sequence_classifier(part, 3)
    assert classifier.input.name == "source" and classifier(IDS).shape == (2, 3)
    with pytest.raises(ValueError, match=r"expected an encoder-decoder model .*'gpt' without an"):
        models.encoder(models.gpt(13, **SMALL))


def test_a_model_that_is_no_graph():
    class Own(keras.Model):
        pass

    with pytest.raises(TypeError, match=r"expected a functional keras\.Model .*, got Own"):
        models.backbone(Own())
