"""What holds for all tests."""

import gc
import weakref

import pytest


def pytest_collection_finish(session):
    """Fewer collections of garbage: to walk what is traced, and stays, was a tenth of the time."""
    gc.collect()
    gc.freeze()  # modules
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture(autouse=True, scope="session")
def a_model_is_checked_once():
    """Many tests make a `Generator`, or a file, of one model, and each would step it to compare.

    What is refused is refused each time, and generation/test_stepping.py tests the check itself.
    """
    import keras

    if keras.backend.backend() != "tensorflow":  # export needs TensorFlow
        yield
        return
    from keras_tfm.export import signatures
    from keras_tfm.generation import generator

    check_stepping = generator.check_stepping
    checked = weakref.WeakKeyDictionary()

    def check_once(model, target=None, length=8):
        lengths = checked.setdefault(model, set())
        if (target, length) not in lengths:
            check_stepping(model, target, length=length)
            lengths.add((target, length))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generator, "check_stepping", check_once)
        patch.setattr(signatures, "check_stepping", check_once)
        yield
