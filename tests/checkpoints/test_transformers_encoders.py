"""BERT's successors beside transformers itself: every head, both ways, noise on every weight."""

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
    "vocab_size": 19, "hidden_size": 10, "num_attention_heads": 5, "num_hidden_layers": 3,
    "intermediate_size": 7, "max_position_embeddings": 13,
}  # fmt: skip
DISTILBERT = {
    "vocab_size": 19, "dim": 10, "n_heads": 5, "n_layers": 3, "hidden_dim": 7,
    "max_position_embeddings": 13,
}  # fmt: skip
HEADS = {
    "Model": {},
    "ForMaskedLM": {},
    "ForSequenceClassification": {"num_labels": 4},
    "ForTokenClassification": {"num_labels": 5},
    "ForQuestionAnswering": {},
}
# Two heads of width 6: D differs from F and E. Rows of 13 tokens are longer than the exact half of
# 6 buckets, and than 8 positions.
DEBERTA = {
    **SIZES, "hidden_size": 12, "num_attention_heads": 2, "max_position_embeddings": 17,
    "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 6,
    "max_relative_positions": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
}  # fmt: skip
DEBERTA_OPTIONS = {
    "c2p": {"pos_att_type": ["c2p"]},
    "p2c, own projections": {"pos_att_type": "p2c", "share_att_key": False},
    "own projections": {"share_att_key": False},
    "own projections, c2p": {"share_att_key": False, "pos_att_type": ["c2p"]},
    "odd buckets": {"position_buckets": 7, "max_relative_positions": 6},
    "few buckets": {"position_buckets": 2, "max_relative_positions": 3},
    "no buckets": {"position_buckets": -1},
    "no buckets, every position": {"position_buckets": -1, "max_relative_positions": -1},
    "buckets, every position": {"max_relative_positions": -1},
    "no norm": {"norm_rel_ebd": "none"},
    "no relative positions": {
        "relative_attention": False, "pos_att_type": [], "norm_rel_ebd": "none",
        "position_biased_input": True,
    },
    "absolute positions": {"position_biased_input": True},
    "segments": {"type_vocab_size": 3},
    "narrow embeddings": {"embedding_size": 5, "type_vocab_size": 2, "position_biased_input": True},
    "convolution": {"conv_kernel_size": 3, "conv_act": "gelu"},
    "wide convolution": {"conv_kernel_size": 5, "conv_act": "tanh", "embedding_size": 5},
    "activation": {"hidden_act": "relu", "layer_norm_eps": 0.1},
}  # fmt: skip
# Rows of 8 tokens are longer than the window, 2 to each side; blocks 0 and 2 are global.
MODERNBERT = {
    **SIZES, "hidden_size": 20, "num_hidden_layers": 4, "local_attention": 5, "pad_token_id": 3,
    "rope_parameters": {
        "full_attention": {"rope_theta": 50.0, "rope_type": "default"},
        "sliding_attention": {"rope_theta": 5.0, "rope_type": "default"},
    },
}  # fmt: skip
# Rows are longer than the distance from which on all have one bucket, 128.
MPNET = {**SIZES, "max_position_embeddings": 152}
# Each width is another; two of the three feed-forward networks are stacked below the last.
MOBILEBERT = {
    **SIZES, "hidden_size": 12, "embedding_size": 6, "intra_bottleneck_size": 10,
    "num_feedforward_networks": 3,
}  # fmt: skip
MOBILEBERT_OPTIONS = {
    "layer norms": {"normalization_type": "layer_norm", "layer_norm_eps": 0.1},
    "queries of the bottleneck": {"use_bottleneck_attention": True},
    "queries of the bottleneck, unshared": {
        "use_bottleneck_attention": True, "key_query_shared_bottleneck": False,
    },
    "one network": {"num_feedforward_networks": 1, "hidden_act": "gelu"},
    "equal widths": {"intra_bottleneck_size": 10, "hidden_size": 10},
    "no bottleneck": {
        "use_bottleneck": False, "hidden_size": 10, "intra_bottleneck_size": 128,
    },
    "no bottleneck, layer norms": {
        "use_bottleneck": False, "hidden_size": 10, "intra_bottleneck_size": 128,
        "normalization_type": "layer_norm",
    },
    "single tokens": {"trigram_input": False},
    "single tokens, not projected": {"trigram_input": False, "embedding_size": 12},
    "wide embeddings": {"embedding_size": 14},
    "no pooler": {"classifier_activation": False},
    "padding": {"pad_token_id": 4, "type_vocab_size": 3},
}  # fmt: skip
# Heads of width 4, which are wider than D together.
NOMIC_BERT = {
    **SIZES, "head_dim": 4, "pad_token_id": 3, "type_vocab_size": 3,
    "rope_parameters": {"rope_theta": 50.0, "rope_type": "default"},
}  # fmt: skip
GTE = {**NOMIC_BERT, "type_vocab_size": 2}
del GTE["head_dim"]
EUROBERT = {
    **SIZES, "num_key_value_heads": 1, "head_dim": 4, "pad_token_id": 3, "bos_token_id": None,
    "eos_token_id": None, "rope_parameters": {"rope_theta": 50.0, "rope_type": "default"},
}  # fmt: skip
EVERY_SECOND = ["full_attention", "sliding_attention"] * 2
MODELS = [
    *[(f"Roberta{x}", {**SIZES, "type_vocab_size": 1, **more}) for x, more in HEADS.items()],
    ("RobertaModel", {**SIZES, "pad_token_id": 3, "layer_norm_eps": 0.1, "hidden_act": "relu"}),
    ("RobertaForMaskedLM", {**SIZES, "hidden_act": "silu"}),
    ("BertModel", {**SIZES, "pad_token_id": 4}),
    ("DistilBertForMaskedLM", {**DISTILBERT, "pad_token_id": 4}),
    ("ElectraModel", {**SIZES, "embedding_size": 6, "pad_token_id": 4}),
    ("AlbertForSequenceClassification", {**SIZES, "embedding_size": 6, "pad_token_id": 4}),
    ("DebertaV2ForTokenClassification", {**DEBERTA, "pad_token_id": 4}),
    ("XLMRobertaModel", SIZES),
    ("XLMRobertaForSequenceClassification", {**SIZES, "num_labels": 3, "classifier_dropout": 0.3}),
    *[(f"DistilBert{x}", {**DISTILBERT, **more}) for x, more in HEADS.items()],
    ("DistilBertForMaskedLM", {**DISTILBERT, "activation": "relu"}),
    *[
        (f"Electra{x}", {**SIZES, "embedding_size": 6, **more})
        for x, more in [*HEADS.items(), ("ForPreTraining", {})]
    ],
    ("ElectraModel", {**SIZES, "embedding_size": 10}),
    ("ElectraForPreTraining", {**SIZES, "embedding_size": 6, "hidden_act": "relu"}),
    ("ElectraForMaskedLM", {**SIZES, "embedding_size": 10, "hidden_act": "relu"}),
    *[
        (f"Albert{x}", {**SIZES, "embedding_size": 6, **more})
        for x, more in [*HEADS.items(), ("ForPreTraining", {})]
    ],
    ("AlbertModel", {**SIZES, "embedding_size": 10, "hidden_act": "gelu", "layer_norm_eps": 0.1}),
    *[(f"ModernBert{x}", {**MODERNBERT, **more}) for x, more in HEADS.items()],
    ("ModernBertModel", {**MODERNBERT, "layer_types": EVERY_SECOND, "hidden_activation": "relu"}),
    ("ModernBertForMaskedLM", {**MODERNBERT, "classifier_activation": "silu", "norm_eps": 0.1}),
    (
        "ModernBertForSequenceClassification",
        {**MODERNBERT, "classifier_pooling": "mean", "classifier_dropout": 0.3},
    ),
    *[(f"NomicBert{x}", {**NOMIC_BERT, **HEADS[x]}) for x in list(HEADS)[:4]],
    ("NomicBertForMaskedLM", {**NOMIC_BERT, "hidden_act": "gelu", "layer_norm_eps": 0.1}),
    *[(f"Gte{x}", {**GTE, **HEADS[x]}) for x in list(HEADS)[:4]],
    ("GteModel", {**GTE, "type_vocab_size": 0, "hidden_act": "relu", "layer_norm_eps": 0.1}),
    ("GteForMaskedLM", {**GTE, "hidden_act": "silu", "hidden_dropout_prob": 0.2}),
    *[(f"EuroBert{x}", {**EUROBERT, **HEADS[x]}) for x in list(HEADS)[:4]],
    ("EuroBertForMaskedLM", {**EUROBERT, "tie_word_embeddings": True, "attention_bias": True}),
    ("EuroBertModel", {**EUROBERT, "mlp_bias": True, "hidden_act": "relu", "rms_norm_eps": 0.1}),
    *[
        ("EuroBertForSequenceClassification", {**EUROBERT, "classifier_pooling": x})
        for x in ("bos", "mean")
    ],
    *[(f"MPNet{x}", {**MPNET, **more}) for x, more in HEADS.items()],
    ("MPNetModel", {**MPNET, "layer_norm_eps": 0.1, "hidden_act": "relu"}),
    ("MPNetForMaskedLM", {**MPNET, "hidden_act": "silu"}),
    *[
        (f"MobileBert{x}", {**MOBILEBERT, **more})
        for x, more in [
            *HEADS.items(),
            ("ForPreTraining", {}),
            ("ForNextSentencePrediction", {}),
        ]
    ],
    *[("MobileBertModel", {**MOBILEBERT, **more}) for more in MOBILEBERT_OPTIONS.values()],
    ("MobileBertForMaskedLM", {**MOBILEBERT, "embedding_size": 11, "layer_norm_eps": 0.1}),
    ("MobileBertForMaskedLM", {**MOBILEBERT, "normalization_type": "layer_norm"}),
    (
        "MobileBertForSequenceClassification",
        {**MOBILEBERT, "classifier_activation": False, "classifier_dropout": 0.3, "num_labels": 3},
    ),
    *[(f"DebertaV2{x}", {**DEBERTA, **more}) for x, more in HEADS.items()],
    *[("DebertaV2Model", {**DEBERTA, **more}) for more in DEBERTA_OPTIONS.values()],
    ("DebertaV2ForMaskedLM", {**DEBERTA, "embedding_size": 5, "conv_kernel_size": 3}),
    ("DebertaV2ForMaskedLM", {**DEBERTA, "legacy": False}),
    (
        "DebertaV2ForSequenceClassification",
        {**DEBERTA, "num_labels": 3, "pooler_hidden_act": "tanh", "cls_dropout": 0.3},
    ),
]
OUTPUTS = {
    "features": "last_hidden_state",
    "pooled": "pooler_output",
    "tokens": "prediction_logits",
    "next_sentence": "sop_logits",
    "start": "start_logits",
    "end": "end_logits",
}


