"""Draws the pictures of the documentation.

pip install -e ".[examples,plots]"
python docs/pictures.py --only overview speed    # pictures that need no model
python examples/dates.py                         # trains and exports the model of the others
python docs/pictures.py                          # all of them, in docs/
"""

import argparse
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS.parent / "examples")]

import dates_data as data  # noqa: E402
import diagrams  # noqa: E402
import gallery  # noqa: E402
import numpy as np  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

import keras_tfm  # noqa: E402
from keras_tfm.layers import AttentionProbe, PositionalEncoding  # noqa: E402
from keras_tfm.plots import (  # noqa: E402
    plot_attention,
    plot_history,
    plot_positions,
    plot_sizes,
)
from keras_tfm.runtime.inspection import inspect_file  # noqa: E402

FOLDER = Path("artifacts/dates")  # of examples/dates.py
SMOKE = FOLDER / "smoke"
TEXT, TAG, ANSWER = "Donnerstag, 5. März 2026", "de", "2026-03-05"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PICTURES, default=list(PICTURES))
    parser.add_argument("--smoke", action="store_true", help="accept a model that reads wrongly")
    arguments = parser.parse_args()
    names, pictures = arguments.only, dict(PICTURES)
    if arguments.smoke:
        pictures["attention"] = lambda: attention(SMOKE, must_read=False)
        pictures["sizes"] = lambda: sizes(SMOKE)
    needed = (SMOKE if arguments.smoke else FOLDER) / "int8.tflite"
    if {"attention", "sizes"} & set(names) and not needed.exists():
        sys.exit(f"{needed} is missing: run python examples/dates.py first")
    for name in names:
        path = DOCS / f"{name}.png"
        pictures[name]().savefig(path, dpi=110)
        print(path)


def attention(folder: Path = FOLDER, must_read: bool = True) -> Figure:
    """Which characters the last block looks at when it writes each digit."""
    model = keras_tfm.load_model(folder / "dates.keras")
    tokenizer = data.target_tokenizer()
    source = np.array([data.source_tokenizer().encode(data.question(TEXT, TAG)).ids], "int32")
    target = np.array([tokenizer.encode(ANSWER).ids], "int32")[:, :-1]
    with AttentionProbe() as probe:
        logits = model({"source": source, "target": target})
    written = tokenizer.decode(np.argmax(logits[0], axis=-1).tolist())
    if must_read and written != ANSWER:
        sys.exit(f"the model reads {TEXT!r} as {written!r}: train it for longer")
    last = [name for name in probe.maps if "cross_attention" in name][-1]
    return plot_attention(
        probe.maps[last][0],
        queries=[*ANSWER, "end"],
        keys=[TAG, *data.normalise(TEXT)],
        title=f"{TEXT} -> {ANSWER}: cross-attention of the last block",
    )


def positions() -> Figure:
    encoding = PositionalEncoding()(np.zeros((1, 100, 128), "float32"))[0]
    return plot_positions(encoding, title="PositionalEncoding, 100 positions, D = 128")


def sizes(folder: Path = FOLDER) -> Figure:
    """What the exported file is made of: weights by layer, and the rest of it."""
    file = inspect_file(folder / "int8.tflite")
    rest = {name: file.bytes_by_kind[name] for name in ("metadata", "graph")}
    title = f"The dates model in {file.quantization}: {file.bytes / 1e6:.2f} MB"
    return plot_sizes({**file.layers, **rest}, depth=2, title=title)


def training() -> Figure:
    """The curves of the first model, docs/first-model.md, with validation rows."""
    page = (DOCS / "first-model.md").read_text()
    data_block, compose, fit, *_ = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    names: dict[str, object] = {}
    fit = fit.replace("model.fit(", "history = model.fit(")
    assert "epochs=3)" in fit
    fit = fit.replace("epochs=3)", "epochs=6, validation_split=0.1, verbose=0)")
    seed = "import keras\nkeras.utils.set_random_seed(0)\n"
    exec(seed + data_block + compose + fit, names)
    history = names["history"].history  # type: ignore[attr-defined]
    return plot_history(history, title="A first model: sorting five digits")


