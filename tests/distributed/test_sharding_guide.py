"""The guide docs/sharding.md, on JAX with 8 virtual devices: for `.ci/full jax`."""

import keras
import numpy as np
import pytest
from sharded import DATA, WITH_8_DEVICES, distribution, llama
from test_docs import run_blocks

from keras_tfm import training

pytestmark = WITH_8_DEVICES


def test_the_guide_runs_and_prints_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_blocks("sharding")


class Interruption(keras.callbacks.Callback):
    """Ends the training at the begin of an epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise KeyboardInterrupt


def test_an_interrupted_training_ends_with_the_same_weights(tmp_path):
    x, y = DATA[llama]

    def fit(seed, *callbacks):
        keras.utils.set_random_seed(seed)
        model = llama()
        model.compile("adam", training.LabelSmoothedCrossEntropy())
        model.fit(x, y, batch_size=4, epochs=4, shuffle=False, verbose=0, callbacks=callbacks)
        return [keras.ops.convert_to_numpy(v) for v in model.variables + model.optimizer.variables]

    backup = keras.callbacks.BackupAndRestore
    with distribution("model", llama).scope():
        whole = fit(0)
        with pytest.raises(KeyboardInterrupt):
            fit(0, backup(tmp_path / "backup"), Interruption())
        again = fit(1, backup(tmp_path / "backup"))
    for a, b in zip(whole, again, strict=True):
        np.testing.assert_array_equal(a, b)
