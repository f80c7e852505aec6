"""Models of KerasHub become models with the same outputs, and get trained weights back."""

import keras
import numpy as np
import pytest

from keras_tfm.checkpoints import from_keras_hub, to_keras_hub

hub = pytest.importorskip("keras_hub").models

rng = np.random.default_rng(0)


def add_noise(model):
    """Norms and biases that are not 1 and 0."""
    for weight in model.weights:
        weight.assign(weight + 0.3 * rng.normal(size=weight.shape))
    return model


def bert():
    return hub.BertBackbone(
        vocabulary_size=31, num_layers=2, num_heads=3, hidden_dim=12, intermediate_dim=20,
        max_sequence_length=9, num_segments=3,
    )  # fmt: skip


def llama(cls="LlamaBackbone", **more):
    arguments = {
        "vocabulary_size": 31, "num_layers": 2, "num_query_heads": 6, "num_key_value_heads": 3,
        "hidden_dim": 24, "intermediate_dim": 20,
    }  # fmt: skip
    return getattr(hub, cls)(**arguments, **more)


LLAMA3_ROPE = {
    "rope_frequency_adjustment_factor": 8.0,
    "rope_low_freq_factor": 1.0,
    "rope_high_freq_factor": 4.0,
    "rope_pretraining_sequence_length": 8,
}
MODELS = {
    "bert": bert,
    "bert-classifier": lambda: hub.BertTextClassifier(bert(), num_classes=5),
    "bert-probabilities": lambda: hub.BertTextClassifier(bert(), 5, activation="softmax"),
    "bert-masked": lambda: hub.BertMaskedLM(bert()),
    "bert-embedder": lambda: hub.BertTextEmbedder(bert()),
    "bert-embedder-cls": lambda: hub.BertTextEmbedder(bert(), pooling_mode="cls", normalize=False),
    "llama": llama,
    "llama-causal": lambda: hub.LlamaCausalLM(llama(rope_max_wavelength=500.0)),
    "llama3-causal": lambda: hub.Llama3CausalLM(
        llama("Llama3Backbone", tie_word_embeddings=True, **LLAMA3_ROPE)
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_there_and_back(name):
    """Both ways compare features, outputs and greedy tokens within 1e-5 of the largest value."""
    theirs = add_noise(MODELS[name]())
    before = [np.array(x) for x in theirs.get_weights()]
    found = from_keras_hub(theirs)
    assert found.notes == (
        ["the model returns logits, without the task's softmax"] if "prob" in name else []
    )
    assert all((x == y).all() for x, y in zip(before, theirs.get_weights(), strict=True))
    add_noise(found.model)
    kept = to_keras_hub(found.model, theirs)
    assert kept == (
        ["pooled_dense/kernel", "pooled_dense/bias"] if "bert-m" in name or "emb" in name else []
    )
    changed = [not np.array_equal(x, y) for x, y in zip(before, theirs.get_weights(), strict=True)]
    assert sum(changed) == len(changed) - len(kept)


def test_a_wrong_weight_names_the_block(monkeypatch):
    theirs = add_noise(bert())
    model = from_keras_hub(theirs).model
    model.get_layer("encoder_1").feed_forward.outer.bias.assign(np.ones(12))
    from keras_tfm.checkpoints.keras_hub.comparison import check_equal
    from keras_tfm.checkpoints.keras_hub.source import Source

    with pytest.raises(ValueError, match=r"differ first in transformer_layer_1 \(encoder_1 here\)"):
        check_equal(model, Source.of(theirs))
    model.get_layer("embedding").embeddings.assign(np.ones((31, 12)))
    with pytest.raises(ValueError, match="differ in the embeddings, before transformer_layer_0"):
        check_equal(model, Source.of(theirs))


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_adapters_are_merged_and_rounded_kernels_become_floats():
    theirs = add_noise(llama())
    theirs.quantize("int8")
    theirs.enable_lora(2)
    for weight in theirs.weights:
        if weight.name.startswith("lora"):
            weight.assign(rng.normal(size=weight.shape))
    found = from_keras_hub(hub.LlamaCausalLM(theirs))
    assert found.notes == [
        "15 layers in int8 were dequantised",
        "the LoRA adapters of 4 layers were merged",
    ]


class CustomBert(hub.BertBackbone):
    pass


@pytest.mark.parametrize(
    "make, error, text",
    [
        (lambda: keras.Sequential([]), TypeError, "Task or Backbone of KerasHub"),
        (lambda: 3, TypeError, "got int"),
        (lambda: CustomBert(31, 1, 3, 12, 20), ValueError, "a subclass of BertBackbone"),
        (lambda: hub.FNetBackbone(31, 1, 12, 20), ValueError, "no layers for a FNetBackbone"),
        (lambda: llama(rope_position_scaling_factor=2.0), ValueError, "must be 1.0, got 2.0"),
        (lambda: hub.Backbone, TypeError, "got type"),
    ],
)  # fmt: skip
def test_a_model_of_another_kind_is_an_error(make, error, text):
    with pytest.raises(error, match=text) as caught:
        from_keras_hub(make())
    assert "\n" not in str(caught.value)


def test_folders(tmp_path):
    task = add_noise(hub.BertTextClassifier(bert(), num_classes=5))
    task.save_to_preset(str(tmp_path / "preset"))
    found = from_keras_hub(tmp_path / "preset", verify=False).model
    for x, y in zip(from_keras_hub(task, verify=False).model.weights, found.weights, strict=True):
        np.testing.assert_array_equal(x, y)
    (tmp_path / "preset" / "model.weights.h5").unlink()
    with pytest.raises(FileNotFoundError, match="has no weights, expected model"):
        from_keras_hub(tmp_path / "preset")
    with pytest.raises(FileNotFoundError, match="is no folder of a KerasHub preset"):
        from_keras_hub(tmp_path)