def assert_same(ours, theirs, length=8):
    pad = theirs.config.pad_token_id
    rng = np.random.default_rng(0)
    ids = rng.choice(np.setdiff1d(np.arange(19), pad), (3, length))
    real = np.arange(length) < np.array([[length], [5], [1]])
    ids = np.where(real, ids, pad)
    inputs = {"input_ids": ids, "attention_mask": real.astype("int64")}
    given = {"tokens": ids.astype("int32")}
    if any(x.name == "segments" for x in ours.inputs):
        given["segments"] = (np.arange(length) >= 3).astype("int32")[np.newaxis].repeat(3, 0)
        inputs["token_type_ids"] = given["segments"].astype("int64")
    with torch.no_grad():
        output = theirs(**{name: torch.from_numpy(x) for name, x in inputs.items()})
    actual = run(ours, given if isinstance(ours.input, dict) else given["tokens"])
    if not isinstance(actual, dict):
        actual = {"features" if "last_hidden_state" in output else "logits": actual}
    for name, x in actual.items():
        known = OUTPUTS.get(name, name)
        if name == "next_sentence" and type(theirs).__name__.startswith("MobileBert"):
            known = "seq_relationship_logits"
        expected = output[known].numpy()
        if expected.shape[:2] == real.shape:  # of real positions
            x, expected = x[real], expected[real]
        tolerance = FEATURES if name == "features" else LOGITS
        assert_close(x, expected, tolerance)


