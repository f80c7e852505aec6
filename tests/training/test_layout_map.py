"""`layout_map` on a backend without `keras.distribution`; on JAX: tests/distributed."""

import keras
import pytest

from keras_tfm import training


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="other backends")
def test_another_backend_is_told_what_to_use():
    with pytest.raises(RuntimeError) as caught:
        training.layout_map(lambda: 1 / 0, None)
    backend = keras.backend.backend()
    assert str(caught.value).startswith(
        f"keras.distribution needs Keras's JAX backend, got {backend!r}: use "
    )
    assert ("training.distribution" if backend == "tensorflow" else "torch.nn") in str(caught.value)
