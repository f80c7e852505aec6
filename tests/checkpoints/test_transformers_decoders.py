"""Decoder-only families beside transformers itself: logits and generated tokens, both ways."""

import numpy as np
import pytest
from compare import assert_close
from grids import one_of_each
from huggingface_cases import run
from live_transformers import made, saved

from keras_tfm import checkpoints, generation
from keras_tfm.generation import Beam

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# float32, relative to the outputs' size.
LOGITS, FEATURES = 3e-5, 1e-5
SIZES = {
    "vocab_size": 19, "hidden_size": 12, "num_attention_heads": 6, "num_hidden_layers": 3,
    "intermediate_size": 7, "num_key_value_heads": 2, "max_position_embeddings": 32,
    "pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 50.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
}  # fmt: skip
YARN = {
    "rope_type": "yarn",
    "rope_theta": 50.0,
    "factor": 4.0,
    "original_max_position_embeddings": 8,
}
FULL, SLIDING = "full_attention", "sliding_attention"
MODELS = [
    ("LlamaForCausalLM", SIZES),
    ("LlamaForCausalLM", {**SIZES, "tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    ("LlamaForCausalLM", {**SIZES, "attention_bias": True, "mlp_bias": True, "head_dim": 8}),
    ("LlamaForCausalLM", {**SIZES, "rope_parameters": YARN, "rms_norm_eps": 0.1}),
    (
        "LlamaForCausalLM",
        {**SIZES, "rope_parameters": {"rope_type": "linear", "rope_theta": 99.0, "factor": 2.0}},
    ),
    ("LlamaModel", {**SIZES, "hidden_act": "gelu"}),
    ("MistralForCausalLM", {**SIZES, "sliding_window": 4}),
    ("MistralModel", {**SIZES, "sliding_window": None}),
    ("Qwen2ForCausalLM", SIZES),
    ("Qwen2ForCausalLM", {**SIZES, "tie_word_embeddings": True}),
    (
        "Qwen2Model",
        {**SIZES, "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
    ),
    ("Qwen3ForCausalLM", {**SIZES, "head_dim": 4, "rms_norm_eps": 0.1}),
    (
        "Qwen3ForCausalLM",
        {
            **SIZES,
            "head_dim": 4,
            "use_sliding_window": True,
            "sliding_window": 3,
            "layer_types": [SLIDING, FULL, SLIDING],
        },
    ),
]
GEMMA = {**SIZES, "head_dim": 4, "eos_token_id": 2}
GEMMA2 = {
    **GEMMA,
    "query_pre_attn_scalar": 3,
    "sliding_window": 3,
    # Small, so that the caps change every score and logit.
    "attn_logit_softcapping": 1.5,
    "final_logit_softcapping": 4.0,
}
GEMMA3 = {
    **GEMMA,
    "query_pre_attn_scalar": 3,
    "sliding_window": 3,
    "layer_types": [SLIDING, FULL, SLIDING],
    "rope_parameters": {
        FULL: {"rope_type": "linear", "rope_theta": 99.0, "factor": 2.0},
        SLIDING: {"rope_type": "default", "rope_theta": 20.0},
    },
}
NEO = {
    "vocab_size": 19, "hidden_size": 12, "num_heads": 6, "num_layers": 3, "intermediate_size": 7,
    "max_position_embeddings": 17, "window_size": 3, "bos_token_id": 1, "eos_token_id": 2,
    "attention_types": [[["global"], 1], [["local"], 2]],
}  # fmt: skip
MODELS += [
    ("GemmaForCausalLM", {**GEMMA, "head_dim": 8, "rms_norm_eps": 0.1}),
    ("GemmaForCausalLM", {**GEMMA, "tie_word_embeddings": False, "attention_bias": True}),
    ("GemmaModel", {**GEMMA, "hidden_act": "relu", "rope_parameters": YARN}),
    ("Gemma2ForCausalLM", GEMMA2),
    ("Gemma2ForCausalLM", {**GEMMA2, "attn_logit_softcapping": None, "attention_bias": True}),
    ("Gemma2Model", {**GEMMA2, "layer_types": [FULL] * 3, "hidden_activation": "gelu"}),
    ("Gemma3ForCausalLM", GEMMA3),
    ("Gemma3ForCausalLM", {**GEMMA3, "final_logit_softcapping": 4.0, "rms_norm_eps": 0.1}),
    ("Gemma3TextModel", {**GEMMA3, "layer_types": [SLIDING] * 3, "attention_bias": True}),
    ("GPTNeoForCausalLM", NEO),
    ("GPTNeoForCausalLM", {**NEO, "tie_word_embeddings": False, "activation_function": "relu"}),
    ("GPTNeoModel", {**NEO, "attention_types": [[["global"], 3]], "layer_norm_epsilon": 0.1}),
    ("GPTNeoModel", {**NEO, "num_layers": 4, "attention_types": [[["local", "global"], 2]]}),
]
IDS = np.random.default_rng(0).integers(3, 19, (3, 11))


def assert_same(ours, theirs):
    with torch.no_grad():
        output = theirs(input_ids=torch.from_numpy(IDS))
    features = "last_hidden_state" in output
    expected = output["last_hidden_state" if features else "logits"].numpy()
    tolerance = FEATURES if features else LOGITS
    scale = max(1.0, float(np.abs(expected).max()))
    assert_close(run(ours, IDS.astype("int32")), expected, tolerance * scale)


FAST = {name for name, _ in MODELS if name.endswith("ForCausalLM")}


@pytest.mark.parametrize(("name", "options"), one_of_each(MODELS, FAST))
def test_both_ways(name, options, tmp_path):
    theirs, ours = made(name, options, tmp_path / "theirs")
    assert_same(ours, theirs)
    again = saved(ours, type(theirs), tmp_path / "ours")
    assert_same(ours, again)


@pytest.mark.parametrize("index", [1, 6, 8, 12, 13, 16, 19, 22])
@pytest.mark.parametrize("beams", [1, 4])
def test_generated_tokens(index, beams, tmp_path):
    theirs, ours = made(*MODELS[index], tmp_path)
    prompt = IDS[:1, :5]
    with torch.no_grad():
        expected = theirs.generate(
            torch.from_numpy(prompt), max_length=16, num_beams=beams, do_sample=False,
            eos_token_id=None, pad_token_id=0, length_penalty=0.0, early_stopping=False,
        ).numpy()  # fmt: skip
    strategy = None if beams == 1 else Beam(beams, length_penalty=0.0)
    actual = generation.generate(ours, prompt.astype("int32"), max_length=16, strategy=strategy)
    np.testing.assert_array_equal(np.asarray(actual.tokens)[:, : expected.shape[1]], expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type must be one of"),
        ({"rope_parameters": {**YARN, "mscale": 0.7}}, r"rope_parameters must be of the fields"),
        ({"rope_theta": "x", "rope_parameters": None}, "rope_theta must be a positive number"),
        ({"hidden_act": "mish"}, "hidden_act must be one of"),
    ],
)
def test_what_is_not_supported_is_named(options, message, tmp_path):
    import json

    made("LlamaForCausalLM", SIZES, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **options}))
    with pytest.raises(ValueError, match=message) as caught:
        checkpoints.load_huggingface(tmp_path)
    assert "\n" not in str(caught.value)
