"""Folders of NomicBERT and GTE as they are on the hub: fields and prefixes of the authors' code."""

import json

import numpy as np
import pytest
from compare import to_numpy
from families import small_model
from keras_weights import randomize
from safetensors.numpy import load_file, save_file

from keras_tfm import checkpoints, models

# As in nomic-embed-text, in other sizes: transformers reads none of these, but its defaults.
FIELDS = {
    "activation_function": "swiglu", "architectures": ["NomicBertModel"], "attn_pdrop": 0.0,
    "causal": False, "embd_pdrop": 0.0, "layer_norm_epsilon": 1e-6, "mlp_fc1_bias": False,
    "mlp_fc2_bias": False, "model_type": "nomic_bert", "n_embd": 12, "n_head": 3, "n_inner": 7,
    "n_layer": 2, "n_positions": 19, "parallel_block": False, "prenorm": False,
    "qkv_proj_bias": False, "resid_pdrop": 0.0, "rotary_emb_base": 50, "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "rotary_scaling_factor": None,
    "scale_attn_weights": True, "type_vocab_size": 2, "use_rms_norm": False, "vocab_size": 31,
}  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A small model, and its folder."""
    folder = tmp_path_factory.mktemp("nomic_bert")
    model = models.nomic_bert(
        31, dim=12, num_layers=2, num_heads=3, intermediate_dim=7, layer_norm_epsilon=1e-6,
        rope_theta=50.0, max_length=19,
    )  # fmt: skip
    checkpoints.save_huggingface(randomize(model), folder)
    return model, folder


def load(saved, **changes):
    """The model in the folder, with Nomic's fields."""
    _, folder = saved
    (folder / "config.json").write_text(json.dumps({**FIELDS, **changes}))
    return checkpoints.load_huggingface(folder)


def features(model):
    tokens = np.array([[2, 7, 8, 9, 3], [2, 4, 3, 0, 0]], "int32")
    return to_numpy(model({"tokens": tokens, "segments": np.ones_like(tokens)}))


def test_its_own_fields_and_prefix(saved):
    model, folder = saved
    file = folder / "model.safetensors"
    save_file({f"bert.{name}": x for name, x in load_file(file).items()}, file)
    loaded = load(saved)
    assert loaded.arguments["max_length"] == 19
    np.testing.assert_array_equal(features(loaded), features(model))


def test_fields_of_transformers_come_first(saved):
    own = {"n_layer": 5, "activation_function": "gelu"}
    loaded = load(saved, **own, num_hidden_layers=2, hidden_act="relu")
    assert loaded.arguments["num_layers"] == 2
    assert loaded.arguments["activation"].__name__ == "relu"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("activation_function", "gelu"),  # of a network without a gate
        ("embd_pdrop", 0.1),
        ("num_experts", 8),  # nomic-embed-text-v2-moe
        ("prenorm", True),
        ("qkv_proj_bias", True),
        ("rotary_emb_fraction", 0.5),
        ("rotary_scaling_factor", 2),
    ],
)
def test_what_is_not_supported_is_named(field, value, saved):
    with pytest.raises(ValueError, match=f"config.json: {field} must be .*, got '?{value}"):
        load(saved, **{field: value})


def test_the_prefix_of_gte(tmp_path):
    """And a model without segments, as gte-base-en."""
    model = randomize(small_model("gte", num_segments=0))
    checkpoints.save_huggingface(model, tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({f"new.{name}": x for name, x in load_file(file).items()}, file)
    tokens = np.array([[2, 7, 8, 9, 3], [2, 4, 3, 0, 0]], "int32")
    loaded = checkpoints.load_huggingface(tmp_path)
    np.testing.assert_array_equal(*(to_numpy(x({"tokens": tokens})) for x in (loaded, model)))


def test_the_folders_of_the_authors_of_gte(tmp_path):
    """Their model type, class and prefix, and angles as in kexue.fm/archives/9706."""
    model = randomize(small_model("gte"))
    checkpoints.save_huggingface(model, tmp_path)
    file, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    save_file({f"new.{name}": x for name, x in load_file(file).items()}, file)
    fields = json.loads(config.read_text())
    factor, theta, dim = 8.0, 20000.0, fields["head_dim"]
    own = {
        "model_type": "new", "architectures": ["NewModel"], "rope_theta": theta, "pack_qkv": True,
        "rope_parameters": None, "position_embedding_type": "rope",
        "rope_scaling": {"type": "ntk", "factor": factor},
    }  # fmt: skip
    config.write_text(json.dumps({**fields, **own}))
    given = checkpoints.load_huggingface(tmp_path).arguments
    i = np.arange(dim // 2)
    expected = (theta * factor) ** (-2 * i / dim) / factor ** (2 / dim)
    found = given["rope_theta"] ** (-2 * i / dim) / given["rope_scaling"].factor
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    for value in (
        {"rope_scaling": {"type": "ntk", "factor": 8.0, "mixed_b": 0.3}},
        {"rope_scaling": {"type": "ntk", "factor": 0.5}},
        {"position_embedding_type": "absolute"},
        {"pack_qkv": False},
    ):
        config.write_text(json.dumps({**fields, **own, **value}))
        with pytest.raises(ValueError, match=r"mixed_b|factor of|position_emb|pack_qkv"):
            checkpoints.load_huggingface(tmp_path)


@pytest.mark.parametrize(
    ("model_type", "options", "message"),
    [
        ("nomic_bert", {"feed_forward_bias": True}, "feed_forward_bias must be False"),
        ("nomic_bert", {"activation_dropout": 0.1}, "activation_dropout must be 0.0"),
        ("nomic_bert", {"num_segments": 0}, "num_segments must be at least 1"),
        ("gte", {"feed_forward_bias": True}, r"feed_forward_bias must be \['outer'\]"),
        ("gte", {"activation_dropout": 0.1}, "activation_dropout must be 0.0"),
    ],
)
def test_what_transformers_does_not_have_is_not_saved(model_type, options, message, tmp_path):
    model = small_model(model_type, **options)
    with pytest.raises(ValueError, match=f"{message}.* to be saved as {model_type}"):
        checkpoints.save_huggingface(model, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
