"""Draws the pictures of the documentation.

pip install -e ".[examples,plots]"
python docs/pictures.py --only overview    # docs/overview.png, which needs no model
python examples/dates.py                   # trains and exports the model of the other pictures
python docs/pictures.py                    # all of them, in docs/
"""

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent / "examples"))

import dates_data as data  # noqa: E402
import numpy as np  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.patches import FancyBboxPatch  # noqa: E402

import keras_tfm  # noqa: E402
from keras_tfm.layers import AttentionProbe, PositionalEncoding  # noqa: E402
from keras_tfm.plots import plot_attention, plot_positions, plot_sizes  # noqa: E402
from keras_tfm.runtime.inspection import inspect_file  # noqa: E402

MODEL, FILE = Path("artifacts/dates/dates.keras"), Path("artifacts/dates/int8.tflite")
TEXT, TAG, ANSWER = "Donnerstag, 5. März 2026", "de", "2026-03-05"


def main() -> None:
    pictures = {
        "overview": draw_overview,
        "attention": draw_attention,
        "positions": draw_positions,
        "sizes": draw_sizes,
    }
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=pictures, default=list(pictures))
    parser.add_argument("--smoke", action="store_true", help="accept a model that reads wrongly")
    arguments = parser.parse_args()
    names = arguments.only
    if arguments.smoke:
        pictures["attention"] = lambda: draw_attention(must_read=False)
    for needed in (MODEL, FILE):
        if {"attention", "sizes"} & set(names) and not needed.exists():
            sys.exit(f"{needed} is missing: run python examples/dates.py first")
    for name in names:
        pictures[name]()


def draw_overview() -> None:
    """From a Keras model or a Hugging Face folder to one file, and the devices that run it."""
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    axes = figure.add_subplot()
    axes.set(xlim=(0, 100), ylim=(0, 34))
    axes.axis("off")
    dark, blue, grey = "#1c3d5a", "#e3eef8", "#f4f4f2"

    def box(x, y, width, height, color, title, *lines):
        corners = "round,pad=0,rounding_size=1.2"
        axes.add_patch(FancyBboxPatch((x, y), width, height, corners, fc=color, ec=dark, lw=1.2))
        style = {"ha": "center", "va": "center"}
        top = y + height - 2.5
        axes.text(x + width / 2, top, title, weight="bold", size=10, **style)
        for i, line in enumerate(lines):
            axes.text(x + width / 2, top - 3.6 - 2.9 * i, line, size=8.8, **style)

    def arrow(start, end):
        axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": dark, "lw": 1.6})

    layers = ("TransformerEncoderBlock,", "TransformerDecoderBlock, ...", "trained with model.fit")
    folder = ("BERT, RoBERTa, Llama, T5,", "sentence-transformers:", "weights and tokenizer")
    contents = (
        "weights",
        "decode loop with KV cache,",
        "greedy or beam search",
        "prefill and decode steps",
        "tokenizer",
        "checksum",
    )
    box(1, 18.5, 24, 14, blue, "Keras 3 layers", *layers)
    box(1, 1.5, 24, 14, blue, "Hugging Face folder", *folder)
    export = ("float32, float16,", "int8 or int4; compared", "with the Keras model")
    box(32, 10, 18, 14, grey, "export_tflite", *export)
    box(57, 5, 20, 24, blue, "one .tflite file", *contents)
    devices = ("Android", "iOS", "Raspberry Pi", "browser", "server")
    for i, name in enumerate(devices):
        y = 27.5 - 6.4 * i
        box(84, y, 15, 5.0, grey, name)
        arrow((77.4, 17), (83.6, y + 2.5))
    arrow((25.4, 25.5), (31.6, 19))
    arrow((25.4, 8.5), (31.6, 15))
    arrow((50.4, 17), (56.6, 17))
    save(figure, "overview.png", 130)


def draw_attention(must_read: bool = True) -> None:
    """Which characters the last block looks at when it writes each digit."""
    model = keras_tfm.load_model(MODEL)
    tokenizer = data.target_tokenizer()
    source = np.array([data.source_tokenizer().encode(data.question(TEXT, TAG)).ids], "int32")
    target = np.array([tokenizer.encode(ANSWER).ids], "int32")[:, :-1]
    with AttentionProbe() as probe:
        logits = model({"source": source, "target": target})
    written = tokenizer.decode(np.argmax(logits[0], axis=-1).tolist())
    if must_read and written != ANSWER:
        sys.exit(f"the model reads {TEXT!r} as {written!r}: train it for longer")
    last = [name for name in probe.maps if "cross_attention" in name][-1]
    figure = plot_attention(
        probe.maps[last][0],
        queries=[*ANSWER, "end"],
        keys=[TAG, *data.normalise(TEXT)],
        title=f"{TEXT} -> {ANSWER}: cross-attention of the last block",
    )
    save(figure, "attention.png")


def draw_positions() -> None:
    encoding = PositionalEncoding()(np.zeros((1, 100, 128), "float32"))[0]
    save(
        plot_positions(encoding, title="PositionalEncoding, 100 positions, D = 128"),
        "positions.png",
    )


def draw_sizes() -> None:
    """What the exported file is made of: weights by layer, and the rest of it."""
    file = inspect_file(FILE)
    rest = {name: file.bytes_by_kind[name] for name in ("metadata", "graph")}
    title = f"The dates model in {file.quantization}: {file.bytes / 1e6:.2f} MB"
    save(plot_sizes({**file.layers, **rest}, depth=2, title=title), "sizes.png")


def save(figure, name: str, dpi: int = 90) -> None:
    figure.savefig(DOCS / name, dpi=dpi)
    print(DOCS / name)


if __name__ == "__main__":
    main()
