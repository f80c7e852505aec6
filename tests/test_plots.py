"""Pictures hold what they were given; whether they look well is seen in docs/."""

import numpy as np
import pytest

from keras_tfm.plots import plot_attention, plot_history, plot_sizes

pytest.importorskip("matplotlib")
SIZES = {"embedding": 7000, "block/attention/query": 3000, "block/attention/key": 2000}
SIZES |= {"block/feed_forward": 11000, "": 500}


@pytest.mark.parametrize(
    ("depth", "bars"),
    [
        (1, {"embedding": 7.0, "block": 16.0, "no layer": 0.5}),
        (
            2,
            {"embedding": 7.0, "block/attention": 5.0, "block/feed_forward": 11, "no layer": 0.5},
        ),
        (
            9,
            {
                "embedding": 7.0,
                "block/attention/query": 3.0,
                "block/attention/key": 2.0,
                "block/feed_forward": 11.0,
                "no layer": 0.5,
            },
        ),
    ],
)
def test_sizes_are_added_up_to_a_depth_in_the_order_given(depth, bars):
    (axes,) = plot_sizes(SIZES, depth, title="a title").axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert dict(zip(names, [bar.get_width() for bar in axes.patches], strict=True)) == bars
    assert axes.get_title() == "a title"
    assert axes.yaxis_inverted()  # the first on top


def test_bars_say_bytes_and_share():
    (axes,) = plot_sizes({"a": 1500, "b": 4500}).axes
    assert [text.get_text() for text in axes.texts] == ["1.5 kB, 25%", "4.5 kB, 75%"]


@pytest.mark.parametrize(
    ("sizes", "depth", "message"),
    [
        ({}, 1, "at least one, got {}"),
        ({"a": -1}, 1, "sizes must be bytes by path"),
        ({"a": 1}, 0, "depth must be at least 1, got 0"),
    ],
)
def test_what_is_refused(sizes, depth, message):
    with pytest.raises(ValueError, match=message):
        plot_sizes(sizes, depth)


def test_an_attention_map_has_names_on_its_axes_and_a_colour_bar():
    figure = plot_attention(np.eye(3)[None, :, :], queries=list("abc"), keys=list("xyz"))
    panel, bar = figure.axes
    assert [label.get_text() for label in panel.get_xticklabels()] == list("xyz")
    assert [label.get_text() for label in panel.get_yticklabels()] == list("abc")
    assert (figure.get_supxlabel(), figure.get_supylabel()) == (
        "keys: what is attended to",
        "queries",
    )
    assert (bar.get_ylabel(), bar.get_ylim()) == ("attention weight", (0.0, 1.0))


def test_a_curve_stands_beside_its_validation_in_the_order_of_the_metrics():
    history = {"val_accuracy": [0.5], "accuracy": [0.25, 0.75], "loss": [2.0, 1.0]}
    accuracy, loss = plot_history(history).axes
    assert (accuracy.get_ylabel(), loss.get_ylabel()) == ("accuracy", "loss")
    drawn = {line.get_label(): line.get_xydata().tolist() for line in accuracy.lines}
    assert drawn == {"training": [[1, 0.25], [2, 0.75]], "validation": [[1, 0.5]]}
    assert [line.get_label() for line in loss.lines] == ["training"]


@pytest.mark.parametrize("history", [{}, {"loss": []}])
def test_a_history_without_epochs_is_refused(history):
    with pytest.raises(ValueError, match="at least one epoch"):
        plot_history(history)
