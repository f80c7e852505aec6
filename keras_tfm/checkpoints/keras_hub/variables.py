"""The float values of the variables of a KerasHub model, by path."""

import re
from collections.abc import Iterator

import keras
import numpy as np
from keras import ops

from keras_tfm.checkpoints.keras_hub.settings import HubPart
from keras_tfm.keras_internals import child_layers, float_kernel, is_initialized

# Of a layer with LoRA adapters or rounded weights, all others belong to these.
_WEIGHTS = ("kernel", "embeddings", "reverse_embeddings", "bias")


class Variables:
    """The weights of a model by path: adapters merged, rounded kernels dequantised.

    A path has the names of the layers from the backbone to the weight. Where Keras made a name up
    ("layer_norm_3"), and for nested models, it has the attribute's name; a weight without a name of
    its own ("variable_7") is "variable". The variables' own paths are not unique: those of a layer
    that is built by another may lack the outer one.

    Args:
        model: a built task, backbone or layer of KerasHub. A layer's paths begin with its name.

    Attributes:
        notes: list of str, what was changed.

    Raises:
        ValueError: a weight has no value, or two have the same path.

    Example:

    >>> import keras
    >>> from keras_tfm.checkpoints.keras_hub.variables import Variables
    >>> x = keras.Input((3,))
    >>> Variables(keras.Model(x, keras.layers.Dense(2, name="logits")(x))).paths
    ['logits/kernel', 'logits/bias']
    """

    def __init__(self, model: keras.Model):
        self._found: dict[str, tuple[HubPart, HubPart]] = {}
        adapted, rounded, half = 0, dict[str, int](), set[str]()
        for prefix, layer in _named_layers(model):
            inner = {id(x) for child in child_layers(layer) for x in child.weights}
            own = [x for x in layer.weights if id(x) not in inner]
            mode = getattr(layer, "quantization_mode", None)
            has_adapter = bool(getattr(layer, "lora_enabled", False))
            if own and (mode is not None or has_adapter):
                adapted += has_adapter
                if mode is not None:
                    rounded[mode] = rounded.get(mode, 0) + 1
                own = [x for x in own if x.name in _WEIGHTS]
            for weight in own:
                path = f"{prefix}/{re.sub(r'^variable_[0-9]+$', 'variable', weight.name)}"
                if not is_initialized(weight):
                    raise ValueError(f"{model.name}: {path} has no value, load its weights")
                if path in self._found:
                    raise ValueError(f"{model.name}: two weights have the path {path}")
                self._found[path] = layer, weight
                half |= {str(weight.dtype)} & {"float16", "bfloat16"}
        self.notes = [f"{n} layers in {mode} were dequantised" for mode, n in rounded.items()]
        if adapted:
            self.notes.append(f"the LoRA adapters of {adapted} layers were merged")
        if half:
            self.notes.append(f"weights in {' and '.join(sorted(half))} became float32")

    @property
    def paths(self) -> list[str]:
        """The paths of all weights."""
        return list(self._found)

    def value(self, path: str) -> np.ndarray:
        """The value of a weight, in float32 if it is a float."""
        layer, weight = self._found[path]
        changed = layer.quantization_mode is not None or getattr(layer, "lora_enabled", False)
        if changed and weight.name in _WEIGHTS[:3]:
            return ops.convert_to_numpy(float_kernel(layer, weight.name))
        value = ops.convert_to_numpy(weight)
        return value.astype("float32") if str(weight.dtype) in ("float16", "bfloat16") else value

    def variable(self, path: str) -> keras.Variable:
        """The `keras.Variable` itself."""
        return self._found[path][1]


def _named_layers(model: HubPart) -> Iterator[tuple[str, HubPart]]:
    """The path and layer of every layer in a task or backbone, each once."""
    seen = {id(model)}
    backbone = getattr(model, "backbone", None)
    if backbone is not None:
        seen.add(id(backbone))
        yield from _inner_layers(backbone, "", seen)
    if isinstance(model, keras.Model):
        yield from _inner_layers(model, "", seen)
    else:
        yield model.name, model
        yield from _inner_layers(model, f"{model.name}/", seen)


def _inner_layers(parent: HubPart, prefix: str, seen: set[int]) -> Iterator[tuple[str, HubPart]]:
    attributes = {id(x): name.removeprefix("_") for name, x in vars(parent).items()}
    children = child_layers(parent)
    # Some backbones put their own name before that of each layer.
    own = f"{parent.name}_"
    if not isinstance(parent, keras.Model) or not all(
        x.name.startswith(own) for x in children if x.weights
    ):
        own = ""
    for layer in children:
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        name = layer.name.removeprefix(own)
        if _is_made_up(layer) or isinstance(layer, keras.Model):
            name = attributes.get(id(layer), name)
        yield prefix + name, layer
        yield from _inner_layers(layer, f"{prefix}{name}/", seen)


def _is_made_up(layer: keras.Layer) -> bool:
    """Whether Keras made a layer's name from that of its class."""
    words = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", type(layer).__name__)
    name = re.sub(r"([a-z])([A-Z])", r"\1_\2", words).lower()
    return re.fullmatch(rf"{name}(_\d+)?", layer.name) is not None
