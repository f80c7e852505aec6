"""Fields of rotary positions: which one counts, which change nothing, which are refused."""

import json

import pytest

from keras_tfm import layers, models
from keras_tfm.checkpoints import save_huggingface
from keras_tfm.checkpoints.config import Config
from keras_tfm.checkpoints.huggingface import FAMILIES
from keras_tfm.checkpoints.names import Named

FULL, SLIDING = "full_attention", "sliding_attention"
FAMILIES_OF_ALL = ["llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2"]
LINEAR = {"rope_type": "linear", "factor": 3.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 9.0]}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}


def rope_of(tmp_path, model_type="llama", **fields):
    """The base, the scaling, and Gemma 3's second base, as the builder gets them."""
    config = {"model_type": model_type, "max_position_embeddings": 32, **fields}
    (tmp_path / "config.json").write_text(json.dumps(config))
    family = FAMILIES[model_type]
    found = family.arguments(Config(tmp_path), Named({}, family.names))
    names = ("rope_theta", "rope_scaling", "local_rope_theta")
    return tuple(found[x] for x in names if x in found)


@pytest.mark.parametrize("model_type", FAMILIES_OF_ALL)
def test_rope_scaling_goes_before_rope_parameters(model_type, tmp_path):
    """As in transformers, version 5; version 4 does not know the second."""
    both = {"rope_parameters": PLAIN, "rope_scaling": LINEAR}
    assert rope_of(tmp_path, model_type, **both) == (10000.0, layers.LinearScaling(3.0))
    both = {"rope_parameters": {**YARN, "rope_theta": 50.0}, "rope_scaling": {}}
    assert rope_of(tmp_path, model_type, **both) == (50.0, layers.YaRNScaling(4.0, 8))


def test_a_base_that_is_replaced_is_told(tmp_path):
    both = {"rope_parameters": {**PLAIN, "rope_theta": 1e6}, "rope_scaling": LINEAR}
    with pytest.warns(UserWarning, match="rope_theta is 10000.0 and not 1000000.0"):
        assert rope_of(tmp_path, "qwen3", **both)[0] == 10000.0
    assert rope_of(tmp_path, "qwen3", **both, rope_theta=1e6)[0] == 1e6
    assert rope_of(tmp_path, rope_parameters=LINEAR, rope_theta=7.0)[0] == 7.0


def test_both_bases_of_gemma3(tmp_path):
    older = {"rope_theta": 99.0, "rope_local_base_freq": 20.0, "rope_scaling": LINEAR}
    expected = (99.0, layers.LinearScaling(3.0), 20.0)
    assert rope_of(tmp_path, "gemma3_text", **older) == expected
    newer = {FULL: {**LINEAR, "rope_theta": 99.0}, SLIDING: {**PLAIN, "rope_theta": 20.0}}
    assert rope_of(tmp_path, "gemma3_text", rope_parameters=newer) == expected
    # A scaling beside them is for blocks without a window, and a base elsewhere is a default.
    newer = {FULL: {"rope_theta": 99.0}, SLIDING: {"rope_type": "default"}}
    both = {"rope_parameters": newer, "rope_scaling": LINEAR, "rope_local_base_freq": 20.0}
    assert rope_of(tmp_path, "gemma3_text", **both, rope_theta=1.5) == expected
    assert rope_of(tmp_path, "gemma3_text") == (1e6, None, 1e4)


def test_a_scaling_of_factor_1_is_none(tmp_path):
    """As KerasHub writes it for both kinds of blocks of Gemma 3."""
    one = {"rope_type": "linear", "factor": 1.0}
    by_type = {FULL: {**one, "rope_theta": 1e6}, SLIDING: {**one, "rope_theta": 1e4}}
    assert rope_of(tmp_path, "gemma3_text", rope_parameters=by_type) == (1e6, None, 1e4)
    for rope in (one, {**YARN, "factor": 1}, {**LLAMA3, "factor": 1.0}, {"factor": 1.0}):
        assert rope_of(tmp_path, rope_parameters=rope) == (10000.0, None)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "factor": None, "original_max_position_embeddings": 8},
        {"rope_type": "default", "partial_rotary_factor": 1.0},
        {"type": "default"},
    ],
)
def test_fields_that_change_nothing(rope, tmp_path):
    assert rope_of(tmp_path, rope_parameters=rope) == (10000.0, None)
    assert rope_of(tmp_path, rope_scaling=rope, partial_rotary_factor=1.0) == (10000.0, None)


def test_every_field_of_longrope(tmp_path):
    """Without a factor: how many times longer than in training the positions are."""

    def scaling_of(length=None, **fields):
        more = {} if length is None else {"original_max_position_embeddings": length}
        return rope_of(tmp_path, rope_scaling={**LONG, **fields}, **more)[1]

    known = {"short_factors": [1.0, 1.5], "long_factors": [2.0, 9.0]}
    assert scaling_of(8) == layers.LongRoPEScaling(4.0, 8, **known)
    assert scaling_of(8, factor=3.0) == layers.LongRoPEScaling(3.0, 8, **known)
    assert scaling_of(64).magnitude == 1.0
    assert scaling_of(8, attention_factor=1.5).magnitude == 1.5
    assert rope_of(
        tmp_path,
        rope_scaling={"type": "su", "short_factor": [1.0, 1.5], "long_factor": [2.0, 9.0]},
        original_max_position_embeddings=8,
    )[1] == scaling_of(8)


