"""The model class: `keras.Model` that knows its family and trains on several devices."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import keras

from keras_tfm.distributed.joint_loss import JointLoss, joint_loss
from keras_tfm.distributed.optimizer import (
    check_trained_weights,
    compile_with_optimizer_weights,
    ids_of_trained_weights,
    innermost,
    scale_loss_of_half_precision,
    with_optimizer_weights,
)
from keras_tfm.keras_internals import (
    call_with_known_inputs,
    load_content,
    mark_clones,
    object_sharing_scope,
    saved_content,
    set_remat_mode,
    share_in_clones,
)
from keras_tfm.layers.types import Arguments, Config, Tensor
from keras_tfm.models import identity
from keras_tfm.models.checked_inputs import check_class_weight, known_inputs
from keras_tfm.models.quantization.state import (
    TrainedQuantization,
    own_variables,
    quantization_of,
    round_values,
    rounded_beside_adapters,
    rounded_reads,
    saved_quantization,
    set_quantization,
)
from keras_tfm.models.without_storage import allocate_if_missing
from keras_tfm.optimizer_internals import update_only
from keras_tfm.trainer_internals import (
    compiled_loss,
    keep_weights_after_errors,
    loss_arguments,
    portable_config,
    set_compiled_loss,
)

Base: Any
if keras.backend.backend() == "tensorflow":
    from keras_tfm.distributed.distributed_model import DistributedModel as Base
else:

    class _Base(keras.Model):
        """What `Model` adds on JAX and PyTorch: errors, and weights that are frozen after a step.

        Attributes:
            _weights_of: the identities of the trainable weights for which the function of each
                step was made.
        """

        _weights_of: tuple[tuple[str, tuple[int, ...]], ...] = ()

        def compile(
            self, *args: object, gradient_accumulation_steps: int = 1, **kwargs: object
        ) -> None:
            """`keras.Model.compile`, without accumulation inside a batch."""
            if gradient_accumulation_steps != 1:
                raise ValueError(
                    "compile(gradient_accumulation_steps=) needs Keras's TensorFlow backend, got "
                    f"{keras.backend.backend()}: give it to the optimizer, which accumulates the "
                    "gradients of as many batches"
                )
            super().compile(*args, **kwargs)
            if kwargs.get("auto_scale_loss", True):
                scale_loss_of_half_precision(self)
            loss = compiled_loss(self)
            if loss is not None and joint_loss(loss) is not None:
                set_compiled_loss(self, JointLoss(**loss_arguments(loss)._asdict()))

        def fit(self, *args: Any, **kwargs: Any) -> Any:
            """`keras.Model.fit`; afterwards, averaged weights have memory of their own on JAX.

            Keras 3.15 leaves weights and their moving averages in the same buffers, also after an
            error. The next `fit` donates both, which JAX refuses, and the weights are lost.
            """
            try:
                return super().fit(*args, **kwargs)
            finally:
                averages = getattr(innermost(self.optimizer), "use_ema", False)
                if averages and keras.backend.backend() == "jax":
                    for variable in self.trainable_variables:
                        variable.assign(keras.ops.copy(variable))

        def make_train_function(self, force: bool = False) -> None:
            """Makes the function of a training step for the weights that are trainable now."""
            check_trained_weights(self)
            optimizer = self.optimizer
            if keras.backend.backend() == "jax" and optimizer is not None and optimizer.built:
                update_only(optimizer, self.trainable_variables)
            super().make_train_function(self._trains_others("train") or force)

        def make_test_function(self, force: bool = False) -> None:
            """Makes the function of an evaluation step for the weights that are trainable now."""
            super().make_test_function(self._trains_others("test") or force)

        def make_predict_function(self, force: bool = False) -> Any:
            """Makes the function of a prediction for the weights that are trainable now."""
            return super().make_predict_function(self._trains_others("predict") or force)

        def _trains_others(self, step: str) -> bool:
            """Whether the function of a step was made for other trainable weights.

            On JAX, a compiled step takes trainable and frozen weights apart. With others of the
            same shapes, it would read and train the wrong ones.
            """
            before, now = dict(self._weights_of), ids_of_trained_weights(self)
            self._weights_of = tuple({**before, step: now}.items())
            return before.get(step, now) != now

        def weigh_mean(self, value: Tensor) -> Tensor:
            """A mean over rows; other backends have one replica."""
            return value

        def get_compile_config(self) -> Config:
            """The arguments of `compile`."""
            return with_optimizer_weights(self, super().get_compile_config())

        def compile_from_config(self, config: Config) -> None:
            """Compiles with the arguments of a saved model; Keras's own refuses a subclass."""
            steps = config.get("gradient_accumulation_steps", 1)
            if steps != 1:
                raise ValueError(
                    f"the model was compiled with gradient_accumulation_steps={steps}, which needs "
                    f"Keras's TensorFlow backend, got {keras.backend.backend()}: load it with "
                    "compile=False, and compile it with an optimizer that has "
                    f"gradient_accumulation_steps={steps}, which accumulates as many batches"
                )
            compile_with_optimizer_weights(self, portable_config(config))

    Base = keep_weights_after_errors(_Base) if keras.backend.backend() == "jax" else _Base


