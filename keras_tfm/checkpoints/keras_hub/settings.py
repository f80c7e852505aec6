"""The configuration of a KerasHub backbone, of which every field must be read.

Example:

>>> from keras_tfm.checkpoints.keras_hub.settings import Settings
>>> settings = Settings("BertBackbone", {"num_layers": 2, "dropout": 0.0}, {"dropout": 0.1})
>>> settings["num_layers"]
2
>>> settings.only(dropout=0.0)
>>> settings.check_all_read()
"""

import inspect
from collections.abc import Mapping
from typing import Any, NoReturn, TypeAlias

import keras

from keras_tfm.checkpoints.config import Arguments

# A model, layer, tokenizer or converter of KerasHub, whose classes mypy does not know.
HubPart: TypeAlias = Any
# Fields that every backbone has, which say nothing of the computation.
_OF_ALL = ("name", "trainable", "dtype")


class Settings:
    """The arguments of a backbone, by name.

    Args:
        owner: str, name of the backbone's class, for messages.
        fields: dict, its `get_config()`.
        defaults: dict, the defaults of its constructor's arguments.
        backbone: the backbone itself, for those inside it.
        preprocessor: the preprocessor of its task; None without one.

    Attributes:
        pad_id: int, the padding id of the preprocessor's tokenizer; None: unknown.
    """

    def __init__(
        self,
        owner: str,
        fields: Mapping[str, Any],
        defaults: Mapping[str, Any],
        backbone: HubPart = None,
        preprocessor: keras.Layer | None = None,
    ):
        self.owner, self.fields, self.defaults = owner, dict(fields), dict(defaults)
        self.backbone, self.preprocessor = backbone, preprocessor
        tokenizer = getattr(preprocessor, "tokenizer", None)
        self.pad_id: int | None = getattr(tokenizer, "pad_token_id", None)
        self._read: set[str] = set(_OF_ALL)

    @classmethod
    def of(cls, backbone: keras.Model, preprocessor: keras.Layer | None = None) -> "Settings":
        """The settings of a backbone."""
        parameters = inspect.signature(type(backbone).__init__).parameters
        defaults = {name: x.default for name, x in parameters.items()}
        # Some backbones leave arguments out of their configuration.
        missing = {name: getattr(backbone, name) for name in parameters if hasattr(backbone, name)}
        fields = {**missing, **backbone.get_config()}
        return cls(type(backbone).__name__, fields, defaults, backbone, preprocessor)

    def __getitem__(self, name: str) -> Any:
        """The value of a field."""
        self._read.add(name)
        return self.fields[name]

    def rename(self, **names: str) -> Arguments:
        """The builder's arguments that have other names in KerasHub: builder's name=field."""
        return {ours: self[field] for ours, field in names.items()}

    def only(self, **allowed: object) -> None:
        """Raises if a field has an unsupported value.

        Args:
            allowed: by field, its only supported value, or a tuple of values.
        """
        for name, value in allowed.items():
            values = value if isinstance(value, tuple) else (value,)
            found = self.fields.get(name, values[0])
            self._read.add(name)
            if not any(found == x for x in values):
                self.refuse(name, found, " or ".join(repr(x) for x in values))

    def pad_id_or(self, default: int) -> int:
        """The padding id of the preprocessor's tokenizer, or a default without one."""
        return default if self.pad_id is None else self.pad_id

    def check_all_read(self) -> None:
        """Raises if a field that nothing reads differs from the constructor's default."""
        for name, value in self.fields.items():
            if name not in self._read and name in self.defaults and value != self.defaults[name]:
                self.refuse(name, value, f"{self.defaults[name]!r}, its default")

    def refuse(self, name: str, value: object, expected: str) -> NoReturn:
        """Raises a ValueError that names the field."""
        raise ValueError(f"{self.owner}: {name} must be {expected}, got {value!r}")


def text_arguments(settings: Settings) -> Arguments:
    """The builder's arguments that most models of texts have in common."""
    return settings.rename(
        vocabulary_size="vocabulary_size",
        dim="hidden_dim",
        num_layers="num_layers",
        num_heads="num_heads",
        intermediate_dim="intermediate_dim",
        dropout="dropout",
    )


def refuse_encoders(settings: Settings, family: str, *names: str) -> None:
    """Raises if a model of texts has an encoder of images or sound, too.

    Args:
        settings: the settings of the backbone.
        family: str, name of the family, for the message.
        names: the fields of the encoders.
    """
    if any(settings[name] is not None for name in names):
        raise ValueError(
            f"{family} is supported for text alone: give a {settings.owner} with "
            f"{' and '.join(f'{name}=None' for name in names)} and the same weights"
        )
