"""EuroBERT, a Llama without causality: poolings of classifiers, and what is not supported."""

import json

import pytest
from families import small_model

from keras_tfm import checkpoints, models
from keras_tfm.checkpoints.huggingface import FAMILIES
from keras_tfm.layers import YaRNScaling

POOLINGS = {"late": "late", "mean": "mean", "bos": "first"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A classifier."""
    path = tmp_path_factory.mktemp("eurobert")
    checkpoints.save_huggingface(models.sequence_classifier(small_model("eurobert"), 3), path)
    return path


def load(folder, **fields):
    """The model in the folder, with other fields."""
    file = folder / "config.json"
    known = json.loads(file.read_text())
    file.write_text(json.dumps({**known, **fields}))
    try:
        return checkpoints.load_huggingface(folder)
    finally:
        file.write_text(json.dumps(known))


@pytest.mark.parametrize("field", ["classifier_pooling", "clf_pooling"])
def test_poolings_by_both_names_of_the_field(folder, field):
    assert load(folder).head.arguments["pooling"] == "late"
    for name, pooling in POOLINGS.items():
        fields = {"classifier_pooling": None, field: name}
        assert load(folder, **fields).head.arguments["pooling"] == pooling
    with pytest.raises(ValueError, match=r"classifier_pooling must be one of .*, got 'last'"):
        load(folder, **{"classifier_pooling": None, field: "last"})


def test_a_bias_of_the_output_is_not_supported(folder):
    fields = {"architectures": ["EuroBertForMaskedLM"], "mlp_bias": True}
    with pytest.raises(ValueError, match="mlp_bias must be False, got True"):
        load(folder, **fields)


@pytest.mark.parametrize(
    ("options", "pooling", "message"),
    [
        ({}, "last", r"pooling must be one of \['first', 'mean', 'late'\].*, got 'last'"),
        ({"windows": 4}, None, "windows must be None to be saved as eurobert, got 4"),
        ({"classifier_activation": "relu"}, None, "classifier_activation must be 'gelu'"),
        ({"interleaved": True}, None, "interleaved must be False"),
        ({"query_beta": 0.1, "rope_scaling": YaRNScaling(4.0, 8)}, None, "query_beta must be None"),
        ({"query_key_norm": True}, None, "query_key_norm must be False"),
        ({"causal": True}, None, "causal must be False"),
        ({"attention_bias": ["query"]}, None, "attention_bias must be False or True"),
    ],
)
def test_what_transformers_does_not_have_is_not_saved(options, pooling, message, tmp_path):
    model = small_model("eurobert", **options)
    if pooling is not None:
        model = models.sequence_classifier(model, 3, pooling=pooling)
    with pytest.raises(ValueError, match=message):
        checkpoints.save_huggingface(model, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_other_models_have_no_late_pooling():
    with pytest.raises(ValueError, match="pooling must be 'first', 'last' or 'mean', got 'late'"):
        models.sequence_classifier(small_model("llama"), 3, pooling="late")


# The table of sizes in the paper (arXiv:2503.05500): layers, width, heads, groups, inner width.
SIZES = {
    "210m": (12, 768, 12, 12, 3072), "610m": (26, 1152, 18, 6, 4096),
    "2.1b": (32, 2304, 18, 6, 6144),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_sizes_have_as_many_parameters_as_in_transformers(size):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from keras_tfm.models.decoders.llama import SIZES as OURS
    from keras_tfm.models.without_storage import without_storage

    layers, dim, heads, groups, inner = SIZES[size]
    config = transformers.EuroBertConfig(
        num_hidden_layers=layers, hidden_size=dim, num_attention_heads=heads,
        num_key_value_heads=groups, intermediate_size=inner,
    )  # fmt: skip
    with torch.device("meta"):
        theirs = transformers.EuroBertForMaskedLM(config)
    with without_storage():
        model = models.llama(128256, **OURS[f"eurobert-{size}"])
    assert model.count_params() == sum(x.numel() for x in theirs.parameters())
    assert FAMILIES["eurobert"].is_of(model)