class _Part:
    """A property that an instance attribute of the same name overrides.

    A subclassed model can thus assign `self.blocks`.
    """

    def __init__(self, function: Callable[[Any], Any]):
        self.function, self.__doc__ = function, function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, model: Any, owner: Any = None) -> Any:
        if model is None:
            return self
        modules = vars(model).get("_modules", {})  # PyTorch stores layer attributes here
        return modules[self.name] if self.name in modules else self.function(model)


@share_in_clones
class Model(Base):
    """A `keras.Model` that trains in the same way on one device, several devices and machines.

    Use it like `keras.Model`: `keras_tfm.Model(inputs, outputs)`. On Keras's TensorFlow backend it
    adds:

    - `fit`, `evaluate` and `predict` under every strategy of `keras_tfm.training.distribution`;
    - losses divided by the token count of all replicas, so that every token has the same weight
      for any number of replicas and any padding. Keras averages the means of the replicas, where a
      token of a replica with many tokens weighs less;
    - `compile(..., gradient_accumulation_steps=k)`: each batch is processed in k parts, one after
      the other, which needs the memory of one part and gives the gradient of the whole batch
      (`BatchNormalization` sees the parts);
    - early errors for settings with which Keras 3.15 would fail during training.

    On every backend, dictionaries of inputs are taken by name: a missing key is a `ValueError`, a
    surplus one is ignored with a warning. Keras 3.15 gives a model the values of surplus keys in
    place of its inputs. Models can be pickled, with the optimizer's state, as joblib, Ray and
    `multiprocessing` do.

    A custom loss whose mean is not over rows, masked labels or sample weights needs a method
    `count(y_true, y_pred, sample_weight)` that returns the divisor of its mean. A loss of all
    outputs together has an attribute `joint`, True, and a method `sums_and_counts(y_true, y_pred,
    sample_weight)` that returns pairs of a sum and its divisor, see `training.DetectionLoss`.

    A model made by a builder of `keras_tfm.models` has the attributes below. Saving, `clone_model`,
    `with_dtype`, LoRA and quantization preserve them. Hand-composed models do not have them.

    `models.enable_quantization` lets a functional model compute with the rounded weights of an int8
    or int4 file; `.keras` files, `clone_model` and `with_dtype` preserve that.

    Layers that share a position part, as the blocks of T5 do, share it in a copy by `clone_model`
    or `from_config`, too. A `keras.Model` refuses to be copied that way.

    Attributes:
        family: str, name of the builder, such as "bert"; None: no builder made it.
        arguments: dict, the builder's arguments including defaults, without `name`.
        head: `Head` object with `kind` and `arguments`; None: the model has no head. `kind` is
            "language_model" for the logits of a builder, otherwise the name of the function that
            made the head.
        embedding: `TokenEmbedding` layer (the target's in encoder-decoder models); None: no
            such layer.
        blocks: list of the block layers in order, the encoder's first.
        features: symbolic tensor (B, T, D), output of the last block (the decoder's in
            encoder-decoder models), after the final normalisation if there is one; None: no such
            tensor.

    Example:

    >>> import keras, keras_tfm
    >>> from keras_tfm import layers
    >>> ids = keras.Input((None,), dtype="int32", name="tokens")
    >>> embedding = layers.TokenEmbedding(11, dim=8, mask_zero=True)
    >>> x = layers.TransformerEncoderBlock(16, num_heads=2)(embedding(ids))
    >>> model = keras_tfm.Model(ids, embedding(x, reverse=True))
    >>> model.output.shape, model.family
    ((None, None, 11), None)
    >>> model = keras_tfm.models.gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> model.family, model.arguments["num_layers"], model.head.kind, model.features.shape
    ('gpt', 1, 'language_model', (None, None, 8))
    """

    def __new__(cls, *args: object, **kwargs: object) -> Any:
        """A functional model for `Model(inputs, outputs)`, otherwise an instance of `cls`."""
        made = _FunctionalModel if cls is Model and _is_graph(args, kwargs) else cls
        return super().__new__(made, *args, **kwargs)

    def __init__(self, *args: Any, **kwargs: Any):
        if _is_graph(args, kwargs) and not isinstance(self, _Functional):
            _make_functional(type(self))
        super().__init__(*args, **kwargs)
        if isinstance(self, _Functional):
            state = vars(self.outputs[0]).pop("_keras_tfm_quantization", None)
            if state is not None:  # a clone of a model that is trained with rounding
                set_quantization(self, state.copy(self))
            _store_outputs_of_keras_layers(self)
        self.supports_masking = True  # otherwise Keras warns of `model(inputs, mask=mask)`

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """`keras.Model.compile`, after reading the weights that a lazy model has left in files."""
        allocate_if_missing(self)
        super().compile(*args, **kwargs)

    def fit(self, x: Any = None, *args: Any, class_weight: Any = None, **kwargs: Any) -> Any:
        """`keras.Model.fit`; refuses `class_weight` that Keras would misread."""
        if class_weight is not None:
            check_class_weight(self, x, args[0] if args else kwargs.get("y"))
            kwargs["class_weight"] = class_weight
        return super().fit(x, *args, **kwargs)

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """`keras.Model.train_on_batch`; refuses `class_weight` that Keras would misread."""
        if class_weight is not None:
            check_class_weight(self, x, y)
        return super().train_on_batch(x, y, sample_weight, class_weight, return_dict)

    def quantize(self, *args: object, **kwargs: object) -> None:
        """`keras.Model.quantize`; refuses a model of `models.enable_quantization`."""
        state = quantization_of(self)
        if state is not None:
            raise ValueError(
                f"{self.name} {state.statement}: export it with export_tflite, or call "
                "models.disable_quantization before Keras's quantize"
            )
        super().quantize(*args, **kwargs)

    def set_weights(self, weights: Sequence[Tensor]) -> None:
        """`keras.Model.set_weights`, also of a lazy model."""
        allocate_if_missing(self)
        super().set_weights(weights)

    def compute_mask(self, inputs: object, previous_mask: object = None) -> None:
        """None: outputs have the masks that the layers inside give them."""
        return

    def rematerialized_call(self, layer_call: Any, *args: object, **kwargs: object) -> Any:
        """`layer_call`: of a model made in a `RematScope`, the layers recompute."""
        return layer_call

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Calls the model; with the weights of `models.enable_quantization`, if it was called."""
        if quantization_of(self) is None or _has_symbols((args, kwargs)):
            return super().__call__(*args, **kwargs)
        with rounded_reads(self) as losses:
            result = super().__call__(*args, **kwargs)
        for loss in losses:
            self.layers[0].add_loss(loss)  # a functional model takes none
        return result

    def stateless_call(
        self,
        trainable_variables: list[Tensor],
        non_trainable_variables: list[Tensor],
        *args: object,
        **kwargs: object,
    ) -> Any:
        """`keras.Layer.stateless_call`, with rounded weights as in `__call__`."""
        state = quantization_of(self)
        if state is None:
            return super().stateless_call(
                trainable_variables, non_trainable_variables, *args, **kwargs
            )
        frozen = self.non_trainable_variables
        rounded = round_values(state, frozen, non_trainable_variables)
        with state.rounded_values():
            result, after, *losses = super().stateless_call(
                round_values(state, self.trainable_variables, trainable_variables),
                rounded,
                *args,
                **kwargs,
            )
        # A frozen weight keeps its value, not the rounded one that it was read as.
        given = zip(non_trainable_variables, rounded, after, strict=True)
        return result, [before if new is read else new for before, read, new in given], *losses

    def mark_clone(self, outputs: list[Tensor]) -> None:
        """Tells the clone that `keras.models.clone_model` makes of `outputs` how to round."""
        state = saved_quantization(self)
        if state is not None:
            outputs[0]._keras_tfm_quantization = state

    def get_config(self) -> Config:
        """The configuration of the graph and its layers."""
        state = saved_quantization(self)
        with object_sharing_scope():
            config = dict(super().get_config())
        return config if state is None else {**config, "trained_quantization": state.get_config()}

    def save_own_variables(self, store: Any) -> None:
        """The variables of the model itself, and the scales of a quantized checkpoint."""
        super().save_own_variables(store)
        state = saved_quantization(self)
        if state is not None:
            state.save(store)

    def load_own_variables(self, store: Any) -> None:
        """Reads what `save_own_variables` saved."""
        state = quantization_of(self)
        if state is not None:
            state.load(store)
        super().load_own_variables(own_variables(store))

    @classmethod
    def from_config(cls, config: Config, custom_objects: Arguments | None = None) -> Any:
        """The model of a configuration."""
        rest = {key: x for key, x in config.items() if key != "trained_quantization"}
        with object_sharing_scope():
            model = super().from_config(rest, custom_objects)
        if "trained_quantization" in config:
            state = TrainedQuantization(model, **config["trained_quantization"])
            set_quantization(model, state)
        return model

    def save(self, filepath: object, *args: object, **kwargs: object) -> None:
        """`keras.Model.save`; refuses an `.h5` file that Keras could not load again."""
        operations = [x for x in getattr(self, "operations", ()) if not hasattr(x, "weights")]
        if str(filepath).endswith((".h5", ".hdf5")) and operations:
            raise ValueError(
                f"{self.name} must be saved as .keras, got {filepath}: Keras cannot load an .h5 "
                f"file with operations beside layers, such as {type(operations[0]).__name__}"
            )
        with rounded_beside_adapters(self):
            super().save(filepath, *args, **kwargs)

    def save_weights(self, *args: object, **kwargs: object) -> None:
        """`keras.Model.save_weights`; adapters are merged into the weights that are computed with.

        That is, into the rounded ones of `models.enable_quantization`.
        """
        with rounded_beside_adapters(self):
            super().save_weights(*args, **kwargs)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        """What `pickle` carries: a `.keras` file with the optimizer's state."""
        custom = None if type(self) is _FunctionalModel else type(self)
        with rounded_beside_adapters(self):
            return _unpickle, (saved_content(self), custom)

    @_Part
    def family(self) -> str | None:
        """Name of the builder, or None."""
        return identity.identity_of(self).family

    @_Part
    def arguments(self) -> Arguments:
        """The builder's arguments including defaults, without `name`."""
        return dict(identity.identity_of(self).arguments)

    @_Part
    def head(self) -> identity.Head | None:
        """The head's kind and arguments, or None."""
        return identity.head_of(self)

    @_Part
    def embedding(self) -> keras.layers.Layer | None:
        """The `TokenEmbedding` layer (the target's in encoder-decoder models), or None."""
        name = identity.identity_of(self).embedding
        return None if name is None else self.get_layer(name)

    @_Part
    def blocks(self) -> list[keras.layers.Layer]:
        """The block layers in order, without those that a head does not need."""
        return identity.blocks_of(self, identity.identity_of(self))

    @_Part
    def features(self) -> keras.Model:
        """Symbolic tensor (B, T, D), the final output of the last block, or None."""
        return identity.features_of(self)


