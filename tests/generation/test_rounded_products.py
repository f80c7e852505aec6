"""`check_stepping` with products of 10 bits (TF32) and of 7 (bfloat16), as on GPUs and TPUs."""

import keras
import numpy as np
import pytest
from compare import assert_best
from grids import first_of
from mixers import MIXERS, OwnConvolution, decoder, refusal, translator
from rounded_products import rounded_products
from small_models import DIM, encoder_decoder, randomize

from keras_tfm import generation, models
from keras_tfm.generation import check_stepping
from keras_tfm.matmul_precision import full_precision, product_rounding

pytestmark = pytest.mark.skipif(
    keras.backend.backend() == "torch", reason="PyTorch computes float32 products in float32"
)
SIZES = {"dim": 64, "num_layers": 2, "num_heads": 4, "intermediate_dim": 256}
BUILDERS = {
    "gpt": lambda size, **sizes: models.gpt(size, max_length=64, **sizes),
    "llama": models.llama,
    "gemma": models.gemma,
    "transformer": models.transformer,
}


@pytest.fixture(params=[pytest.param(10, marks=pytest.mark.slow), 7])
def bits(request):
    with rounded_products(request.param):
        yield request.param


def test_the_rounding_of_products_is_measured(bits):
    # Half a unit in the last place; 1 + 2^-(bits + 1) lies in the middle and is rounded up.
    np.testing.assert_allclose(product_rounding(), 2.0 ** -(bits + 1), rtol=2.0**-bits)


def test_float32_products_are_not_rounded():
    assert product_rounding() < 1e-6
    with full_precision():
        assert product_rounding() < 1e-6


@pytest.mark.parametrize(
    "builder",
    [
        pytest.param(x, marks=[pytest.mark.slow] * (x not in ("transformer", "llama")))
        for x in BUILDERS
    ],
)
def test_models_are_stepped(builder, bits):
    keras.utils.set_random_seed(0)
    model = randomize(BUILDERS[builder](500, **SIZES), seed=0)
    check_stepping(model, length=16)


def test_a_model_generates(bits):
    """Tokens of the best logits of a full pass, which rounds other sums."""
    model = randomize(BUILDERS["gpt"](500, **SIZES), seed=0)
    prompt = np.arange(1, 17)[np.newaxis]
    tokens = generation.generate(model, prompt, max_new_tokens=3, end_id=None).tokens
    np.testing.assert_array_equal(tokens[:, :16], prompt)
    assert_best(model(tokens[:, :-1])[:, 15:], tokens[:, 16:], 4 * 2.0**-bits)


def test_sharp_attention_is_stepped(bits):
    """Large scores amplify the rounding of queries and keys: 7 times that of one product."""
    model = BUILDERS["gpt"](500, **{**SIZES, "dim": 128, "intermediate_dim": 512})
    generator = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(np.array(weight) + generator.normal(0, 0.5, weight.shape))
    check_stepping(model, length=16)


@pytest.mark.parametrize(
    "mixer",
    [
        pytest.param(x, marks=[pytest.mark.slow] * (x not in ("conv_causal", "lstm", "both_ways")))
        for x in MIXERS
    ],
)
def test_mixers_of_positions_are_named(mixer, bits):
    layer = MIXERS[mixer]()
    assert refusal(decoder(layer)) == "mixer"


@pytest.mark.parametrize("mixer", first_of(["bidirectional", "conv_causal"]))
def test_mixers_of_positions_are_named_in_a_translator(mixer, bits):
    layer = MIXERS[mixer]()
    assert refusal(translator(lambda x, context: layer(x))) == "mixer"


@pytest.mark.parametrize("share", [0.1, 0.03])
def test_a_small_share_of_another_position_is_refused(share, bits):
    """x_t + share x_(t-1): more than the products' rounding, 0.0005 and 0.004."""
    layer = OwnConvolution(DIM, 2, padding="causal", use_bias=False, name="mixer")
    model = decoder(layer)
    kernel = np.stack([share * np.eye(DIM), np.eye(DIM)]).astype("float32")
    layer.set_weights([kernel])
    assert refusal(model) == "mixer"


@pytest.mark.slow
@pytest.mark.parametrize("builder", ["gpt", "llama"])
def test_a_model_of_twelve_layers_is_stepped(builder, bits):
    sizes = {"dim": 768, "num_layers": 12, "num_heads": 12, "intermediate_dim": 3072}
    model = BUILDERS[builder](32_000, **sizes)
    check_stepping(model, length=16)


def test_half_precision_is_still_stepped(bits):
    check_stepping(encoder_decoder(dtype="mixed_bfloat16"))
