"""Plots: attention maps, positional encodings, training curves, and sizes of layers in a file."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from keras_tfm.optional_package import optional_package

Figure: TypeAlias = Any  # matplotlib's, which is imported where it draws


def plot_attention(
    weights: np.ndarray,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    title: str | None = None,
) -> Figure:
    """Draws the attention maps of one row of a batch, one panel per head.

    Args:
        weights: (H, T, S), attention weights, for instance from an `AttentionProbe`.
        queries: list of T labels, optional.
        keys: list of S labels, optional.
        title: str, title of the figure. Default: no title.

    Returns:
        A `matplotlib.figure.Figure`; save it with `figure.savefig(path)`.

    Raises:
        ValueError: weights or labels have the wrong shape.
        ModuleNotFoundError: matplotlib is not installed; the message names the extra to install.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.plots import plot_attention
    >>> figure = plot_attention(np.full((2, 3, 4), 0.25))
    >>> [axes.get_title() for axes in figure.axes[:2]]  # the third is the color bar
    ['head 0', 'head 1']
    """
    weights = np.asarray(weights)
    if weights.ndim != 3:
        raise ValueError(f"weights must have shape (H, T, S), got {weights.shape}")
    heads, rows, columns = weights.shape
    for name, labels, count in (("queries", queries, rows), ("keys", keys, columns)):
        if labels is not None and len(labels) != count:
            raise ValueError(f"{name} must have {count} labels, got {len(labels)}")
    width, height = (max(1.6, 0.22 * cells) for cells in (columns, rows))
    across = max(1, min(heads, 4, int(14 // width)))  # within the width of a screen
    down = -(-heads // across)
    size = (2.0 + across * width, 0.8 + down * (height + 0.2))
    figure = _figure(size)
    panels = []
    for head in range(heads):
        axes = figure.add_subplot(down, across, head + 1)
        panels.append(axes)
        image = axes.imshow(weights[head], cmap="Blues", vmin=0.0, vmax=1.0, aspect="equal")
        axes.set_title(f"head {head}", fontsize=9)
        first = head % across == 0
        last = head >= heads - across
        axes.set_xticks(range(columns) if keys is not None and last else [])
        axes.set_yticks(range(rows) if queries is not None and first else [])
        if keys is not None and last:
            axes.set_xticklabels(keys, rotation=90, fontsize=8)
        if queries is not None and first:
            axes.set_yticklabels(queries, fontsize=8)
    bar = figure.colorbar(image, ax=panels, fraction=0.03, pad=0.01)
    bar.set_label("attention weight", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    figure.supxlabel("keys: what is attended to", fontsize=9)
    figure.supylabel("queries", fontsize=9)
    if title:
        figure.suptitle(title, fontsize=11)
    return figure


def plot_positions(encoding: np.ndarray, title: str | None = None) -> Figure:
    """Draws a table of position vectors as a heat map.

    Args:
        encoding: (T, D), a positional encoding, sinusoidal or learned.
        title: str, title of the figure. Default: no title.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: `encoding` has the wrong shape.
        ModuleNotFoundError: matplotlib is not installed.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import PositionalEncoding
    >>> from keras_tfm.plots import plot_positions
    >>> encoding = PositionalEncoding()(np.zeros((1, 50, 16), "float32"))[0]
    >>> figure = plot_positions(encoding)
    """
    encoding = np.asarray(encoding)
    if encoding.ndim != 2:
        raise ValueError(f"encoding must have shape (T, D), got {encoding.shape}")
    figure = _figure((7.0, 4.0))
    axes = figure.add_subplot()
    limit = float(np.abs(encoding).max()) or 1.0
    image = axes.imshow(
        encoding.T, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest"
    )
    axes.set_xlabel("position")
    axes.set_ylabel("dimension")
    axes.set_title(title or "", fontsize=11)
    figure.colorbar(image, ax=axes, label="value")
    return figure


def plot_history(history: Mapping[str, Sequence[float]], title: str | None = None) -> Figure:
    """Draws training curves, one panel per loss or metric, with its validation value.

    Args:
        history: dict from a name to one number per epoch, such as `model.fit(...).history`. A name
            "val_loss" is drawn beside "loss".
        title: str, title of the figure. Default: no title.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: there is nothing to draw.
        ModuleNotFoundError: matplotlib is not installed.

    Example:

    >>> from keras_tfm.plots import plot_history
    >>> figure = plot_history({"loss": [2.0, 1.0], "val_loss": [2.1, 1.3], "accuracy": [0.3, 0.6]})
    >>> [(axes.get_ylabel(), len(axes.lines)) for axes in figure.axes]
    [('loss', 2), ('accuracy', 1)]
    """
    names = list(dict.fromkeys(name.removeprefix("val_") for name in history))
    if not names or not all(len(values) for values in history.values()):
        raise ValueError(f"history must have numbers for at least one epoch, got {dict(history)}")
    figure = _figure((3.5 * len(names), 3.0))
    for i, name in enumerate(names):
        axes = figure.add_subplot(1, len(names), i + 1)
        for key, label, style in ((name, "training", "o-"), (f"val_{name}", "validation", "s--")):
            if key in history:
                epochs = range(1, len(history[key]) + 1)
                axes.plot(epochs, history[key], style, markersize=3, label=label)
        axes.set_xlabel("epoch")
        axes.set_ylabel(name)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.suptitle(title or "", fontsize=11)
    return figure


def plot_sizes(sizes: Mapping[str, int], depth: int = 1, title: str | None = None) -> Figure:
    """Draws the number of bytes of each layer as a bar chart.

    Args:
        sizes: dict from a layer's path to bytes, such as
            `runtime.inspection.inspect_file(path).layers`; the path "" stands for data outside any
            layer. Other entries are allowed, such as "graph" of `bytes_by_kind`.
        depth: int, number of parts of a path that name a bar; deeper layers are added up.
        title: str, title of the figure. Default: no title.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: there are no sizes, one is negative, or `depth` is below 1.
        ModuleNotFoundError: matplotlib is not installed.

    Example:

    >>> from keras_tfm.plots import plot_sizes
    >>> sizes = {"block/attention": 3000, "block/feed_forward": 5000, "head": 2000}
    >>> [float(bar.get_width()) for bar in plot_sizes(sizes).axes[0].patches]
    [8.0, 2.0]
    """
    if not sizes or min(sizes.values()) < 0:
        raise ValueError(f"sizes must be bytes by path, at least one, got {dict(sizes)}")
    if depth < 1:
        raise ValueError(f"depth must be at least 1, got {depth}")
    bars: dict[str, int] = {}
    for path, size in sizes.items():
        name = "/".join(path.split("/")[:depth]) or "no layer"
        bars[name] = bars.get(name, 0) + size
    figure = _figure((7.0, 0.8 + 0.25 * len(bars)))
    axes = figure.add_subplot()
    drawn = axes.barh(list(bars), [size / 1e3 for size in bars.values()], color="tab:blue")
    whole = sum(bars.values()) or 1
    labels = [f"{size / 1e3:,.1f} kB, {size / whole:.0%}" for size in bars.values()]
    axes.bar_label(drawn, labels, padding=3, fontsize=8)
    axes.margins(x=0.25)  # space for the labels
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=8)
    axes.set_xlabel("kB")
    axes.set_title(title or "", fontsize=11)
    return figure


def _figure(size: tuple[float, float]) -> Figure:
    """A figure without a window, so that it works without a screen."""
    figures = optional_package(
        "matplotlib.figure", "plots need matplotlib", "matplotlib", extra="plots"
    )
    return figures.Figure(figsize=size, layout="constrained")
