"""A task, a backbone or the folder of a preset of KerasHub, as one that can be read."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from keras_tfm.checkpoints.keras_hub.families import check_class, family_of
from keras_tfm.checkpoints.keras_hub.family import HubFamily
from keras_tfm.checkpoints.keras_hub.heads import kind_of
from keras_tfm.checkpoints.keras_hub.settings import HubPart, Settings
from keras_tfm.checkpoints.keras_hub.variables import Variables
from keras_tfm.checkpoints.tensors import read_json
from keras_tfm.generation.tokenizers.keras_hub import is_of_keras_hub, is_own_class
from keras_tfm.keras_internals import sublayers
from keras_tfm.optional_package import optional_package

# Their presets do not say whether the embedding is tied, and KerasHub cannot load one that is.
_WITHOUT_TIE = ("LlamaBackbone", "Llama3Backbone")
_WEIGHTS = ("model.weights.h5", "model.weights.json")


@dataclass(frozen=True)
class Source:
    """A model of KerasHub.

    Attributes:
        model: the task, or the backbone if there is no task.
        backbone: the backbone.
        family: its `HubFamily`.
        kind: str, the kind of the task, see `heads.KINDS`; None: there is no task.
    """

    model: HubPart
    backbone: keras.Model
    family: HubFamily
    kind: str | None

    @classmethod
    def of(cls, model: HubPart) -> "Source":
        """The source of a task or backbone.

        Raises:
            TypeError: it is neither.
            ValueError: its class is not one that KerasHub itself has, or not supported.
        """
        if not isinstance(model, keras.Model) or not is_of_keras_hub(model):
            raise TypeError(
                "expected a Task or Backbone of KerasHub or the folder of a preset, "
                f"got {type(model).__name__}"
            )
        backbone = getattr(model, "backbone", None)
        if backbone is None:
            return cls(model, model, family_of(model), None)
        family = family_of(backbone)
        if not is_own_class(model):
            raise ValueError(
                f"expected a task of KerasHub itself, got {type(model).__name__}, which may "
                "compute something else: give its backbone"
            )
        return cls(model, backbone, family, kind_of(model))

    @property
    def task(self) -> keras.Model:
        """The task; None for a backbone."""
        return None if self.kind is None else self.model

    @property
    def preprocessor(self) -> keras.Layer | None:
        """The preprocessor of the task; None without one."""
        return getattr(self.model, "preprocessor", None)

    @property
    def settings(self) -> Settings:
        """The settings of the backbone."""
        return Settings.of(self.backbone, self.preprocessor)

    @property
    def is_float32(self) -> bool:
        """Whether the model computes in float32, with weights that are not rounded."""
        return all(
            x.quantization_mode is None and x.compute_dtype == "float32"
            for x in [self.backbone, *sublayers(self.backbone)]
            if x.weights
        )

    def in_float32(self, variables: Variables) -> "Source":
        """A copy that computes in float32, with these values."""
        backbone = type(self.backbone).from_config(_in_float32(self.settings.fields))
        model = backbone
        if self.kind is not None:
            dropped = ("backbone", "preprocessor", "dtype", "trainable")
            given = {k: x for k, x in self.model.get_config().items() if k not in dropped}
            model = type(self.model)(backbone=backbone, preprocessor=None, **given)
        copy = Variables(model)
        for path in copy.paths:
            copy.variable(path).assign(variables.value(path))
        return Source(model, backbone, self.family, self.kind)


def _in_float32(config: Any) -> Any:
    """A configuration with another dtype, also that of backbones inside."""
    if isinstance(config, dict):
        return {k: "float32" if k == "dtype" else _in_float32(x) for k, x in config.items()}
    return config


def is_preset(folder: Path) -> bool:
    """Whether a folder is a preset, of KerasHub or with a class of the user's own."""
    file = folder / "config.json"
    fields = read_json(file) if file.is_file() else {}
    return "class_name" in fields and "model_type" not in fields


def open_preprocessor(folder: Path) -> keras.Layer:
    """The preprocessor of a preset, without its model; None if the preset has none.

    Raises:
        ModuleNotFoundError: KerasHub is not installed.
        ValueError: its class is not KerasHub's.
    """
    file = folder / "preprocessor.json"
    if not file.is_file():
        return None
    name = str(read_json(file).get("class_name"))
    cls = getattr(_hub(), name, None)
    if cls is None:
        raise ValueError(f"{file}: KerasHub has no preprocessor {name!r}")
    return cls.from_preset(str(folder))


def _hub() -> HubPart:
    need = "reading a preset of KerasHub needs it"
    return optional_package("keras_hub", need, "keras-hub", extra="hub").models


def open_preset(folder: str | Path) -> keras.Model:
    """The task or backbone of a folder that `save_to_preset` wrote.

    Raises:
        FileNotFoundError: the folder or its weights do not exist.
        ModuleNotFoundError: KerasHub is not installed.
        ValueError: it is no preset of KerasHub, or of a family that is not supported.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} is no folder of a KerasHub preset: no config.json")
    config = read_json(folder / "config.json")
    if "model_type" in config:
        raise ValueError(f"{folder} is a folder of transformers: load it with load_huggingface")
    if not str(config.get("module")).startswith("keras_hub."):
        raise ValueError(
            f"{folder / 'config.json'}: module must be one of keras_hub, "
            f"got {config.get('module')!r}"
        )
    check_class(str(config.get("class_name")))
    if not any((folder / name).is_file() for name in _WEIGHTS):
        raise FileNotFoundError(f"{folder} has no weights, expected {' or '.join(_WEIGHTS)}")
    hub, cls = _hub(), None
    if (folder / "task.json").is_file():
        name = str(read_json(folder / "task.json").get("class_name"))
        cls = getattr(hub, name, None)
        if cls is None:
            raise ValueError(f"{folder / 'task.json'}: KerasHub has no task {name!r}")
    omits_tie = config["class_name"] in _WITHOUT_TIE
    omits_tie = omits_tie and "tie_word_embeddings" not in config.get("config", {})
    with warnings.catch_warnings():
        if omits_tie:  # of the weights that are missing
            warnings.simplefilter("ignore")
        try:
            return (cls or hub.Backbone).from_preset(str(folder))
        except FileNotFoundError:
            raise
        except OSError as error:  # of h5py, without the file's name
            raise OSError(f"{folder}: its weights cannot be read: {error}") from error
        except ValueError:
            if not omits_tie:
                raise
    backbone = hub.Backbone.from_preset(str(folder), tie_word_embeddings=True)
    return backbone if cls is None else cls(backbone, open_preprocessor(folder))