FAST = {
    "RobertaForMaskedLM",
    "XLMRobertaModel",
    "DistilBertForMaskedLM",
    "ElectraForPreTraining",
    "AlbertForMaskedLM",
    "MobileBertForPreTraining",
    "ModernBertForMaskedLM",
    "MPNetForMaskedLM",
    "DebertaV2ForMaskedLM",
}


@pytest.mark.parametrize(("name", "options"), one_of_each(MODELS, FAST))
def test_both_ways(name, options, tmp_path):
    theirs, ours = made(name, options, tmp_path / "theirs")
    length = {"Deb": 13, "MPN": 150}.get(name[:3], 8)
    assert_same(ours, theirs, length)
    again = saved(ours, type(theirs), tmp_path / "ours")
    assert_same(ours, again, length)
    # "legacy" only names the tensors of the same head; it is saved as True.
    for field in set(options) - {"num_labels", "legacy"}:
        assert getattr(again.config, field) == getattr(theirs.config, field), field
    if "Classification" in name:
        assert again.config.num_labels == theirs.config.num_labels


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("BertModel", SIZES),
        ("RobertaModel", SIZES),
        ("AlbertModel", SIZES),
        ("MPNetModel", MPNET),
        ("MobileBertModel", MOBILEBERT),
    ],
)
def test_a_model_without_a_pooler(name, sizes, tmp_path):
    torch.manual_seed(0)
    cls = getattr(transformers, name)
    theirs = with_noise(cls(cls.config_class(**sizes), add_pooling_layer=False).eval())
    theirs.save_pretrained(tmp_path / "theirs")
    ours = checkpoints.load_huggingface(tmp_path / "theirs")
    assert len(ours.outputs) == 1
    assert_same(ours, theirs)
    checkpoints.save_huggingface(ours, tmp_path / "ours")
    again = cls.from_pretrained(tmp_path / "ours", add_pooling_layer=False)
    assert_same(ours, again)


