"""Draws the pictures of the documentation.

pip install -e ".[examples,plots]"
python examples/dates.py      # trains and exports the model that is drawn
python docs/pictures.py       # writes docs/attention.png, docs/positions.png and docs/sizes.png
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent / "examples"))

import dates_data as data  # noqa: E402
import numpy as np  # noqa: E402

import keras_tfm  # noqa: E402
from keras_tfm.layers import AttentionProbe, PositionalEncoding  # noqa: E402
from keras_tfm.plots import plot_attention, plot_positions, plot_sizes  # noqa: E402
from keras_tfm.runtime.inspection import inspect_file  # noqa: E402

MODEL, FILE = Path("artifacts/dates/dates.keras"), Path("artifacts/dates/int8.tflite")
TEXT, TAG, ANSWER = "Donnerstag, 5. März 2026", "de", "2026-03-05"


def main() -> None:
    for needed in (MODEL, FILE):
        if not needed.exists():
            sys.exit(f"{needed} is missing: run python examples/dates.py first")
    draw_attention()
    draw_positions()
    draw_sizes()


def draw_attention() -> None:
    """Which characters the last block looks at when it writes each digit."""
    model = keras_tfm.load_model(MODEL)
    tokenizer = data.target_tokenizer()
    source = np.array([data.source_tokenizer().encode(data.question(TEXT, TAG)).ids], "int32")
    target = np.array([tokenizer.encode(ANSWER).ids], "int32")[:, :-1]
    with AttentionProbe() as probe:
        logits = model({"source": source, "target": target})
    written = tokenizer.decode(np.argmax(logits[0], axis=-1).tolist())
    if written != ANSWER:
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


def save(figure, name: str) -> None:
    figure.savefig(DOCS / name, dpi=90)
    print(DOCS / name)


if __name__ == "__main__":
    main()
