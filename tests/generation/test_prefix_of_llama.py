"""LLaVA's way with the library's own parts: `models.vit` before a Llama of `transformers`."""

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from keras_weights import randomize
from live_transformers import made

from keras_tfm import layers, models
from keras_tfm.generation import Beam, Greedy, generate

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

P, D, V, END, NEW = 7, 24, 31, 2, 8
PIXELS = np.random.default_rng(5).integers(0, 256, (3, 8, 12, 3)).astype("float32")
IDS = np.random.default_rng(6).integers(3, V, (3, 4)).astype("int32")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Their Llama, the projected features, and both parts as one model of this library."""
    config = {
        "vocab_size": V, "hidden_size": D, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 37, "max_position_embeddings": 64,
        "bos_token_id": 1, "eos_token_id": END, "pad_token_id": 0,
    }  # fmt: skip
    theirs, llama = made("LlamaForCausalLM", config, tmp_path_factory.mktemp("llama"), 0)
    vision = models.vit((8, 12), 4, dim=10, num_layers=1, num_heads=2, intermediate_dim=13)
    projected = keras.layers.Dense(D, activation="gelu", name="projector")(vision.output)
    encoder = randomize(keras.Model(vision.input, projected))
    target = keras.Input((None,), dtype="int32", name="target")
    x = layers.ConcatenatePrefix()([projected, llama.embedding(target)])
    for block in llama.blocks:
        x = block(x)
    x = llama.get_layer("decoder_norm")(x)
    logits = llama.get_layer("output")(layers.RemovePrefix()([projected, x]))
    model = keras.Model({"pixels": vision.input, "target": target}, logits)
    features = torch.from_numpy(to_numpy(encoder(PIXELS)).astype("float32"))
    assert features.shape == (3, P, D)
    return theirs, features, model


def embedded(theirs, features):
    words = theirs.get_input_embeddings()(torch.from_numpy(IDS.astype("int64")))
    return torch.cat([features, words], dim=1)


def test_logits(pair):
    theirs, features, model = pair
    with torch.no_grad():
        expected = theirs(inputs_embeds=embedded(theirs, features)).logits[:, P:].numpy()
    # Two blocks in float32, by two libraries.
    assert_close(model({"pixels": PIXELS, "target": IDS}), expected, 2e-5)


@pytest.mark.parametrize(
    "strategy",
    [pytest.param(Greedy(), marks=pytest.mark.slow), Beam(3)],  # the search steps likewise
    ids=["greedy", "beam"],
)
def test_tokens(pair, strategy):
    theirs, features, model = pair
    inputs = embedded(theirs, features)
    with torch.no_grad():
        expected = theirs.generate(
            inputs_embeds=inputs, attention_mask=torch.ones(inputs.shape[:2], dtype=torch.long),
            max_new_tokens=NEW, do_sample=False, num_beams=strategy.width, pad_token_id=0,
        ).numpy()  # fmt: skip
    inputs = {"pixels": PIXELS, "target": IDS}
    tokens = generate(model, inputs, max_new_tokens=NEW, end_id=END, strategy=strategy).tokens
    tokens = tokens[:, IDS.shape[1] :]
    assert len({tuple(row) for row in tokens.tolist()}) == 3
    np.testing.assert_array_equal(tokens[:, : expected.shape[1]], expected)
    assert not tokens[:, expected.shape[1] :].any()
