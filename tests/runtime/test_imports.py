"""The runtime needs numpy and LiteRT alone: checked in a process of its own."""

import json
import subprocess
import sys
import textwrap

import pytest
from small_exports import small_file, small_tokens

HEAVY = {"tensorflow", "keras", "jax", "torch", "keras_hub", "scipy", "h5py"}


def run(script):
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout), result.stderr


def test_the_import_loads_numpy_alone():
    modules, _ = run("""
        import json, sys
        import keras_tfm.runtime
        print(json.dumps(sorted(sys.modules)))
    """)
    packages = {name.split(".")[0] for name in modules}
    assert "numpy" in packages
    assert not packages & (HEAVY | {"ai_edge_litert", "flatbuffers"})
    of_ours = [name for name in modules if name.startswith("keras_tfm.")]
    allowed = {"arguments", "atomic_files", "optional_package", "version"}
    allowed = {f"keras_tfm.{name}" for name in allowed}
    assert {name for name in of_ours if "runtime" not in name} <= allowed


@pytest.fixture(scope="module")
def answered():
    return run(f"""
        import json, sys
        class Refuse:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in {sorted(HEAVY)}:
                    raise ModuleNotFoundError(name)
        sys.meta_path.insert(0, Refuse())
        from keras_tfm import runtime
        model = runtime.load({small_file(num_layers=2).path!r})
        tokens = model.generate([3, 4, 5, 6, 7]).tokens.tolist()
        print(json.dumps([tokens, sorted(sys.modules)]))
    """)


def test_generating_loads_neither_keras_nor_tensorflow(answered):
    (_, modules), _ = answered
    assert not {name.split(".")[0] for name in modules} & HEAVY


def test_it_answers_as_keras(answered):
    (tokens, _), _ = answered
    assert tokens == small_tokens(num_layers=2)[:1].tolist()


def test_standard_error_has_one_line_of_litert(answered):
    """LiteRT has no setting to turn it off, and nobody else's lines may be lost."""
    _, stderr = answered
    assert stderr == "INFO: Created TensorFlow Lite XNNPACK delegate for CPU.\n"
