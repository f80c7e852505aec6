import keras
import numpy as np
import pytest

from keras_tfm import layers
from keras_tfm.models.vision.clip import LogitBias, LogitScale
from keras_tfm.models.vision.depth_anything import AlignedResize, Grid
from keras_tfm.models.vision.resnet import ResNetBlock

MAP = np.ones((2, 4, 4, 3), "float32")


@pytest.mark.parametrize(
    ("layer", "inputs"),
    [
        (ResNetBlock(4, stride=2), [MAP]),
        (AlignedResize(2), [MAP, MAP]),
        (Grid(), [np.ones((2, 17, 3), "float32"), MAP]),
        (LogitScale(), [MAP[:, :, 0]]),
        (LogitBias(), [MAP[:, :, 0]]),
    ],
    ids=lambda x: x.name if isinstance(x, keras.Layer) else "",
)
@pytest.mark.filterwarnings("ignore:.*does not support masking")
def test_no_mask_of_an_output_of_another_shape(layer, inputs):
    x, *others = inputs
    masked = keras.layers.Masking()(x)
    assert layer(masked, *others).shape[:-1] != masked.shape[:-1]
    assert getattr(layer(masked, *others), "_keras_mask", None) is None


class WithOthers(layers.FeedForward):
    """A user's layer that takes others."""

    def __init__(self, intermediate_dim, others=(), **kwargs):
        super().__init__(intermediate_dim, **kwargs)
        self.others = [
            x if isinstance(x, keras.Layer) else keras.layers.deserialize(x) for x in others
        ]


def test_a_copy_has_its_own_layers():
    """Those in a list, as a single one."""
    layer = WithOthers(4, [keras.layers.Dense(3), keras.layers.ReLU(max_value=2.0)])
    copy = WithOthers.from_config(layer.get_config())
    assert [type(x) for x in copy.others] == [keras.layers.Dense, keras.layers.ReLU]
    assert copy.others[0] is not layer.others[0]
    assert copy.others[1].max_value == 2.0
