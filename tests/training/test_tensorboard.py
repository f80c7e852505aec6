import keras
import numpy as np
import pytest
from execution import tensorflow_only

from keras_tfm import training
from keras_tfm.layers import PositionalEncoding, TokenEmbedding, TransformerEncoderBlock

pytestmark = tensorflow_only
pytest.importorskip("tensorboard")

IDS = np.array([[3, 4, 5, 0], [6, 7, 8, 9], [5, 4, 0, 0], [1, 2, 3, 0]])


def tagger(**options):
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = PositionalEncoding()(TokenEmbedding(11, 8, mask_zero=True)(ids))
    x = TransformerEncoderBlock(16, 2, name="encoder")(x)
    model = keras.Model(ids, keras.layers.Dense(11)(x))
    model.compile(
        keras.optimizers.SGD(training.LinearSchedule(0.5, 10, 5)),
        training.LabelSmoothedCrossEntropy(0.0),
        **{"metrics": [training.Perplexity()], **options},
    )
    return model


def written(folder):
    """(tag, step) -> the value, or for a picture its (height, width)."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    found = {}
    for path in sorted(folder.rglob("events.out.*")):
        for event in EventFileLoader(str(path)).Load():
            for x in event.summary.value:
                value = make_ndarray(x.tensor)
                if value.ndim:  # a picture: width, height, bytes
                    value = (int(value[1]), int(value[0]))
                found[x.tag, event.step] = value
    return found


def test_rates_norms_tokens_and_pictures(tmp_path, monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    model = tagger()
    seen = []

    class Norms(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(float(self.model.optimizer._gradient_watch.norm))

    board = training.TensorBoard(
        tmp_path, update_freq=1, attention_inputs=IDS, attention_freq=2, write_graph=False
    )
    model.fit(
        IDS, IDS, batch_size=2, epochs=2, shuffle=False, verbose=0, callbacks=[board, Norms()],
        validation_data=(IDS[:1], IDS[:1]),
    )  # fmt: skip
    found = written(tmp_path / "train")
    # A step's rate is the next one's: Keras counts up before.
    rates = [found["batch_learning_rate", step] for step in (1, 2, 3, 4)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4])
    norms = [found["batch_gradient_norm", step] for step in (1, 2, 3, 4)]
    assert norms == pytest.approx(seen) and min(norms) > 0
    assert found["epoch_gradient_norm", 0] == pytest.approx(np.mean(seen[:2]))
    assert found["epoch_gradient_norm", 1] == pytest.approx(np.mean(seen[2:]))
    # The clock goes a second a look: 7 tokens, then 5; validation counts none.
    speeds = [found["batch_tokens_per_second", step] for step in (1, 2, 3, 4)]
    assert speeds == pytest.approx([7, 5, 7, 5])
    assert [found["epoch_tokens_per_second", epoch] for epoch in (0, 1)] == pytest.approx([6, 6])
    pictures = {key for key in found if key[0].startswith("attention/")}
    assert pictures == {("attention/000_self_attention", 1)}
    assert min(found["attention/000_self_attention", 1]) > 100
    assert ("epoch_perplexity", 1) in found and ("epoch_learning_rate", 1) in found
    assert ("epoch_perplexity", 1) in written(tmp_path / "validation")


def test_by_the_epoch_and_without_what_counts_tokens(tmp_path):
    model = tagger(metrics=[])
    board = training.TensorBoard(tmp_path, write_graph=False)
    model.fit(IDS, IDS, batch_size=2, verbose=0, callbacks=[board])
    tags = {tag for tag, _ in written(tmp_path)}
    assert {"epoch_gradient_norm", "epoch_learning_rate", "epoch_loss"} <= tags
    assert not [tag for tag in tags if "tokens" in tag or tag.startswith(("batch", "attention"))]


@pytest.mark.default
def test_training_is_the_same_with_it(tmp_path):
    first, second = tagger(), tagger()
    second.set_weights(first.get_weights())
    options = {"batch_size": 2, "epochs": 2, "shuffle": False, "verbose": 0}
    one = first.fit(IDS, IDS, **options).history
    both = [training.TerminateOnNaN(), training.TensorBoard(tmp_path, write_graph=False)]
    two = second.fit(IDS, IDS, callbacks=both, **options).history
    for name, values in one.items():
        np.testing.assert_allclose(two[name], values, rtol=1e-6)
    assert "apply" not in vars(second.optimizer)


def test_what_is_out_of_range():
    with pytest.raises(ValueError, match="attention_freq must be at least 1, got 0"):
        training.TensorBoard(attention_freq=0)
