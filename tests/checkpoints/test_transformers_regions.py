"""LXMERT beside transformers: both ways, odd sizes, noise on every weight, masks of both."""

import numpy as np
import pytest
from compare import assert_close, to_numpy
from live_transformers import made, saved

from keras_tfm import checkpoints, models

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# float32, relative to the outputs' size, through eight blocks. Found: up to 2e-6.
CLOSE = 3e-5
SMALL = {
    "vocab_size": 31, "hidden_size": 14, "num_attention_heads": 7, "intermediate_size": 11,
    "l_layers": 2, "r_layers": 1, "x_layers": 2, "max_position_embeddings": 13,
    "type_vocab_size": 3, "visual_feat_dim": 5, "num_qa_labels": 17,
}  # fmt: skip
RNG = np.random.default_rng(5)
TOKENS = RNG.integers(1, 31, (3, 11)).astype("int32")
TOKENS[1, 6:], TOKENS[2, 1:] = 0, 0
INPUTS = {
    "tokens": TOKENS,
    "segments": RNG.integers(0, 3, TOKENS.shape).astype("int32"),
    "region_features": RNG.normal(size=(3, 8, 5)).astype("float32"),
    "region_boxes": RNG.uniform(size=(3, 8, 4)).astype("float32"),
}
MASK = np.ones((3, 8), "int32")
MASK[0, 5:], MASK[2, 1:] = 0, 0


def assert_same(ours, theirs, mask=None):
    given = {
        "input_ids": INPUTS["tokens"].astype("int64"),
        "token_type_ids": INPUTS["segments"].astype("int64"),
        "attention_mask": (TOKENS != 0).astype("int64"),
        "visual_feats": INPUTS["region_features"],
        "visual_pos": INPUTS["region_boxes"],
    }
    inputs = dict(INPUTS)
    if mask is not None:
        given["visual_attention_mask"] = inputs["region_mask"] = mask
    with torch.no_grad():
        expected = theirs(**{name: torch.tensor(x) for name, x in given.items()})
    found = ours(inputs)
    if "PreTraining" in type(theirs).__name__:
        with torch.no_grad():
            regions = theirs.obj_predict_head(
                theirs.lxmert(**{name: torch.tensor(x) for name, x in given.items()})[1]
            )
        names = {"obj": "regions", "attr": "attributes", "feat": "region_features"}
        wanted = {names[key]: x.numpy() for key, x in regions.items()}
        wanted["tokens"] = expected.prediction_logits.numpy()
        wanted["matching"] = expected.cross_relationship_score.numpy()
        if theirs.config.task_qa:
            wanted["answers"] = expected.question_answering_score.numpy()
        assert found.keys() == wanted.keys()
        for key, x in wanted.items():
            assert_close(found[key], x, CLOSE)
        return None
    if "Answering" in type(theirs).__name__:
        return assert_close(found, expected.question_answering_score.numpy(), CLOSE)
    assert_close(found["features"], expected.language_output.numpy(), CLOSE)
    assert_close(found["visual_features"], expected.vision_output.numpy(), CLOSE)
    return assert_close(found["pooled"], expected.pooled_output.numpy(), CLOSE)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("LxmertModel", {}),
        ("LxmertModel", {"r_layers": 0, "x_layers": 1, "hidden_act": "relu"}),
        ("LxmertForQuestionAnswering", {}),
        ("LxmertForPreTraining", {"num_object_labels": 19, "num_attr_labels": 23}),
        ("LxmertForPreTraining", {"task_qa": False, "visual_attr_loss": False}),
    ],
    ids=["odd", "other", "answers", "pretraining", "fewer tasks"],
)
def test_both_ways(name, more, tmp_path):
    theirs, ours = made(name, {**SMALL, **more}, tmp_path / "theirs")
    assert ours.family == "lxmert"
    assert_same(ours, theirs)
    assert_same(ours, saved(ours, type(theirs), tmp_path / "ours"))
    masked = checkpoints.load_huggingface(tmp_path / "theirs", region_mask=True, num_regions=8)
    assert_same(masked, theirs, MASK)
    assert_same(masked, saved(masked, type(theirs), tmp_path / "masked"), MASK)


def test_only_what_transformers_has_is_saved(tmp_path):
    model = models.lxmert(
        11, dim=6, num_layers=1, num_visual_layers=1, num_cross_layers=1, num_heads=2,
        intermediate_dim=7, region_dim=5, layer_norm_epsilon=1e-5,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"layer_norm_epsilon must be 1e-12 .* got 1e-05"):
        checkpoints.save_huggingface(model, tmp_path / "x")


def test_the_mask_hides_regions():
    """Values of padded regions change nothing."""
    model = models.lxmert(
        31, dim=6, num_layers=1, num_visual_layers=1, num_cross_layers=2, num_heads=2,
        intermediate_dim=7, region_dim=5, num_regions=None, num_segments=3, region_mask=True,
    )  # fmt: skip
    other = {name: x.copy() for name, x in INPUTS.items()} | {"region_mask": MASK}
    other["region_features"][MASK == 0] = 3.0
    other["region_boxes"][MASK == 0] = 0.5
    first = model({**INPUTS, "region_mask": MASK})
    for name, x in model(other).items():
        wanted, found = to_numpy(first[name]), to_numpy(x)
        if name == "visual_features":
            wanted, found = wanted[MASK == 1], found[MASK == 1]
        assert_close(found, wanted, 1e-6)
