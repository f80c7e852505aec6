"""How a model computes with rounded weights: its variables are read in a scope of their own.

No layer knows of it: inside the scope, `keras.Variable.value` is the rounded value.

Example:

>>> from keras_tfm import models
>>> from keras_tfm.models.quantization.state import TrainedQuantization
>>> model = models.gpt(20, dim=32, num_layers=1, num_heads=2, intermediate_dim=64)
>>> len(TrainedQuantization(model, "int4").weights)  # the table and four matrices
5
"""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import numpy as np

from keras_tfm.keras_internals import current_stateless_scope, sublayers, value_without_autocast
from keras_tfm.layers.base_layer import has_adapters
from keras_tfm.layers.decoding.cache import rounded_caches
from keras_tfm.layers.types import Config, Tensor
from keras_tfm.models.quantization.named_layers import has_name
from keras_tfm.models.quantization.rounded_inputs import observe, rounded_inputs
from keras_tfm.models.quantization.rounded_weights import RoundedWeight, layers_of, rounded_weights
from keras_tfm.models.quantization.rounding import Grid

# Of a model, in `vars`, because Keras would track an attribute.
_KEY = "_keras_tfm_quantization"
# Names of arrays of published grids in a file of weights, before the number of the weight.
_SCALES, _OFFSETS = "published_scales_", "published_offsets_"


class TrainedQuantization:
    """The rounding that a model is trained with, from `models.enable_quantization`.

    Or the grids of a quantized checkpoint, whose scales stay as they are.

    Args:
        model: functional `keras.Model`.
        quantization: str, "int8" or "int4".
        keep_float, keep_int8: names of layers.
        activations: bool, whether the inputs of layers with rounded weights are rounded.
        cache: str, "float32" or "int8", the format of KV caches.

    Attributes:
        weights: list of `RoundedWeight`.
        inputs: the layers whose inputs are rounded, see `observe`.
    """

    def __init__(
        self,
        model: keras.Model,
        quantization: str,
        keep_float: Sequence[str] = (),
        keep_int8: Sequence[str] = (),
        activations: bool = False,
        cache: str = "float32",
    ):
        self.quantization = quantization
        self.keep_float, self.keep_int8 = list(keep_float), list(keep_int8)
        self.activations, self.cache = activations, cache
        self.weights = rounded_weights(model, quantization, keep_float, keep_int8)
        self._layers = layers_of(model, self.weights)
        self.publish({})

    @contextmanager
    def rounded_values(self, caches: bool = True) -> Iterator[None]:
        """The context in which activations and `caches` are rounded, if they are at all."""
        with ExitStack() as stack:
            if self.activations:
                stack.enter_context(rounded_inputs(self.inputs))
            if self.cache == "int8" and caches:
                stack.enter_context(rounded_caches())
            yield

    def get_config(self) -> Config:
        """The arguments."""
        return {
            "quantization": self.quantization,
            "keep_float": self.keep_float,
            "keep_int8": self.keep_int8,
            "activations": self.activations,
            "cache": self.cache,
        }

    @property
    def is_published(self) -> bool:
        """Whether a weight has the grid of a checkpoint."""
        return any(x.grid.scales is not None for x in self.weights)

    @property
    def is_as_published(self) -> bool:
        """Whether weights have the grids of a checkpoint, and nothing else is rounded."""
        return self.is_published and not self.activations and self.cache == "float32"

    @property
    def statement(self) -> str:
        """What a message says of the model, after its name."""
        if self.is_as_published:
            return f"has the {self.quantization} grids of its checkpoint"
        return f"is trained with {self.quantization} weights"

    def publish(self, grids: Mapping[int, Grid]) -> None:
        """Sets the grids of weights, by their number in `weights`."""
        self.weights = [
            RoundedWeight(x.variable, grids.get(i, x.grid)) for i, x in enumerate(self.weights)
        ]
        layers = [(layer, self.weights[i].grid) for layer, i in self._layers]
        self.inputs = observe(layers) if self.activations else {}

    def copy(self, model: keras.Model) -> "TrainedQuantization":
        """The same rounding, of a copy of the model."""
        result = TrainedQuantization(model, **self.get_config())
        result.publish({i: x.grid for i, x in enumerate(self.weights)})
        return result

    def of_resized(self, model: keras.Model, grids: Mapping[int, Grid]) -> "TrainedQuantization":
        """The same rounding, of a copy with weights of other sizes.

        Args:
            model: the copy. In "int8", a weight that was too small to be rounded may no longer be.
            grids: those of the copy's weights that were rounded, by the `id` of the variable.
        """
        result = TrainedQuantization(model, **self.get_config())
        found = {
            i: grids[id(x.variable)]
            for i, x in enumerate(result.weights)
            if id(x.variable) in grids
        }
        result.publish(found)
        return result

    def of_derived(self, model: keras.Model) -> "TrainedQuantization":
        """The same rounding, of another model with some of the layers."""
        layers = sublayers(model)
        options = {
            option: [x for x in names if any(has_name(layer, [x]) for layer in layers)]
            for option, names in (("keep_float", self.keep_float), ("keep_int8", self.keep_int8))
        }
        return self.with_options(model, **options)

    def with_options(self, model: keras.Model, **options: Any) -> "TrainedQuantization":
        """Another rounding of the model, with the published grids of weights that keep their bits.

        With rounded activations, these have the scales that LiteRT reads.
        """
        result = TrainedQuantization(model, **{**self.get_config(), **options})
        grids = {id(x.variable): x.grid for x in self.weights}
        kept = {}
        for i, (variable, plain) in enumerate(result.weights):
            grid = grids.get(id(variable), plain)
            if grid.bits == plain.bits:
                kept[i] = grid.as_it_runs() if result.activations else grid
        result.publish(kept)
        return result

    def save(self, store: MutableMapping[str, np.ndarray]) -> None:
        """Adds the published scales to what Keras saves of a model's own variables."""
        for i, (_, grid) in enumerate(self.weights):
            if grid.scales is not None:
                store[f"{_SCALES}{i}"] = grid.scales
            if grid.offsets is not None:
                store[f"{_OFFSETS}{i}"] = grid.offsets

    def load(self, store: Mapping[str, np.ndarray]) -> None:
        """Reads what `save` added."""
        grids = {}
        for i, (_, grid) in enumerate(self.weights):
            if f"{_SCALES}{i}" in store:
                scales = np.asarray(store[f"{_SCALES}{i}"])
                offsets = None
                if f"{_OFFSETS}{i}" in store:
                    offsets = np.asarray(store[f"{_OFFSETS}{i}"])
                bits = 8 if scales.ndim == 1 else 4
                grids[i] = Grid(bits, grid.first, grid.last, scales, offsets)
        self.publish(grids)


