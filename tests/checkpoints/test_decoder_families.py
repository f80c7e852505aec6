"""What folders of decoder-only families cannot express, and what a round trip keeps."""

import json

import numpy as np
import pytest
from compare import to_numpy
from grids import first_of
from keras_weights import randomize

from keras_tfm import layers, models
from keras_tfm.checkpoints import load_huggingface, save_huggingface

pytest.importorskip("safetensors")
SMALL = {"dim": 8, "num_layers": 2, "num_heads": 2, "intermediate_dim": 16}
NORMS = {"post_norm": True, "query_key_norm": True}


def gemma(**options):
    return models.gemma(11, **{**SMALL, "head_dim": 4, **options})


def gpt(**options):
    return models.gpt(11, **SMALL, **options)


def gpt_neox(**options):
    return models.gpt_neox(11, **SMALL, rotary_dim=2, **options)


def llama(**options):
    return models.llama(11, **{**SMALL, **options})


def olmo2(**options):
    return models.olmo2(11, **{**SMALL, **options})


YARN = layers.YaRNScaling(2.0, 8)
NEO = {"attention_bias": ["output"], "scale_scores": False, "windows": [None, 3]}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gemma(windows=3), "windows must be None to be saved as Gemma, got 3"),
        (lambda: gemma(final_logit_soft_cap=3.0), "final_logit_soft_cap must be None to be saved"),
        (lambda: gemma(attention_logit_soft_cap=3.0), "attention_logit_soft_cap must be None"),
        (lambda: gemma(query_pre_attention_scalar=3), "query_pre_attention_scalar must be None or"),
        (lambda: gemma(attention_bias=["query"]), "attention_bias must be False or True to be sa"),
        (lambda: gemma(activation="gelu"), "activation must not be gelu to be saved as Gemma"),
        (lambda: gemma(local_rope_theta=9.0), "local_rope_theta must be None to be saved as Gem"),
        (
            lambda: gemma(post_norm=True, local_rope_theta=9.0),
            "must be None to be saved as Gemma 2",
        ),
        (
            lambda: gemma(post_norm=True, num_heads=3),
            r"num_heads must divide dim \(8\) to be saved",
        ),
        (lambda: gemma(post_norm=True, windows=[2, 3]), "a checkpoint has one window for all"),
        (lambda: gemma(post_norm=True, query_pre_attention_scalar=2.5), "must be an integer to be"),
        (lambda: gemma(query_key_norm=True), "post_norm must be True to be saved as Gemma 3, got"),
        (lambda: gemma(**NORMS, attention_logit_soft_cap=3.0), "soft_cap must be None .* Gemma 3"),
        (lambda: gemma(rope_scaling=layers.NTKScaling(2.0)), "rope_scaling must be one of"),
        (lambda: gpt(windows=3), "attention_bias must be .'output'. .* as GPT-Neo, got True"),
        (lambda: gpt(**{**NEO, "scale_scores": True}), "scale_scores must be False to be saved as"),
        (lambda: gpt(normalize_first=False, windows=3), "must be 4 times|windows must be None"),
        (lambda: gpt(position_offset=2), "embedding_dropout must be 0.0 to be saved as OPT"),
        (lambda: gpt(embedding_dim=6), "embedding_dim must be None to be saved as GPT-2, got 6"),
        (lambda: gpt_neox(windows=3), "windows must be None to be saved as GPT-NeoX, got 3"),
        (
            lambda: gpt_neox(parallel="one_residual"),
            "output_bias must be True to be saved as phi, got False",
        ),
        (
            lambda: gpt_neox(num_key_value_heads=1),
            "parallel must be False to be saved as starcoder2, got True",
        ),
        (
            lambda: models.mamba2(11, dim=8, num_layers=1, num_heads=3, head_dim=4, state_dim=4),
            r"a multiple of dim \(8\) to be saved as mamba2, got 12",
        ),
        (
            lambda: llama(windows=[None, 3], attention_bias=True),
            "attention_bias must be False to be saved as ministral, got True",
        ),
        (
            lambda: llama(windows=3, attention_bias=True),
            "attention_bias must be False to be saved as mistral, got True",
        ),
        (lambda: llama(gated=False, windows=3), "windows must be None to be saved as arcee"),
        (
            lambda: llama(gated=False, attention_bias=["query"]),
            "attention_bias must be True or False to be saved as arcee, got",
        ),
        (
            lambda: gpt_neox(gated=True, feed_forward_bias=False, attention_bias=False),
            "parallel must be False or 'one_residual' to be saved as stablelm, got True",
        ),
        (
            lambda: models.gpt_neox(
                11,
                alibi=True,
                parallel=False,
                embedding_norm=True,
                dim=8,
                num_layers=1,
                num_heads=2,
                intermediate_dim=32,
            ),
            "activation must be gelu_tanh to be saved as bloom, got gelu",
        ),
        (
            lambda: gpt_neox(interleaved=True, attention_bias=False, rope_theta=99.0),
            "rope_theta must be 10000.0 to be saved as gptj, got 99.0",
        ),
        (lambda: llama(windows=3, feed_forward_bias=True), "feed_forward_bias must be False to be"),
        (
            lambda: models.lfm2(11, **SMALL, attends=[True, True], windows=[2, 3]),
            r"windows of the blocks with attention must be equal .* as lfm3, got \[2, 3\]",
        ),
        (lambda: llama(num_heads=3, head_dim=4), "num_heads must divide dim .* as llama"),
        (
            lambda: olmo2(head_norm=True, windows=[None, 3]),
            r"global_rotary must be False to be saved as exaone4 .* windows \[None, 3\]",
        ),
        (lambda: olmo2(head_norm=True, attention_bias=True), "attention_bias must be False to be "),
        (lambda: olmo2(global_rotary=False), "global_rotary must be True to be saved as olmo2"),
        (lambda: olmo2(head_dim=6, windows=3), "head_dim must be None or 4 to be saved as olmo3"),
        (
            lambda: llama(interleaved=True, windows=3),
            "windows must be None to be saved as ernie4_5",
        ),
        (
            lambda: llama(interleaved=True, attention_bias=True),
            "attention_bias must be False to be saved as ernie4_5",
        ),
        (
            lambda: llama(query_beta=0.1, rope_scaling=YARN, windows=[None, 3]),
            "all windows must be equal to be saved as ministral3",
        ),
        (
            lambda: llama(query_beta=0.1, rope_scaling=YARN, query_key_norm=True),
            "query_key_norm must be False to be saved as ministral3",
        ),
        (lambda: llama(rotate_first=True), "query_key_norm must be True to be saved as hunyuan_v1"),
        (
            lambda: llama(rope_scaling=layers.NTKScaling(3.0)),
            "rope_scaling must be one of .* to be saved, got NTKScaling",
        ),
    ],
)
def test_what_a_folder_cannot_express_is_refused(make, message, tmp_path):
    with pytest.raises(ValueError, match=message) as error:
        save_huggingface(make(), tmp_path / "new")
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("make", "model_type"),
    [
        (lambda: gemma(rope_scaling=layers.LinearScaling(2.0), rope_theta=9.0), "gemma"),
        pytest.param(
            lambda: gemma(post_norm=True, windows=[3, None]), "gemma2", marks=pytest.mark.slow
        ),
        pytest.param(
            lambda: gemma(post_norm=True, windows=5, attention_logit_soft_cap=2.0),
            "gemma2",
            marks=pytest.mark.slow,
        ),
        (lambda: gemma(**NORMS, windows=[3, None], local_rope_theta=9.0), "gemma3_text"),
        pytest.param(
            lambda: gemma(**NORMS, rope_scaling=layers.LinearScaling(2.0)),
            "gemma3_text",
            marks=pytest.mark.slow,
        ),
        (lambda: gpt(**NEO), "gpt_neo"),
        pytest.param(lambda: gpt(**{**NEO, "windows": None}), "gpt_neo", marks=pytest.mark.slow),
    ],
)
def test_the_configuration_comes_back(make, model_type, tmp_path):
    """And again: the second folder equals the first."""
    model = make()
    save_huggingface(model, tmp_path / "first")
    again = load_huggingface(tmp_path / "first")
    save_huggingface(again, tmp_path / "second")
    first, second = (
        json.loads((tmp_path / name / "config.json").read_text()) for name in ("first", "second")
    )
    assert first == second and first["model_type"] == model_type


