"""Pictures hold what they were given; whether they look well is seen in docs/."""

import pytest

from keras_tfm.plots import plot_sizes

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