# Keras's class of functional models.
_x = keras.Input((1,), name="x")
_Functional: Any = type(keras.Model(_x, _x, name="x"))


@mark_clones
@call_with_known_inputs
class _FunctionalModel(Model, _Functional):
    """`Model(inputs, outputs)`.

    Keras would make `Model` itself functional when the first functional model is made, and every
    subclass that is not, made of layers and a `call`, could then not be constructed.
    """

    def known_inputs(self, inputs: Any) -> Any:
        """`inputs` without surplus keys of dictionaries; a missing one is a ValueError."""
        return known_inputs(self, inputs)


_FunctionalModel.__name__ = _FunctionalModel.__qualname__ = "Model"
# Both are saved under one name, which is loaded as `Model`.
keras.saving.register_keras_serializable("keras_tfm", "Model")(_FunctionalModel)
keras.saving.register_keras_serializable("keras_tfm", "Model")(Model)


def _unpickle(content: Any, custom: type | None) -> Any:
    """The model of a pickle; `custom`, the user's class of models, need not be registered."""
    with keras.saving.custom_object_scope({} if custom is None else {custom.__name__: custom}):
        return load_content(content)


def _store_outputs_of_keras_layers(model: keras.Model) -> None:
    """Takes layers such as `Dense` out of the `keras.RematScope` that they were made in.

    On TensorFlow, Keras 3.15 cannot recompute its own layers that take `training`.
    """
    if keras.backend.backend() == "tensorflow":
        for layer in model.layers:
            is_own = type(layer).rematerialized_call is keras.layers.Layer.rematerialized_call
            if is_own and "training" in inspect.signature(layer.call).parameters:
                set_remat_mode(layer, None)


def _has_symbols(inputs: object) -> bool:
    """Whether the model is called for the graph of another one."""
    return any(isinstance(x, keras.KerasTensor) for x in keras.tree.flatten(inputs))


def _is_graph(args: tuple[object, ...], kwargs: Arguments) -> bool:
    """Whether these are the arguments of a functional model, by Keras's rule."""
    return len(args) == 2 or ("outputs" in kwargs and (len(args) == 1 or "inputs" in kwargs))


def _make_functional(cls: type) -> None:
    """Makes a subclass functional that calls `super().__init__(inputs, outputs)`.

    As Keras does with subclasses of `keras.Model`, but `Model` itself stays as it is. Whether a
    subclass is functional is known only when its `__init__` calls this one. An instance of another
    class than that of the call would have another type than the user's, and could not be pickled
    or loaded by its name; a `Model` that is always functional could not be subclassed with `call`.
    """
    for base in cls.__bases__:
        if base is not Model and issubclass(base, Model):
            _make_functional(base)
    cls.__bases__ = tuple(_FunctionalModel if base is Model else base for base in cls.__bases__)
