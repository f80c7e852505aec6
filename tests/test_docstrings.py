"""Every example in a docstring runs and gives what it says."""

import doctest
import importlib
import pkgutil

import pytest

import keras_tfm

MODULES = ["keras_tfm"]
MODULES += sorted(m.name for m in pkgutil.walk_packages(keras_tfm.__path__, "keras_tfm."))
# Results, which are returned and not made.
RESULTS = {"Benchmark", "Check", "Footprint", "Generated", "Hypothesis", "Inspection", "Latency"}
RESULTS |= {"Model", "Report", "Subgraph", "Verification", "VerificationError"}
# Examples that need an extra.
NEEDED = {
    "keras_tfm.checkpoints.huggingface": "safetensors",
    "keras_tfm.checkpoints.tokenizer_files": "tokenizers",
    "keras_tfm.runtime.model": "tokenizers",
    "keras_tfm.text.word_piece": "tokenizers",
    "keras_tfm.text.sentence_piece": "sentencepiece",
    "keras_tfm.training.generation_scores": "sacrebleu",
    "keras_tfm.training.tensorboard": "tensorboard",
}


def test_every_module_is_found():
    for name in ("layers.attention", "generation.loop", "export.tflite", "runtime.manifest"):
        assert f"keras_tfm.{name}" in MODULES


# Keras's own saving makes NumPy arrays of variables.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("name", MODULES)
def test_examples(name, capsys):
    if name in NEEDED:
        pytest.importorskip(NEEDED[name])
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module)
    assert failed == 0, capsys.readouterr().out


def public():
    for package in keras_tfm.__all__:
        module = getattr(keras_tfm, package)
        for name in getattr(module, "__all__", ()):
            if name not in RESULTS:
                yield pytest.param(getattr(module, name), id=f"{package}.{name}")


@pytest.mark.parametrize("target", list(public()))
def test_the_public_api_is_learnt_from_examples(target):
    found = doctest.DocTestFinder().find(target, target.__name__)
    assert any(test.examples for test in found)