# --- Speed, from the tables in benchmarks/README.md


def tables() -> list[tuple[list[str], list[list[str]]]]:
    """The tables of benchmarks/README.md: header and rows, cells."""
    text = (DOCS.parent / "benchmarks/README.md").read_text().replace("`", "")
    found = []
    for block in re.findall(r"(?:^\|.*\|\n)+", text, re.M):
        lines = [[x.strip() for x in line[1:-2].split("|")] for line in block.splitlines(True)]
        found.append((lines[0], lines[2:]))
    return found


def table(column: str, row: str) -> tuple[list[str], list[list[str]]]:
    """The only table that has this column and this row."""
    (found,) = [x for x in tables() if column in x[0] and row in [cells[0] for cells in x[1]]]
    return found


def speed() -> Figure:
    """Four tables of benchmarks/README.md as bars."""
    figure = Figure(figsize=(10, 6.4), layout="constrained")
    panels = figure.subplots(2, 2)

    header, rows = table("host loop", "greedy, int8")
    contestants = {name: header.index(name) for name in ("keras_tfm", "CTranslate2")}
    title = "generation in a .tflite file: tokens/s, more is better"
    grouped(panels[0][0], title, contestants, rows)

    header, rows = table("int8 ms", "litert-torch")
    values = {row[0]: float(row[header.index("int8 ms")]) for row in rows}
    single(panels[0][1], "encoder in a .tflite file, int8: ms, less is better", values)

    header, rows = table("CTranslate2 s", "batch 1, greedy")
    contestants = {name: header.index(name) for name in ("keras_tfm s", "CTranslate2 s")}
    grouped(panels[1][0], "generation in Keras: seconds, less is better", contestants, rows)

    header, rows = table("training step", "keras_tfm")
    values = {row[0]: float(row[header.index("B=32, S=128: ms")]) for row in rows}
    single(panels[1][1], "training step, S=128: ms, less is better", values)
    figure.suptitle("AMD EPYC (Zen 5), 2 cores; methods in benchmarks/README.md", fontsize=10)
    return figure


def grouped(axes, title: str, contestants: dict[str, int], rows: list[list[str]]) -> None:
    """One group of bars per row, one bar per contestant."""
    height = 0.8 / len(contestants)
    for i, (name, column) in enumerate(contestants.items()):
        values = [float(row[column]) for row in rows]
        at = [y + (i - (len(contestants) - 1) / 2) * height for y in range(len(rows))]
        label = name.removesuffix(" s")
        bars = axes.barh(at, values, height, color=diagrams.BARS[i], label=label)
        axes.bar_label(bars, [f"{x:g}" for x in values], padding=2, fontsize=8)
    axes.set_yticks(range(len(rows)), [row[0] for row in rows], fontsize=8)
    axes.legend(fontsize=8, loc="upper right")
    finish(axes, title)


def single(axes, title: str, values: dict[str, float]) -> None:
    """One bar per contestant, ours in the strong colour."""
    colors = [diagrams.BARS[0 if name == "keras_tfm" else 1] for name in values]
    bars = axes.barh([*values], [*values.values()], color=colors)
    axes.bar_label(bars, [f"{x:g}" for x in values.values()], padding=2, fontsize=8)
    axes.tick_params(axis="y", labelsize=8)
    finish(axes, title)


def finish(axes, title: str) -> None:
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_title(title, fontsize=9.5, loc="left")
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


PICTURES: dict[str, Callable[[], Figure]] = {
    "overview": diagrams.overview,
    "one-definition": diagrams.one_definition,
    "kv-cache": diagrams.kv_cache,
    "kinds-of-state": diagrams.kinds_of_state,
    "encode-and-step": diagrams.encode_and_step,
    "file": diagrams.the_file,
    "verification": diagrams.verification,
    "attention": attention,
    "positions": positions,
    "sizes": sizes,
    "training": training,
    "speed": speed,
    **gallery.FIGURES,
}

if __name__ == "__main__":
    main()
