"""`import keras_tfm` is lazy and free; each public name is there when it is asked for."""

import importlib
import inspect
import json
import subprocess
import sys
import textwrap

import pytest

import keras_tfm

HEAVY = {"tensorflow", "keras", "numpy", "ai_edge_litert", "jax", "torch"}
SUBPACKAGES = [name for name in keras_tfm.__all__ if inspect.ismodule(getattr(keras_tfm, name))]


def modules_after(script):
    script = textwrap.dedent(script) + "\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    command = [sys.executable, "-W", "error", "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stdout))


@pytest.mark.parametrize(
    "script",
    ["import keras_tfm", "import keras_tfm; dir(keras_tfm)", "from keras_tfm import __version__"],
)
def test_the_import_loads_nothing_heavy(script):
    """So that it costs no more than `import keras`: a few milliseconds, and this package's two."""
    modules = modules_after(script)
    assert not {name.split(".")[0] for name in modules} & HEAVY
    ours = {name for name in modules if name.split(".")[0] == "keras_tfm"}
    assert ours == {"keras_tfm", "keras_tfm.version"}


def test_the_first_use_loads_what_is_used():
    modules = modules_after("import keras_tfm; keras_tfm.runtime.load")
    assert "keras_tfm.runtime" in modules
    assert "keras_tfm.layers" not in modules


@pytest.mark.parametrize("name", SUBPACKAGES)
def test_a_subpackage_has_what_it_lists(name):
    module = getattr(keras_tfm, name)
    assert module is importlib.import_module(f"keras_tfm.{name}")
    assert module.__doc__
    for public in module.__all__:
        assert getattr(module, public).__doc__


def test_dir_lists_what_there_is():
    assert set(dir(keras_tfm)) == set(keras_tfm.__all__)


def test_an_unknown_name_is_named():
    with pytest.raises(AttributeError, match=r"has no attribute 'leyers'; it has .*'layers'"):
        keras_tfm.leyers  # noqa: B018
    with pytest.raises(ImportError, match="leyers"):
        from keras_tfm import leyers  # noqa: F401
