"""Files of decoder-only families: verified in float32 and int8, and run."""

import itertools

import numpy as np
import pytest
from execution import tensorflow_only
from keras_weights import randomize

from keras_tfm import models, runtime
from keras_tfm.export import export_tflite
from keras_tfm.generation import generate

# Wide enough for int8, which leaves small weights in float32.
SIZES = {"dim": 36, "num_layers": 2, "num_heads": 6, "intermediate_dim": 41, "max_length": 12}
GROUPED = {**SIZES, "head_dim": 8, "num_key_value_heads": 2}
FAMILIES = {
    "gemma": lambda: models.gemma(67, **GROUPED, tie_output=False),
    "gemma2": lambda: models.gemma(
        67, **GROUPED, post_norm=True, windows=[3, None], query_pre_attention_scalar=3,
        attention_logit_soft_cap=1.5, final_logit_soft_cap=4.0,
    ),
    "gemma3": lambda: models.gemma(
        67, **GROUPED, post_norm=True, query_key_norm=True, windows=[3, None],
        local_rope_theta=20.0,
    ),
    "olmo2": lambda: models.olmo2(67, **SIZES, num_key_value_heads=2),
    "gpt_neo": lambda: models.gpt(
        67, **SIZES, dropout=0.0, windows=[None, 3], attention_bias=["output"],
        scale_scores=False,
    ),
}  # fmt: skip
FAST = {("olmo2", "int8")}
# Seeds for which the generated tokens vary.
SEEDS = {"gemma2": 37, "olmo2": 6}
# One by default: tests/models/test_contract.py exports others in float32.
CASES = [
    pytest.param(family, preset, marks=[pytest.mark.slow] * ((family, preset) not in FAST))
    for family, preset in itertools.product(FAMILIES, ["float32", "int8"])
]
LENGTH = 12
PROMPT = np.array([[5, 6, 7, 8, 9]], "int32")


@tensorflow_only
@pytest.mark.parametrize(("family", "preset"), CASES)
def test_a_file_is_verified_and_generates(family, preset, tmp_path):
    """The prompt is longer than the windows, and the text longer than the prompt."""
    model = randomize(FAMILIES[family](), seed=SEEDS.get(family, 0))
    report = export_tflite(
        model, tmp_path / "x.tflite", ["predict", "generate"], quantization=preset,
        source_length=9, prompt_length=5, max_length=LENGTH,
    )  # fmt: skip
    assert not report.verification.failures
    errors = [x.relative_error for x in report.verification.checks]
    tokens = runtime.load(report.path).generate(PROMPT).tokens
    assert tokens.shape == (1, LENGTH)
    if preset == "float32":
        assert max(errors) < 1e-4
        expected = np.asarray(generate(model, PROMPT, LENGTH).tokens)
        assert len(set(expected[0, 5:])) > 2
        np.testing.assert_array_equal(tokens, expected)
    else:
        assert min(errors) > 1e-4  # weights are rounded
