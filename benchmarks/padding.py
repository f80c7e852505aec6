"""The share of padding in batches: fixed length, random order, length buckets, and packing.

    pip install -e ".[examples]"
    python benchmarks/padding.py --markdown      # half a minute; nothing is trained

The training pairs of examples/translation.py, English to German. "positions" is the number of
positions of source, target and labels in an epoch, to which the cost of training is proportional;
"shapes" is the number of shapes that a compiler sees.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))

import translation  # noqa: E402
import translation_data as data  # noqa: E402

from keras_tfm import text  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--folder", type=Path, default=translation.FOLDER)
    arguments = parser.parse_args()
    corpus = translation.Corpus(data.read(data.fetch(arguments.folder)), translation.VOCABULARY)
    inputs, labels = corpus.training.inputs, corpus.training.labels
    rows = len(labels) // corpus.training.steps

    def bucketed(boundaries):
        return text.BucketedBatches(
            inputs, labels, boundaries=boundaries, tokens=translation.TOKENS
        )

    longest = translation.LONGEST
    results = {
        f"every row padded to {longest}": bucketed([longest]),
        f"any order, {rows} rows, padded to the longest": AnyOrder(inputs, labels, rows),
        "five boundaries: 8, 16, 32, 64, 96": bucketed([8, 16, 32, 64, longest]),
        f"{len(translation.BOUNDARIES)} boundaries: 4, 8, ... 32, 40, ... 96": corpus.training,
        "German only, packed into rows of 96": packed(inputs["target"], labels, 96),
        "German only, packed into rows of 512": packed(inputs["target"], labels, 512),
    }
    header = ("pipeline", "padding", "batches", "positions", "shapes")
    show(header, arguments.markdown)
    if arguments.markdown:
        show(("---", *["---:"] * 4), True)
    for name, batches in results.items():
        padding = batches.padding()
        cells = (f"{padding.share:.1%}", f"{padding.batches:,}", f"{padding.positions:,}")
        show((name, *cells, str(len(shapes(batches)))), arguments.markdown)


class AnyOrder(text.Batches):
    """Batches without buckets: `rows` examples each, in random order."""

    def __init__(self, inputs, labels, rows: int):
        self.parts = {**inputs, "labels": labels}
        order = np.random.default_rng(0).permutation(len(labels))
        self.chosen = [order[first : first + rows] for first in range(0, len(order), rows)]
        self.steps = len(self.chosen)

    def batch(self, step: int):
        chosen = self.chosen[step]
        return {
            name: part.to_padded(chosen, int(part.lengths[chosen].max()))
            for name, part in self.parts.items()
        }

    def padding(self) -> text.Padding:
        positions = sum(x.size for step in range(self.steps) for x in self.batch(step).values())
        tokens = sum(int(part.lengths.sum()) for part in self.parts.values())
        return text.Padding(tokens, positions, self.steps)


def packed(inputs, labels, length: int) -> text.PackedBatches:
    return text.PackedBatches(
        {"target": inputs}, labels, length=length, batch_size=max(1, translation.TOKENS // length)
    )


def shapes(batches) -> set:
    """The lengths of the batches of an epoch, ignoring the number of rows."""
    found = set()
    for step in range(batches.steps):
        batch = batches.batch(step)
        inputs = batch[0] if isinstance(batch, tuple) else batch
        found.add(tuple(x.shape[1] for x in inputs.values()))
    return found


def show(cells, markdown: bool) -> None:
    if markdown:
        print(f"| {' | '.join(cells)} |")
    else:
        print("".join([f"{cells[0]:44}", *(f"{cell:>12}" for cell in cells[1:])]))


if __name__ == "__main__":
    main()
