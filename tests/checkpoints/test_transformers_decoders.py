"""Decoder-only families beside transformers itself: logits of its configurations, both ways."""

import json

import numpy as np
import pytest
from compare import assert_close
from grids import one_of_each
from huggingface_cases import run
from live_transformers import made, saved, with_noise

from keras_tfm import checkpoints

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
FACTORS = {
    "embedding_multiplier": 3.0, "attention_multiplier": 0.7, "residual_multiplier": 0.6,
    "logits_scaling": 2.5,
}  # fmt: skip
NOPE = {"no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 3}
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
    ("Olmo2ForCausalLM", {**SIZES, "rms_norm_eps": 0.1}),
    ("Olmo2ForCausalLM", {**SIZES, "tie_word_embeddings": True, "rope_parameters": YARN}),
    ("Olmo2Model", {**SIZES, "num_key_value_heads": None, "attention_bias": True}),
    ("GraniteForCausalLM", {**SIZES, **FACTORS, "rms_norm_eps": 0.1}),
    ("GraniteForCausalLM", {**SIZES, **FACTORS, "tie_word_embeddings": True, "mlp_bias": True}),
    ("GraniteModel", {**SIZES, **FACTORS, "attention_bias": True, "rope_parameters": YARN}),
    ("SmolLM3ForCausalLM", {**SIZES, **NOPE, "rms_norm_eps": 0.1}),
    ("SmolLM3ForCausalLM", {**SIZES, "no_rope_layers": [1, 1, 0], "rope_parameters": YARN}),
    ("SmolLM3ForCausalLM", {**SIZES, "attention_bias": True, "mlp_bias": True, "head_dim": 8}),
    ("SmolLM3Model", {**SIZES, **NOPE, "layer_types": [SLIDING, FULL, FULL]}),
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
    assert_close(run(ours, IDS.astype("int32")), expected, tolerance)


FAST = {name for name, _ in MODELS if name.endswith("ForCausalLM")}


@pytest.mark.parametrize(("name", "options"), one_of_each(MODELS, FAST))
def test_both_ways(name, options, tmp_path):
    theirs, ours = made(name, options, tmp_path / "theirs")
    assert_same(ours, theirs)
    again = saved(ours, type(theirs), tmp_path / "ours")
    assert_same(ours, again)


LABELS = {"id2label": {0: "bad", 1: "good", 2: "dull", 3: "odd"}, "pad_token_id": 3}
GPT2 = {
    "vocab_size": 19, "n_embd": 12, "n_head": 6, "n_layer": 2, "n_inner": 7, "n_positions": 17,
}  # fmt: skip
CLASSIFIERS = [
    ("LlamaForSequenceClassification", SIZES),
    ("MistralForSequenceClassification", {**SIZES, "sliding_window": 4}),
    ("Qwen2ForSequenceClassification", SIZES),
    ("Qwen3ForSequenceClassification", {**SIZES, "head_dim": 4}),
    ("SmolLM3ForSequenceClassification", {**SIZES, **NOPE}),
    ("GemmaForSequenceClassification", {**GEMMA, "head_dim": 8}),
    ("Gemma2ForSequenceClassification", GEMMA2),
    ("Gemma3TextForSequenceClassification", GEMMA3),
    ("GPTNeoForSequenceClassification", NEO),
    ("GPT2ForSequenceClassification", GPT2),
    ("OpenAIGPTForSequenceClassification", {**GPT2, "n_inner": None}),
]
# Padding behind a text, around it, within it, and nowhere.
PADDED = np.array(
    [[5, 6, 7, 8, 3, 3, 3], [3, 3, 5, 6, 7, 8, 3], [9, 3, 3, 9, 10, 0, 3], [4, 5, 6, 7, 8, 9, 10]]
)


def assert_same_classes(ours, theirs):
    real = PADDED != 3
    real[2, 1:3] = True  # between tokens the padding id is a token, as in a tokenizer's rows
    mask = torch.from_numpy(real.astype("int64"))
    with torch.no_grad():
        expected = theirs(torch.from_numpy(PADDED), attention_mask=mask).logits.numpy()
    assert expected.shape == (4, 4)
    assert_close(run(ours, PADDED.astype("int32")), expected, LOGITS)


@pytest.mark.parametrize(
    ("name", "options"), one_of_each(CLASSIFIERS, {CLASSIFIERS[0][0], CLASSIFIERS[8][0]})
)
def test_a_classifier_both_ways(name, options, tmp_path):
    theirs, ours = made(name, {**options, **LABELS}, tmp_path / "theirs")
    assert_same_classes(ours, theirs)
    again = saved(ours, type(theirs), tmp_path / "ours")
    assert_same_classes(ours, again)
    assert again.config.id2label == LABELS["id2label"]
    assert again.config.pad_token_id == 3


def test_a_classifier_without_a_padding_id(tmp_path):
    """The last column counts; transformers refuses several rows."""
    theirs, ours = made("GPT2ForSequenceClassification", GPT2, tmp_path / "theirs")
    again = saved(ours, type(theirs), tmp_path / "ours")
    for model in (theirs, again):
        with torch.no_grad():
            expected = model(torch.from_numpy(PADDED[:1])).logits.numpy()
        assert_close(run(ours, PADDED[:1].astype("int32")), expected, LOGITS)


@pytest.mark.slow
def test_a_classifier_is_found_by_its_tensors(tmp_path):
    name, options = CLASSIFIERS[0]
    theirs = edited(tmp_path, name, {**options, **LABELS}, {"architectures": None})
    assert_same_classes(checkpoints.load_huggingface(tmp_path), theirs)


def edited(tmp_path, name, options, fields):
    """A folder of transformers in which fields of `config.json` are changed, or removed (None)."""
    theirs, _ = made(name, options, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config = {key: x for key, x in {**config, **fields}.items() if fields.get(key, 0) is not None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return theirs


OLDER = {"rope_parameters": None, "layer_types": None}
LFM2 = {
    "vocab_size": 31, "hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 2,
    "num_key_value_heads": 1, "intermediate_size": 20, "block_multiple_of": 8,
    "block_ffn_dim_multiplier": 1.3, "full_attn_idxs": [1], "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 99.0},
}  # fmt: skip
LFM3 = {
    "vocab_size": 31, "hidden_size": 10, "num_hidden_layers": 5, "num_attention_heads": 3,
    "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 13, "sliding_window": 2,
    "conv_bias": True, "pad_token_id": None, "bos_token_id": 1, "eos_token_id": [2, 3],
}  # fmt: skip
QWEN3_5 = {
    "vocab_size": 31, "hidden_size": 12, "intermediate_size": 13, "num_hidden_layers": 4,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 5, "linear_value_head_dim": 3,
    "tie_word_embeddings": True,
}  # fmt: skip
GRANITE4 = {
    "vocab_size": 31, "hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 2,
    "num_key_value_heads": 1, "shared_intermediate_size": 13, "num_local_experts": 0,
    "layer_types": ["mamba", "attention", "mamba"], "mamba_n_heads": 6, "mamba_d_state": 5,
    "mamba_n_groups": 2, "time_step_limit": [0.2, float("inf")],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "options", "fields"),
    [
        pytest.param(
            "Gemma3ForCausalLM",
            {**GEMMA3, "layer_types": [SLIDING, FULL, SLIDING]},
            {
                **OLDER,
                "sliding_window_pattern": 2,
                "rope_theta": 99.0,
                "rope_local_base_freq": 20.0,
                "rope_scaling": {"rope_type": "linear", "factor": 2.0},
            },
            id="gemma3",
        ),
        pytest.param(
            "Gemma2ForCausalLM",
            GEMMA2,
            {**OLDER, "rope_theta": 10000.0, "hidden_act": "gelu_pytorch_tanh"},
            id="gemma2",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "GemmaForCausalLM",
            {**GEMMA, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
            {**OLDER, "rope_theta": 50.0, "hidden_act": "gelu", "hidden_activation": None},
            id="gemma",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "SmolLM3ForCausalLM", {**SIZES, **NOPE}, {**OLDER, "no_rope_layers": None}, id="smollm3"
        ),
        pytest.param(
            "Lfm2ForCausalLM",
            LFM2,
            {
                **OLDER,
                "rope_theta": 99.0,
                "intermediate_size": 7,
                "block_ff_dim": 20,
                "tie_word_embeddings": True,
                "tie_embedding": False,
            },
            id="lfm2",
        ),
        pytest.param(
            "Lfm3ForCausalLM",
            LFM3,
            {**OLDER, "conv_L_cache": None, "norm_eps": None, "rms_norm_eps": 1e-5},
            id="lfm3",
        ),
        pytest.param(
            "GraniteMoeHybridForCausalLM",
            GRANITE4,
            {
                "layer_types": None,
                "layers_block_type": ["mamba", "attention", "mamba"],
                "mamba_d_head": "auto",
                "position_embedding_type": "nope",
                "time_step_limit": [0.2, float("inf")],
            },
            id="granite4",
        ),
    ],
)
def test_fields_of_older_folders(name, options, fields, tmp_path):
    """As transformers reads them, and as the model was made."""
    theirs = edited(tmp_path, name, options, fields)
    ours = checkpoints.load_huggingface(tmp_path)
    assert_same(ours, theirs)
    assert_same(ours, type(theirs).from_pretrained(tmp_path).eval())


LLAMA = ("LlamaForCausalLM", SIZES)
TWO = ("Gemma2ForCausalLM", GEMMA2)
THREE = ("Gemma3ForCausalLM", GEMMA3)
OLD = ("GPTNeoForCausalLM", NEO)
EXAONE = ("Exaone4ForCausalLM", {**SIZES, "sliding_window": 3})
BETA = "llama_4_scaling_beta"
MINISTRAL = ("Ministral3ForCausalLM", {**SIZES, "rope_parameters": {**YARN, BETA: 0.3}})
HYBRID = ("GraniteMoeHybridForCausalLM", GRANITE4)


@pytest.mark.parametrize(
    ("model", "fields", "message"),
    [
        (LLAMA, {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type must be"),
        (LLAMA, {"rope_parameters": {**YARN, "sections": []}}, "rope_parameters must be of the fi"),
        (LLAMA, {"rope_theta": "x", "rope_parameters": None}, "rope_theta must be a positive numb"),
        (LLAMA, {"hidden_act": "mish"}, "hidden_act must be one of"),
        (TWO, {"use_bidirectional_attention": True}, "use_bidirectional_attention must be False"),
        (TWO, {"hidden_act": "relu"}, "hidden_act must be the activation in hidden_activation"),
        (TWO, {"layer_types": ["chunked_attention"]}, "layer_types must be 3 of full_attention"),
        (TWO, {"layer_types": [FULL, SLIDING]}, "layer_types must be 3 of full_attention"),
        (TWO, {"sliding_window": "x"}, "sliding_window must be an integer"),
        (TWO, {"attn_logit_softcapping": "x"}, "attn_logit_softcapping must be a number"),
        (THREE, {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping must be None"),
        (THREE, {"rope_parameters": {"rope_theta": 9.0}}, "must be a dictionary of full_attent"),
        (
            THREE,
            {"rope_parameters": {SLIDING: {"rope_type": "linear", "factor": 2.0}}},
            "rope_parameters must be without scaling in sliding_attention",
        ),
        (
            OLD,
            {"attention_types": [["local", 3]], "attention_layers": None},
            "attention_types must be a list such as",
        ),
        (OLD, {"attention_types": [[["local"], 2]], "attention_layers": None}, "one kind for eac"),
        (OLD, {"attention_layers": ["local"]}, "attention_layers must be"),
        (LLAMA, {"model_type": "no_such_type"}, "model_type must be one of .* got 'no_such_type'"),
        (LLAMA, {"model_type": "qwen3_5_moe_text"}, "model_type must be one of"),
        (("Lfm2ForCausalLM", LFM2), {"layer_types": ["conv"]}, "layer_types must be 3 of full_"),
        (("Lfm2ForCausalLM", LFM2), {"layer_types": None, "full_attn_idxs": "x"}, "full_attn_idx"),
        (
            ("Lfm3ForCausalLM", LFM3),
            {"layer_types": ["mamba"] * 5},
            "layer_types must be 5 of full",
        ),
        (("Lfm3ForCausalLM", LFM3), {"layer_types": [SLIDING]}, "layer_types must be 5 of full_at"),
        (("Lfm3ForCausalLM", LFM3), {"sliding_window": "x"}, "sliding_window must be an integer"),
        (("Lfm3ForCausalLM", LFM3), {"rope_scaling": {"factor": 2.0}}, "rope_scaling must be {}"),
        (("Qwen3_5ForCausalLM", QWEN3_5), {"layer_types": [SLIDING] * 4}, "layer_types must be 4"),
        (
            EXAONE,
            {"layer_types": None, "sliding_window_pattern": "LLG"},
            "sliding_window_pattern mu",
        ),
        (EXAONE, {"layer_types": None, "sliding_window_pattern": 0}, "sliding_window_pattern must"),
        (
            ("Exaone4ForCausalLM", {**SIZES, "sliding_window": None, "layer_types": [FULL] * 3}),
            {"layer_types": [FULL, FULL, SLIDING]},
            "sliding_window must be an integer, for the sliding_attention in layer_types, got None",
        ),
        (MINISTRAL, {"rope_parameters": {**YARN, BETA: -0.1}}, f"{BETA} must be a number from 0"),
        (MINISTRAL, {"rope_parameters": {**YARN, BETA: "x"}}, f"{BETA} must be a number from 0"),
        (MINISTRAL, {"rope_parameters": {BETA: 0.1}}, f"{BETA} must be 0 without yarn or anothe"),
        (MINISTRAL, {"rope_parameters": [1]}, "rope_parameters must be a dictionary"),
        (LLAMA, {"rope_parameters": {**YARN, BETA: 0.1}}, "rope_parameters must be of the fields"),
        (
            ("HunYuanDenseV1ForCausalLM", {**SIZES, "head_dim": 4}),
            {"rope_parameters": {"rope_type": "dynamic", "alpha": 0.5}},
            "alpha must be a number of at least 1, got 0.5",
        ),
        (
            ("HunYuanDenseV1ForCausalLM", {**SIZES, "head_dim": 4}),
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
            "rope_type must be one of",
        ),
        (
            HYBRID,
            {"num_local_experts": 4, "num_experts_per_tok": 5},
            "num_experts_per_tok must be an integer from 1 to 4, got 5",
        ),
        (HYBRID, {"num_local_experts": None}, "missing in the files: .*block_sparse_moe.router"),
        (HYBRID, {"layer_types": ["mamba"]}, "layer_types must be 3 of full_attention and linear"),
        (HYBRID, {"mamba_d_head": 5}, 'mamba_d_head must be "auto" or 4 for mamba_n_heads, got 5'),
        (HYBRID, {"mamba_n_heads": 5}, "mamba_n_heads must be a divisor of the inner width"),
        (HYBRID, {"time_step_limit": [0.5, 0.1]}, "time_step_limit must be the least and the larg"),
        (HYBRID, {"time_step_limit": 0.1}, "time_step_limit must be the least and the largest"),
    ],
    ids=lambda x: "" if not isinstance(x, dict) else next(iter(x)),
)
def test_what_is_not_supported_is_named(model, fields, message, tmp_path):
    edited(tmp_path, *model, fields)
    with pytest.raises(ValueError, match=message) as caught:
        checkpoints.load_huggingface(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("version", [4, 5])
def test_the_language_model_of_gemma_3_with_images(version, tmp_path):
    """With the names of the released files, which version 4 of transformers wrote, too."""
    import torch
    import transformers
    from safetensors.numpy import load_file, save_file

    text = {x: y for x, y in GEMMA3.items() if x not in ("model_type", "architectures")}
    vision = {
        "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "image_size": 8, "patch_size": 4,
    }  # fmt: skip
    config = transformers.Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=1, image_token_index=3,
        boi_token_index=4, eoi_token_index=5,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = with_noise(transformers.Gemma3ForConditionalGeneration(config).eval())
    theirs.save_pretrained(tmp_path)
    if version == 4:
        tensors = load_file(tmp_path / "model.safetensors")
        old = {"model.language_model.": "language_model.model.", "model.": ""}
        for new, before in old.items():
            tensors = {
                before + x.removeprefix(new) if x.startswith(new) else x: y
                for x, y in tensors.items()
            }
        assert "language_model.model.norm.weight" in tensors
        save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    ours = checkpoints.load_huggingface(tmp_path, architecture="Gemma3ForCausalLM")
    ids = np.random.default_rng(0).integers(6, GEMMA3["vocab_size"], (2, 9))
    with torch.no_grad():
        expected = theirs(torch.from_numpy(ids)).logits.numpy()
    assert_close(ours(ids), expected, 1e-5)


def test_the_language_model_of_a_folder_that_reads_images(tmp_path):
    import torch
    import transformers

    rope = {
        "rope_type": "default", "rope_theta": 77.0, "mrope_section": [1, 1, 0],
        "mrope_interleaved": True, "partial_rotary_factor": 0.5,
    }  # fmt: skip
    vision = {
        "depth": 1, "hidden_size": 8, "intermediate_size": 8, "num_heads": 2,
        "out_hidden_size": 12, "num_position_embeddings": 16, "patch_size": 4,
    }  # fmt: skip
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    config = transformers.Qwen3_5Config(
        text_config={**QWEN3_5, "rope_parameters": rope}, vision_config=vision,
        tie_word_embeddings=True, **{name: 3 + i for i, name in enumerate(names)},
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = with_noise(transformers.Qwen3_5ForConditionalGeneration(config).eval())
    theirs.save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match='must be "qwen3_5_text": vision_config is of im'
    ) as caught:
        checkpoints.load_huggingface(tmp_path)
    assert "\n" not in str(caught.value)
    ours = checkpoints.load_huggingface(tmp_path, architecture="Qwen3_5ForCausalLM")
    ids = np.random.default_rng(0).integers(7, 31, (2, 9))
    with torch.no_grad():
        expected = theirs(torch.from_numpy(ids)).logits.numpy()
    assert_close(ours(ids), expected, 1e-5)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("ministral3", "Ministral3ForCausalLM"),
        pytest.param("mistral", "MistralForCausalLM", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("tied", [True, False])
def test_the_language_model_of_mistral_3_with_images(kind, name, tied, tmp_path):
    """The folder says beside the part whether the output is tied, and how it is quantized."""
    text = {**SIZES, "model_type": kind, "head_dim": 4, "bos_token_id": None, "eos_token_id": None}
    if kind == "ministral3":
        text["rope_parameters"] = {**YARN, BETA: 0.3}
    vision = {
        "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "head_dim": 4, "image_size": 8, "patch_size": 4,
    }  # fmt: skip
    config = transformers.Mistral3Config(
        text_config=text, vision_config=vision, image_token_index=3, tie_word_embeddings=tied
    )
    torch.manual_seed(0)
    theirs = with_noise(transformers.Mistral3ForConditionalGeneration(config).eval())
    theirs.save_pretrained(tmp_path)
    ours = checkpoints.load_huggingface(tmp_path, architecture=name)
    assert ours.arguments["tie_output"] is tied
    ids = np.random.default_rng(0).integers(4, 19, (2, 11))
    with torch.no_grad():
        expected = theirs(torch.from_numpy(ids)).logits.numpy()
    assert_close(ours(ids), expected, 1e-5)
    file = tmp_path / "config.json"
    fields = json.loads(file.read_text())
    for changed, message in (
        ({"text_config": {**fields["text_config"], "model_type": "llama"}}, "of text_config must"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config must be .* 'fp8'"),
    ):
        file.write_text(json.dumps({**fields, **changed}))
        with pytest.raises(ValueError, match=message) as caught:
            checkpoints.load_huggingface(tmp_path, architecture=name)
        assert "\n" not in str(caught.value)
