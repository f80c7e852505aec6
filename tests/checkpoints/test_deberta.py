"""Folders of DeBERTa: v3's names, and what is refused."""

import json
import shutil

import numpy as np
import pytest
from compare import assert_close
from huggingface_cases import run
from keras_weights import randomize
from small_checkpoints import tensors_of, write

from keras_tfm import models
from keras_tfm.checkpoints import load_huggingface, save_huggingface

SMALL = {
    "dim": 10, "num_layers": 2, "num_heads": 2, "intermediate_dim": 7, "max_length": 9,
    "num_buckets": 4,
}  # fmt: skip
TOKENS = {"tokens": np.array([[3, 4, 5, 6], [7, 8, 0, 0]], "int32")}


def model(**options):
    return randomize(models.deberta(13, **{**SMALL, **options}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("deberta") / "folder"
    save_huggingface(model(kernel_size=3), path)
    return path


def changed(folder, tmp_path, drop=(), **fields):
    """A copy of the folder with other fields in its configuration."""
    path = shutil.copytree(folder, tmp_path / "changed")
    config = {**json.loads((path / "config.json").read_text()), **fields}
    for name in drop:
        del config[name]
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_the_masked_language_model_of_v3(tmp_path):
    """Its names, without `legacy`, with the discriminator and a table of positions not in use."""
    masked = models.masked_language_model(model())
    randomize(masked)
    save_huggingface(masked, tmp_path / "folder")
    tensors = {}
    for name, x in tensors_of(tmp_path / "folder").items():
        name = name.replace("cls.predictions.transform.", "lm_predictions.lm_head.")
        tensors[name.replace("cls.predictions.bias", "lm_predictions.lm_head.bias")] = x
    assert sum(name.startswith("lm_predictions.lm_head.") for name in tensors) == 5
    tensors["mask_predictions.dense.weight"] = np.ones((10, 10), "float32")
    tensors["deberta.embeddings.word_embeddings._weight"] = np.ones((19, 10), "float32")
    tensors["deberta.embeddings.position_embeddings.weight"] = np.ones((9, 10), "float32")
    path = changed(tmp_path / "folder", tmp_path, drop=["architectures", "legacy"])
    again = load_huggingface(write(path, tensors))
    assert again.head.kind == "masked_language_model"
    assert_close(run(again, TOKENS), run(masked, TOKENS), 0.0)


def test_a_table_of_positions_is_expected_where_the_configuration_has_one(folder, tmp_path):
    with pytest.raises(ValueError, match=r"missing in the files: .*position_embeddings.weight"):
        load_huggingface(changed(folder, tmp_path, position_biased_input=True))


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "deberta"},
        {"pos_att_type": ["c2p", "p2p"]},
        {"pos_att_type": "c2c|p2c"},
        {"pos_att_type": []},
        {"pos_att_type": 3},
        {"relative_attention": False},
        {"relative_attention": "yes"},
        {"norm_rel_ebd": "rms_norm"},
        {"norm_rel_ebd": "layer_norm|none"},
        {"position_buckets": 1},
        {"position_buckets": 2.5},
        {"max_relative_positions": 3},
        {"conv_kernel_size": 4},
        {"conv_groups": 2},
        {"conv_act": "mish"},
        {"pad_token_id": 10**6},
        {"pooler_hidden_size": 7},
        {"pooler_hidden_act": "mish"},
        {"attention_head_size": 4},
        {"share_att_key": "no"},
        {"embedding_size": 0},
        {"type_vocab_size": -1},
    ],
    ids=str,
)
def test_fields_that_are_not_supported_are_named(folder, tmp_path, fields):
    (name,) = fields
    name = "pos_att_type" if name == "relative_attention" and not fields[name] else name
    with pytest.raises(ValueError, match=rf"config\.json: {name} must be .*got"):
        load_huggingface(changed(folder, tmp_path, **fields))


def test_a_normalisation_without_a_table_is_refused(folder, tmp_path):
    with pytest.raises(ValueError, match='norm_rel_ebd must be "none" without relative_attention'):
        load_huggingface(changed(folder, tmp_path, relative_attention=False, pos_att_type=[]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"share_att_key": False}, r"missing in the files: .*pos_key_proj.weight"),
        ({"position_buckets": -1}, r"of another shape: .*rel_embeddings.weight .*\(18, 10\)"),
        ({"conv_kernel_size": 0}, r"only in the files: .*encoder.conv.conv.weight"),
        ({"conv_kernel_size": 5}, r"of another shape: .*encoder.conv.conv.weight"),
        ({"type_vocab_size": 2}, r"missing in the files: .*token_type_embeddings.weight"),
        ({"embedding_size": 5}, r"missing in the files: .*embed_proj.weight"),
        ({"norm_rel_ebd": "none"}, r"only in the files: .*encoder.LayerNorm.weight"),
    ],
    ids=str,
)
def test_a_configuration_that_contradicts_the_tensors_is_refused(folder, tmp_path, fields, message):
    with pytest.raises(ValueError, match=message):
        load_huggingface(changed(folder, tmp_path, **fields))


def test_pooler_dropout_is_kept(tmp_path):
    classifier = models.sequence_classifier(model(pooler_dropout=0.3), 3, dropout=0.2)
    assert classifier.get_layer("pooler_dropout").rate == 0.3
    save_huggingface(classifier, tmp_path / "folder")
    again = load_huggingface(tmp_path / "folder")
    assert again.arguments["pooler_dropout"] == 0.3
    assert again.head.arguments["dropout"] == 0.2
