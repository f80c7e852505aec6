"""Models of texts and image regions: errors, and what heads keep."""

import re

import numpy as np
import pytest

from keras_tfm import models
from keras_tfm.layers import RegionEmbedding, TransformerDecoderBlock

SMALL = {
    "dim": 6, "num_layers": 1, "num_visual_layers": 1, "num_cross_layers": 2, "num_heads": 2,
    "intermediate_dim": 7, "region_dim": 5, "num_regions": 4,
}  # fmt: skip
INPUTS = {
    "tokens": np.ones((2, 3), "int32"),
    "segments": np.zeros((2, 3), "int32"),
    "region_features": np.ones((2, 4, 5), "float32"),
    "region_boxes": np.ones((2, 4, 4), "float32"),
}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_visual_layers": -1}, "num_visual_layers must be at least 0, got -1"),
        ({"num_cross_layers": 0}, "num_cross_layers must be at least 1, got 0"),
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"region_dim": 0}, "region_dim must be at least 1, got 0"),
        ({"num_regions": 0}, "num_regions must be at least 1, got 0"),
        ({"num_heads": 4}, "4"),
    ],
)
def test_arguments_of_lxmert_are_checked(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        models.lxmert(11, **{**SMALL, **options})


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("region_boxes", (2, 4, 5)),
        ("region_features", (2, 4, 6)),
        ("region_features", (2, 5, 5)),
    ],
)
def test_inputs_of_another_width_are_refused(name, shape):
    model = models.lxmert(11, **SMALL)
    with pytest.raises(ValueError, match=rf"(?s){name}.*{re.escape(str(shape))}"):
        model({**INPUTS, name: np.ones(shape, "float32")})


def test_boxes_of_another_width_are_refused():
    with pytest.raises(ValueError, match=r"boxes must be \(B, N, 4\), got shape \(2, 4, 5\)"):
        RegionEmbedding(6)(INPUTS["region_features"], np.ones((2, 4, 5), "float32"))


def test_a_cross_attention_that_two_streams_share_needs_equal_widths():
    block = TransformerDecoderBlock(
        num_heads=2, self_attention=False, feed_forward=False, causal=False
    )
    x, y = np.ones((2, 3, 6), "float32"), np.ones((2, 4, 8), "float32")
    block(x, y)
    with pytest.raises(ValueError, match="6"):
        block(y, x)


def test_a_width_of_a_feed_forward_network_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="intermediate_dim=7 has no effect"):
        TransformerDecoderBlock(7, num_heads=2, feed_forward=False)


def test_a_head_of_texts_has_no_last_block_of_regions():
    """Its outputs do not depend on it: the gradient would be missing."""
    model = models.lxmert(11, **SMALL)
    names = [block.name for block in model.blocks]
    head = models.visual_question_answering(model, 3, labels=["a", "b", "c"])
    assert [block.name for block in head.blocks] == [x for x in names if x != "cross_visual_1"]
    again = models.sequence_classifier(head, 5)  # and a head replaces a head
    assert again.head.kind == "sequence_classifier" and again.output.shape == (None, 5)
    with pytest.raises(ValueError, match="labels must be 3 names"):
        models.visual_question_answering(model, 3, labels=["a"])


def test_adapters_leave_nothing_else_trainable():
    model = models.lxmert(11, **SMALL)
    models.enable_lora(model, rank=2)
    others = [x.path for x in model.trainable_weights if "lora" not in x.path]
    assert all(path.startswith("pooler/") for path in others)
