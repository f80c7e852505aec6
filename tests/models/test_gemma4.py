"""Gemma 4: blocks without a cache of their own, int8 caches, odd folders, what is refused."""

import json

import numpy as np
import pytest
from compare import assert_close, to_numpy
from execution import tensorflow_only
from families import small_model
from keras_weights import randomize
from safetensors.numpy import load_file, save_file

from keras_tfm import checkpoints, generation, layers, models

PROMPTS = [[5, 6, 7, 8, 9], [11, 12, 13]]


def small(**options):
    model = randomize(small_model("gemma4_text", **options), seed=3)
    for x in model.get_layer("embedding").weights:
        x.assign(0.2 * x)  # with large ones a decoder repeats its last token
    return model


def test_shared_blocks_have_no_cache():
    """Five blocks, of which the last three share; the blocks' heads differ in width."""
    model = small()
    stepped = generation.SteppedModel(model)
    with layers.DecodingScope(length=9) as scope:
        stepped.step({}, np.array([[5, 6, 7]], "int32"))
    shapes = [tuple(entry["value"].shape) for entry in scope.cache.values()]
    assert shapes == [(1, 1, 9, 8), (1, 2, 9, 12)]
    kernels = {x.path for x in model.weights if "query_key_value" in x.path or "/query/" in x.path}
    assert len(kernels) == 5
    assert tuple(model.get_layer("decoder_1").self_attention.query_key_value.kernel.shape) == (
        12,
        2 * 12 + 2 * 12,  # keys are values
    )


@pytest.mark.parametrize(
    "strategy", [None, pytest.param(generation.Beam(3), marks=pytest.mark.slow)]
)
def test_prompts_of_several_lengths(strategy):
    model = small()
    together = np.asarray(generation.generate(model, PROMPTS, 12, strategy=strategy).tokens)
    alone = np.asarray(generation.generate(model, PROMPTS[1:], 12, strategy=strategy).tokens)
    np.testing.assert_array_equal(together[1:], alone)
    assert len(np.unique(together[:, 5:])) > 3


@tensorflow_only
def test_its_file_has_int8_caches_of_two_blocks(tmp_path):
    from keras_tfm import runtime
    from keras_tfm.export import export_tflite

    model = small(num_layers=3, windows=[4, None, 4], num_shared_layers=1)
    report = export_tflite(
        model, tmp_path / "x.tflite", ["prefill", "decode"], cache="int8", prompt_length=5,
        max_length=12,
    )  # fmt: skip
    caches = report.signatures["decode"]["inputs"]
    assert sum(name.endswith("key_scale") for name in caches) == 2
    errors = [x.relative_error for x in report.verification.checks]
    assert not report.verification.failures and max(errors) < 0.3
    expected = np.asarray(generation.generate(model, PROMPTS[:1], 12).tokens)
    found = runtime.load(report.path).generate(np.array(PROMPTS[:1], "int32")).tokens
    assert np.mean(found == expected) > 0.7


def edited(tmp_path, changed, tensors=()):
    """A folder of the small model with other fields, and with more tensors."""
    model = small()
    checkpoints.save_huggingface(model, tmp_path, end_id=None)
    file, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    fields = {**json.loads(file.read_text()), **changed}
    file.write_text(json.dumps({key: x for key, x in fields.items() if x != "removed"}))
    arrays = load_file(weights)
    save_file({**arrays, **{name: np.ones((3, 2), "float32") for name in tensors}}, weights)
    return model


HEADS = {"head_dim": 12, "num_key_value_heads": 2}


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {
            "global_head_dim": "removed",
            "num_global_key_value_heads": "removed",
            "per_layer_config": {"01": HEADS, "4": HEADS},
        },
    ],
    ids=["tensors that nothing reads", "per_layer_config"],
)
def test_other_folders_of_the_same_model(changed, tmp_path):
    """Releases have keys and values of shared blocks, and transformers writes blocks' fields."""
    unread = [
        f"model.layers.{i}.self_attn.{x}.weight" for i in (2, 4) for x in ("k_proj", "v_proj")
    ]
    model = edited(tmp_path, changed, unread)
    again = checkpoints.load_huggingface(tmp_path)
    ids = np.array([[5, 6, 7, 8, 9, 10]], "int32")
    assert_close(to_numpy(again(ids)), to_numpy(model(ids)), 1e-6)
    assert again.arguments == model.arguments


@pytest.mark.parametrize(
    ("changed", "tensors", "message"),
    [
        ({"enable_moe_block": True}, (), "enable_moe_block must be False, got True"),
        ({"use_bidirectional_attention": "all"}, (), "use_bidirectional_attention must be 'vis"),
        ({"vocab_size_per_layer_input": 30}, (), r"vocab_size_per_layer_input must be vocab_size"),
        ({"per_layer_config": {"0": HEADS}}, (), "per_layer_config must be"),
        ({"per_layer_config": {"1": HEADS}}, (), "per_layer_config must be"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, (), "rope_scaling must be {}"),
        ({}, ("model.layers.0.self_attn.k_proj2.weight",), "k_proj2.weight"),
    ],
)
def test_what_is_not_supported_is_named(changed, tensors, message, tmp_path):
    edited(tmp_path, changed, tensors)
    with pytest.raises(ValueError, match=message) as caught:
        checkpoints.load_huggingface(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_shared_block_needs_an_earlier_one_of_its_kind():
    sizes = {"dim": 8, "num_layers": 3, "num_heads": 2, "intermediate_dim": 9, "head_dim": 4}
    message = "must leave a block with the window 4 before the last ones, whose keys block 1"
    with pytest.raises(ValueError, match=message):
        models.gemma4(11, **sizes, windows=[None, 4, 4], num_shared_layers=2)