def test_every_field_of_yarn(tmp_path):
    def scaling_of(**fields):
        return rope_of(tmp_path, rope_scaling={**YARN, **fields})[1]

    assert scaling_of(beta_fast=16, beta_slow=None) == layers.YaRNScaling(4.0, 8, beta_fast=16)
    assert scaling_of(attention_factor=1.5).magnitude == 1.5
    assert not scaling_of(truncate=False).truncate
    # 0.1 ln 4 + 1 = 1.138629; DeepSeek: (0.07 ln 4 + 1) / (0.05 ln 4 + 1) = 1.097041 / 1.069315.
    assert scaling_of().magnitude == pytest.approx(1.138629, abs=1e-6)
    both = {"mscale": 0.7, "mscale_all_dim": 0.5}
    assert scaling_of(**both).magnitude == pytest.approx(1.025929, abs=1e-6)
    assert scaling_of(mscale=0.7).magnitude == pytest.approx(1.138629, abs=1e-6)
    assert scaling_of(**both, attention_factor=2.0).magnitude == 2.0


def test_the_length_in_training(tmp_path):
    """The scaling's own, or that of the model, which a field beside the scaling overrides."""
    without = {"rope_type": "yarn", "factor": 4.0}
    assert rope_of(tmp_path, rope_scaling=without)[1].original_length == 32
    assert rope_of(tmp_path, rope_scaling=LLAMA3)[1].original_length == 32
    beside = {"rope_scaling": YARN, "original_max_position_embeddings": 16}
    assert rope_of(tmp_path, **beside)[1].original_length == 16


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type must be one of"),
        (
            {"rope_scaling": {"type": "longrope", "factor": 2.0}},
            "rope_scaling must be of the .*short",
        ),
        ({"rope_scaling": {**LONG, "short_factor": [0.0]}}, "rope_scaling must be .*each of short"),
        ({"rope_scaling": {**LINEAR, "factor": 0.5}}, "rope_scaling must be .*factor must be at l"),
        ({"rope_scaling": {"factor": 2.0}}, "rope_scaling must be without a factor"),
        ({"rope_parameters": {**PLAIN, "sections": [1]}}, "rope_parameters must be without"),
        ({"rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": "x"}}, "rope_scaling must be"),
        ({"rope_scaling": {**LINEAR, "partial_rotary_factor": 0.5}}, "rope_scaling must be of the"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1.0, got 0.5"),
        ({"rope_scaling": [2.0]}, "rope_scaling must be a dictionary"),
    ],
    ids=lambda x: "" if isinstance(x, dict) else None,
)
def test_what_is_not_applied_is_refused_in_one_line(fields, message, tmp_path):
    with pytest.raises(ValueError, match=rf"config\.json: {message}") as error:
        rope_of(tmp_path, **fields)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "scaling",
    [
        None,
        layers.LinearScaling(3.0),
        layers.Llama3Scaling(4.0, 16),
        layers.YaRNScaling(4.0, 8),
        layers.YaRNScaling(4.0, 8, 16.0, 0.5, attention_factor=1.5, truncate=False),
    ],
    ids=["none", "linear", "llama3", "yarn", "yarn in full"],
)
def test_folders_have_both_forms(scaling, tmp_path):
    """That of version 4 alone gives the same model, as both together do."""
    model = models.llama(
        11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, rope_theta=50.0,
        rope_scaling=scaling,
    )  # fmt: skip
    save_huggingface(model, tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    assert ("rope_scaling" in fields) == (scaling is not None)
    assert rope_of(tmp_path, **fields) == (50.0, scaling)
    for name in ("rope_parameters", "rope_scaling"):
        other = {key: x for key, x in fields.items() if key != name}
        if scaling is None or name != "rope_parameters" or "rope_scaling" in other:
            assert rope_of(tmp_path, **other) == (50.0, scaling)


def test_folders_of_gemma3_have_both_bases(tmp_path):
    model = models.gemma(
        11, dim=8, num_layers=2, num_heads=2, head_dim=4, intermediate_dim=16, post_norm=True,
        query_key_norm=True, windows=[3, None], rope_theta=99.0, local_rope_theta=20.0,
        rope_scaling=layers.LinearScaling(3.0),
    )  # fmt: skip
    save_huggingface(model, tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    older = {"rope_theta": 99.0, "rope_local_base_freq": 20.0, "rope_scaling": LINEAR}
    assert {name: fields[name] for name in older} == older
    assert rope_of(tmp_path, **fields) == (99.0, layers.LinearScaling(3.0), 20.0)
    del fields["rope_parameters"]
    assert rope_of(tmp_path, **fields) == (99.0, layers.LinearScaling(3.0), 20.0)