@pytest.mark.parametrize("head", ["ForMaskedLM", "ForSequenceClassification"])
@pytest.mark.parametrize("family", ["Roberta", "MPNet"])
def test_a_pooler_that_the_class_does_not_read(family, head, tmp_path):
    """As in the released folders of masked language models, with all names of tied tensors."""
    from safetensors.numpy import load_file, save_file

    theirs, _ = made(f"{family}{head}", {**SIZES, "num_labels": 3}, tmp_path)
    tensors, prefix = load_file(tmp_path / "model.safetensors"), family.lower()
    tensors[f"{prefix}.pooler.dense.weight"] = np.ones((10, 10), "float32")
    tensors[f"{prefix}.pooler.dense.bias"] = np.ones(10, "float32")
    tensors[f"{prefix}.embeddings.position_ids"] = np.arange(13)[np.newaxis]
    if head == "ForMaskedLM":
        tensors["lm_head.decoder.bias"] = tensors["lm_head.bias"].copy()
        table = tensors[f"{prefix}.embeddings.word_embeddings.weight"]
        tensors["lm_head.decoder.weight"] = table.copy()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    assert_same(checkpoints.load_huggingface(tmp_path), theirs)


@pytest.mark.parametrize(
    ("saved", "asked"),
    [
        ("BertForPreTraining", "BertForMaskedLM"),
        ("BertForPreTraining", "BertModel"),
        ("AlbertForPreTraining", "AlbertForMaskedLM"),
        ("DistilBertForMaskedLM", "DistilBertModel"),
        ("ElectraForPreTraining", "ElectraModel"),
        ("DebertaV2ForTokenClassification", "DebertaV2Model"),
    ],
)
def test_heads_that_the_class_does_not_read(saved, asked, tmp_path):
    made(saved, dict(MODELS).get(saved, SIZES), tmp_path)
    theirs = getattr(transformers, asked).from_pretrained(tmp_path)
    assert_same(checkpoints.load_huggingface(tmp_path, asked), theirs.eval())


