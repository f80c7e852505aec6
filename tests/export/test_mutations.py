"""Files of another model are refused in every preset, however coarse.

`python benchmarks/verification.py` prints the whole table.
"""

import numpy as np
import pytest
import verification as benchmark
from small_exports import folder, new_path

from keras_tfm.export import VerificationError, verify

SOME = {
    ("gpt", "int4"): ["feed_forward_shuffled", "head_zeroed", "mask_off_by_one"],
    ("bert", "int8"): ["attention_zeroed", "half_vocabulary_zeroed", "mask_ignored"],
    ("composed", "int8_full"): ["bias_dropped", "positions_shifted", "wrong_activation"],
}


@pytest.mark.default
@pytest.mark.parametrize(
    ("name", "preset"),
    [pytest.param(*x, marks=[pytest.mark.slow] * (x[1] != "int4")) for x in SOME],
)
def test_a_file_of_another_model_is_refused(name, preset):
    mutations = [getattr(benchmark, x) for x in SOME[name, preset]]
    found = benchmark.mutated(name, preset, folder(), mutations)
    assert found == dict.fromkeys(SOME[name, preset], True)


@pytest.mark.slow
@pytest.mark.parametrize("preset", benchmark.PRESETS)
@pytest.mark.parametrize("name", benchmark.MODELS)
def test_every_mutation_is_refused(name, preset):
    found = benchmark.mutated(name, preset, folder())
    assert [key for key, refused in found.items() if not refused] == []


@pytest.mark.parametrize("preset", ["float32", "int4"])
def test_one_row_of_a_vocabulary_is_seen(preset):
    """Every id is read by some row, and every stored number compared with the model's."""
    model, path = benchmark.made("bert", seed=2, trained=False), new_path()
    report = benchmark.exported("bert", model, preset, path)
    assert report.verification.checks[0].graph_error < 1e-5
    table = benchmark.layers_of(model, benchmark.TokenEmbedding)[0].embeddings
    values = benchmark.value(table)
    row = np.arange(benchmark.VOCABULARY)[:, np.newaxis] == 61
    with (
        benchmark.assigned((table, np.where(row, values[::-1], values))),
        pytest.raises(VerificationError, match=r"predict: .*expected a relative error"),
    ):
        verify(model, path)
