"""The fixtures of `parity/make_huggingface_fixture.py`: folders, inputs, what transformers made."""

import functools
from pathlib import Path

import keras
import numpy as np
from compare import to_numpy

from keras_tfm.checkpoints import load_huggingface

FOLDER = Path(__file__).parent / "parity" / "huggingface"
CASES = sorted(path.parent.name for path in FOLDER.glob("*/expected.npz"))
GENERATING = [case for case in CASES if "beam" in np.load(FOLDER / case / "expected.npz")]
INPUTS = ("tokens", "segments", "source", "target")


@functools.cache
def loaded(case):
    """The model of a case: nobody may change its weights."""
    return load_huggingface(FOLDER / case)


@functools.cache
def expected(case):
    with np.load(FOLDER / case / "expected.npz") as arrays:
        return dict(arrays)


def inputs_of(case, model=None):
    """As the model takes them."""
    model = model or loaded(case)
    arrays = {name: x for name, x in expected(case).items() if name in INPUTS}
    if isinstance(model.input, dict):
        return {name: arrays[name] for name in model.input}
    (array,) = arrays.values()
    return array


def outputs_of(case, outputs):
    """A model's outputs by transformers' names."""
    if not isinstance(outputs, dict):
        named = {"logits" if "logits" in expected(case) else "hidden": outputs}
    else:
        names = {
            "features": "hidden",
            "pooled": "pooler_output",
            "tokens": "prediction_logits",
            "next_sentence": "seq_relationship_logits",
            "start": "start_logits",
            "end": "end_logits",
        }
        named = {names[name]: x for name, x in outputs.items()}
    return {name: to_numpy(x) for name, x in named.items()}


def run(model, inputs):
    return keras.tree.map_structure(to_numpy, model(inputs, training=False))