def test_scaled_blocks_with_windows_are_told(tmp_path):
    """Version 5 of transformers has them, earlier ones scale the other blocks alone."""
    model = gemma(**NORMS, windows=3, rope_scaling=layers.LinearScaling(2.0))
    with pytest.warns(UserWarning, match="before version 5 does not scale the rotary positions"):
        save_huggingface(model, tmp_path)
    assert load_huggingface(tmp_path).arguments["rope_scaling"] == layers.LinearScaling(2.0)


def test_norms_of_gemma_are_saved_minus_one(tmp_path):
    from safetensors.numpy import load_file

    model = randomize(gemma(**NORMS))
    save_huggingface(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    block = model.blocks[1]
    names = {
        "input_layernorm": block.self_attention_residual.input_norm,
        "post_attention_layernorm": block.self_attention_residual.output_norm,
        "pre_feedforward_layernorm": block.feed_forward_residual.input_norm,
        "post_feedforward_layernorm": block.feed_forward_residual.output_norm,
        "self_attn.q_norm": block.self_attention.query_norm,
        "self_attn.k_norm": block.self_attention.key_norm,
    }
    for name, layer in names.items():
        saved = tensors[f"model.layers.1.{name}.weight"]
        np.testing.assert_array_equal(saved, to_numpy(layer.scale).astype("float32") - 1)


def test_norms_in_bfloat16_come_back_bit_for_bit(tmp_path):
    """As released checkpoints store them: 1 + w is exact in float32 down to |w| = 2^-16."""
    from safetensors.numpy import load_file, save_file

    save_huggingface(gemma(), tmp_path / "first")
    file = tmp_path / "first" / "model.safetensors"
    rng = np.random.default_rng(0)
    tensors = load_file(file)
    for name, x in tensors.items():
        if "norm" in name:
            x = rng.normal(scale=3.0, size=x.shape).astype("float32")
            tensors[name] = (x.view("uint32") & 0xFFFF0000).view("float32")
    save_file(tensors, file, metadata={"format": "pt"})
    save_huggingface(load_huggingface(tmp_path / "first"), tmp_path / "second")
    again = load_file(tmp_path / "second" / "model.safetensors")
    for name, x in tensors.items():
        np.testing.assert_array_equal(again[name], x, err_msg=name)


@pytest.mark.parametrize("make", first_of([gpt, gemma, llama]))
def test_a_classifier_keeps_its_padding_id_and_labels(make, tmp_path):
    model = models.sequence_classifier(make(pad_id=7), 2, labels=["no", "yes"])
    save_huggingface(model, tmp_path)
    again = load_huggingface(tmp_path)
    assert again.arguments["pad_id"] == 7
    assert again.head.arguments["labels"] == ["no", "yes"]
    language_model = make(pad_id=7)
    save_huggingface(language_model, tmp_path)
    assert load_huggingface(tmp_path).arguments["pad_id"] is None
