"""The families of KerasHub's backbones, by class.

Example:

>>> from keras_tfm.checkpoints.keras_hub.families import FAMILIES
>>> FAMILIES["BertBackbone"].builder.__name__
'bert'
"""

import keras

from keras_tfm.checkpoints.keras_hub import decoders, encoder_decoders, encoders, vision
from keras_tfm.checkpoints.keras_hub.family import HubFamily
from keras_tfm.generation.tokenizers.keras_hub import is_own_class

FAMILIES: dict[str, HubFamily] = {
    x.backbone: x
    for module in (encoders, decoders, encoder_decoders, vision)
    for x in vars(module).values()
    if isinstance(x, HubFamily)
}


def family_of(backbone: keras.Model) -> HubFamily:
    """The family of a backbone.

    Raises:
        ValueError: its class is a subclass of KerasHub's, or of a family that is not supported.
    """
    cls = type(backbone)
    if not is_own_class(backbone):
        known = [x.__name__ for x in cls.__mro__ if x.__name__ in FAMILIES]
        what = f"a subclass of {known[0]}" if known else "which KerasHub does not have"
        raise ValueError(
            f"expected a backbone of KerasHub itself, got {cls.__name__}, {what}: it may compute "
            "something else"
        )
    check_class(cls.__name__)
    return FAMILIES[cls.__name__]


def check_class(name: str) -> None:
    """Raises if a class of backbones is not supported."""
    if name not in FAMILIES:
        raise ValueError(
            f"keras_tfm has no layers for a {name} of KerasHub, only for {', '.join(FAMILIES)}; "
            "export_tflite exports the task itself, not its preset, as it is, for 'predict'"
        )