@pytest.mark.parametrize(
    ("field", "value"), [("relative_attention_num_buckets", 64), ("pad_token_id", 3)]
)
def test_what_mpnet_has_as_a_constant(field, value, tmp_path):
    """transformers computes with 32 buckets, and numbers positions by the padding id 1."""
    cls = transformers.MPNetModel
    cls(cls.config_class(**SIZES, **{field: value})).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"{field}.*{value}"):
        checkpoints.load_huggingface(tmp_path)


def test_another_padding_id_of_mpnet_is_not_saved(tmp_path):
    from keras_tfm import models

    model = models.mpnet(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=9, pad_id=0)
    with pytest.raises(ValueError, match=r"mpnet: pad_id must be 1 to be saved.*, got 0"):
        checkpoints.save_huggingface(model, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_buckets_of_mpnet():
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    from keras_tfm.layers import t5_buckets

    distances = np.arange(-600, 601)
    expected = MPNetEncoder.relative_position_bucket(torch.from_numpy(distances)).numpy()
    np.testing.assert_array_equal(t5_buckets(distances, 32, 128, causal=False), expected)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors is a no-op")
def test_an_output_without_columns_of_its_own(tmp_path):
    """MobileBERT's embeddings as wide as the model: the other weight there has no elements."""
    options = {**MOBILEBERT, "embedding_size": 12}
    theirs, ours = made("MobileBertForMaskedLM", options, tmp_path / "theirs")
    assert_same(ours, theirs)
    checkpoints.save_huggingface(ours, tmp_path / "ours")
    again, report = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert report["missing_keys"] == {"cls.predictions.dense.weight"}
    assert_same(ours, again.eval())


# Those of the released checkpoints, and odd ones.
@pytest.mark.parametrize("sizes", [(256, 512), (32, 128), (7, 6), (55, 100), (2, 9)], ids=str)
def test_buckets_of_deberta(sizes):
    from transformers.models.deberta_v2 import modeling_deberta_v2

    from keras_tfm.layers.positions.relative_position_table import log_buckets

    distances = np.arange(-2048, 2049)
    expected = modeling_deberta_v2.make_log_bucket_position(torch.from_numpy(distances), *sizes)
    np.testing.assert_array_equal(log_buckets(distances, *sizes), expected.long().numpy())


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(x, marks=[pytest.mark.slow] * (x != "v3-xsmall"))
        for x in ("v3-xsmall", "v3-base", "v2-xlarge")
    ],
)
def test_sizes_of_deberta_have_as_many_parameters(size):
    """The published configurations, on a device without memory."""
    from keras_tfm import models
    from keras_tfm.models.encoders.deberta import SIZES
    from keras_tfm.models.without_storage import without_storage

    ours = SIZES[size]
    config = transformers.DebertaV2Config(
        **{
            **DEBERTA, "vocab_size": 128100, "hidden_size": ours["dim"],
            "num_hidden_layers": ours["num_layers"], "num_attention_heads": ours["num_heads"],
            "intermediate_size": ours["intermediate_dim"], "max_position_embeddings": 512,
            "position_buckets": 256, "max_relative_positions": -1,
            "conv_kernel_size": ours.get("kernel_size", 0),
        }
    )  # fmt: skip
    with torch.device("meta"):
        theirs = transformers.DebertaV2Model(config)
    with without_storage():
        model = models.deberta(128100, **ours)
    assert model.count_params() == sum(x.numel() for x in theirs.parameters())


def test_the_size_of_mpnet_has_as_many_parameters():
    """That of the published configuration."""
    from keras_tfm import models
    from keras_tfm.models.encoders.mpnet import SIZES as MPNET_SIZES
    from keras_tfm.models.without_storage import without_storage

    with torch.device("meta"):
        theirs = transformers.MPNetModel(transformers.MPNetConfig(max_position_embeddings=514))
    with without_storage():
        model = models.mpnet(30527, **MPNET_SIZES["base"], pooler=True)
    assert model.count_params() == sum(x.numel() for x in theirs.parameters())