def own_variables(store: Mapping[str, Any]) -> dict[str, Any]:
    """What Keras saved of a model's own variables, without published scales."""
    names = [key for key in store.keys() if not key.startswith((_SCALES, _OFFSETS))]  # noqa: SIM118
    return {key: store[key] for key in names}


def quantization_of(model: Any) -> TrainedQuantization | None:
    """The rounding of a model's weights in Keras; None: there is none."""
    found: TrainedQuantization | None = vars(model).get(_KEY)
    return found


def is_quantized(model: keras.Model) -> bool:
    """Whether Keras's `quantize` changed a layer of the model."""
    return any(getattr(x, "quantization_mode", None) is not None for x in sublayers(model))


def quantization_settings(model: keras.Model) -> Config | None:
    """What `set_quantization_settings` sets, of JSON values; None: the model has no rounding."""
    state = quantization_of(model)
    return None if state is None else {**state.get_config(), "is_published": state.is_published}


def set_quantization_settings(model: keras.Model, settings: Config | None) -> None:
    """Gives a model the rounding that another instance of it has had in training.

    A model of a quantized checkpoint keeps the grids that it was loaded with.
    """
    known = quantization_of(model)
    if settings == quantization_settings(model):
        return
    if settings is None:
        set_quantization(model, None)
        return
    options = {key: x for key, x in settings.items() if key != "is_published"}
    if settings["is_published"] and known is not None:
        set_quantization(model, known.with_options(model, **options))
    else:
        set_quantization(model, TrainedQuantization(model, **options))


def saved_quantization(model: keras.Model) -> TrainedQuantization | None:
    """The rounding that files and copies of a model have; None: there is none.

    Adapters are merged there, and rounded weights with them are on no grid.
    """
    state = quantization_of(model)
    return None if state is None or has_adapters(model) else state


def set_quantization(model: keras.Model, state: TrainedQuantization | None) -> None:
    """Sets what `quantization_of` returns, and makes the model's compiled functions again.

    A callback may do that: `fit` goes on with the new function.
    """
    vars(model)[_KEY] = state
    for name in ("train", "test", "predict"):
        if getattr(model, f"{name}_function") is not None:
            getattr(model, f"make_{name}_function")(force=True)


def round_values(
    state: TrainedQuantization, variables: Sequence[Any], values: Sequence[Any]
) -> list[Any]:
    """The values of these variables, those of rounded weights rounded."""
    grids = {id(x.variable): x.grid for x in state.weights}
    return [
        grids[id(variable)].straight_through(value) if id(variable) in grids else value
        for variable, value in zip(variables, values, strict=True)
    ]


@contextmanager
def rounded_reads(model: keras.Model) -> Iterator[list[Tensor]]:
    """The context in which the model's layers read rounded weights, rounded once at its start.

    Of a model that is not trained with rounding, it does nothing. Yields the list of losses that
    the layers add inside, which Keras does not keep in such a context.
    """
    state = quantization_of(model)
    if state is None:
        yield []
        return
    values = {
        id(x.variable): x.grid.straight_through(value_without_autocast(x.variable))
        for x in state.weights
    }
    with state.rounded_values(), _Scope(values) as scope:
        yield [] if scope.outer is not None else scope.losses


@contextmanager
def rounded_beside_adapters(model: keras.Model) -> Iterator[None]:
    """The context in which a model is saved or copied: with adapters, its weights are rounded."""
    state = quantization_of(model)
    if state is None or not has_adapters(model):
        yield
        return
    # Assigned, not read in a scope: in one, Keras cannot save the state of an optimizer.
    before = [keras.ops.copy(value_without_autocast(x.variable)) for x in state.weights]
    try:
        for (variable, grid), value in zip(state.weights, before, strict=True):
            variable.assign(grid.straight_through(value))
        yield
    finally:
        for (variable, _), value in zip(state.weights, before, strict=True):
            variable.assign(value)


class _Scope(keras.StatelessScope):
    """Reads of rounded weights give `values`; all else is left to the scope around it, if any."""

    def __init__(self, values: dict[int, Tensor]):
        super().__init__(collect_losses=True, initialize_variables=False)
        self._values, self.outer = values, current_stateless_scope()
        if self.outer is not None:
            self.collect_losses, self.losses = self.outer.collect_losses, self.outer.losses

    def get_current_value(self, variable: keras.Variable) -> Tensor | None:
        value = self._values.get(id(variable))
        if value is None and self.outer is not None:
            value = self.outer.get_current_value(variable)
        return value

    def add_update(self, update: tuple[keras.Variable, Tensor]) -> None:
        variable, value = update
        if self.outer is not None:
            self.outer.add_update(update)
            return
        self.__exit__()
        try:
            variable.assign(value)
        finally:
            self.__enter__()
