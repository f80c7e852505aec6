"""Quantization-aware training: a model computes with the weights of its file."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import keras

from keras_tfm.keras_internals import sublayers
from keras_tfm.models.identity import is_functional
from keras_tfm.models.model import Model
from keras_tfm.models.quantization.named_layers import named_weights
from keras_tfm.models.quantization.state import (
    TrainedQuantization,
    is_quantized,
    quantization_of,
    set_quantization,
)
from keras_tfm.runtime.manifest.manifest import CACHES

WIDTHS = ("int8", "int4")


def enable_quantization(
    model: Model,
    quantization: str,
    keep_float: Sequence[str] = (),
    keep_int8: Sequence[str] = (),
    activations: bool = False,
    cache: str = "float32",
) -> int:
    """Lets a model compute with the rounded weights of an int8 or int4 file, and train with them.

    From then on `fit`, `evaluate`, `predict`, `generate` and `model(x)` read each matrix W as

        s round(W / s), with the gradient dL/dW of the identity,

    the straight-through estimator of arXiv:1308.3432, as in "Quantization and Training of Neural
    Networks for Efficient Integer-Arithmetic-Only Inference" (arXiv:1712.05877). The variables
    stay in float32, and the optimizer changes them. Differences to the papers: the scales s follow
    the largest value of each row ("int8": 127 s) or of each 32 values of a row ("int4": 7 s);
    activations are rounded only with `activations=True`.

    Rounding is the exporter's own, bit for bit: `export_tflite` with the same `quantization` stores
    exactly these values, and is verified against them. Rounded are the matrices of `Dense`,
    `EinsumDense` and `TokenEmbedding`, tied ones too, and the kernels of `Conv1D` and `Conv2D`
    without groups; in "int8" those of at least 1024 values; in "int4", those of convolutions and
    of layers whose number of inputs is no multiple of 32 get 8 bits. All others, such as tables
    of positions and `keras.layers.Embedding`, stay float32, in the file too.

    LoRA adapters (`enable_lora`, before or after) stay in float32 beside the frozen, rounded
    kernels, as in "QLoRA: Efficient Finetuning of Quantized LLMs" (arXiv:2305.14314): W + A B is
    s round(W / s) + A B. `export_tflite(..., separate_adapters=True)` and `save_adapter` store
    both as they are. `with_dtype` and `.keras` files merge them into float32 weights, which are on
    no grid: enable rounding again, and train a little more.

    Train in float32 first; then a short training with rounding and a lower learning rate, a tenth
    of the steps, regains most of what "int4" loses. The state is part of `.keras` files, of
    `clone_model` and of `with_dtype`. `disable_quantization` ends it, `without_quantization` for
    the time of a comparison. Custom training loops that call layers instead of the model compute
    without rounding.

    The model of a quantized checkpoint computes with that checkpoint's integers and scales from the
    start. They stay, and training keeps the scales; call this for `activations` and `cache`, and
    for layers that leave the grid, `keep_float` and `keep_int8`.

    Args:
        model: functional `keras_tfm.Model`. It is changed. A compiled one stays compiled.
        quantization: str, "int8" or "int4".
        keep_float: list of str, layers whose weights are not rounded, by name or path as in
            `export_tflite`.
        keep_int8: list of str, layers whose weights get 8 bits in "int4".
        activations: bool, whether the input of each layer with rounded weights is rounded to 8
            bits, too, with a step and a zero point for each row, as LiteRT does when it runs the
            file. Then the file computes what the model does, but for the order of sums.
        cache: str, "int8": keys and values of causal self-attention and of cross-attention are
            rounded as int8 KV caches do (`export_tflite(cache="int8")`), in full passes and in
            steps, each token's own and those of a prompt, too. The file does the same.

    Returns:
        The number of rounded weights.

    Raises:
        TypeError: the model is not a functional `keras_tfm.Model`, or names are one string.
        ValueError: another width; a layer is unknown; rounding is enabled already; the model was
            quantized by Keras; or it has no weight that would be rounded.

    Example:

    >>> import numpy as np
    >>> from keras_tfm import models
    >>> gpt = models.gpt(50, dim=32, num_layers=1, num_heads=2, max_length=8)
    >>> tokens = np.array([[3, 4, 5]])
    >>> exact = gpt(tokens)
    >>> models.enable_quantization(gpt, "int4")
    5
    >>> bool(np.allclose(gpt(tokens), exact, atol=1e-6))
    False
    >>> with models.without_quantization(gpt):
    ...     bool(np.allclose(gpt(tokens), exact, atol=1e-6))
    True
    """
    if not isinstance(model, Model) or not is_functional(model):
        raise TypeError(
            "expected a functional keras_tfm.Model, got "
            f"{type(model).__module__}.{type(model).__name__}; of a functional keras.Model make "
            "one: keras_tfm.Model(model.input, model.output), of a keras.Sequential "
            "keras_tfm.Model(model.inputs[0], model.outputs[0])"
        )
    if quantization not in WIDTHS:
        raise ValueError(f"quantization must be one of {list(WIDTHS)}, got {quantization!r}")
    if len(keep_int8) and quantization != "int4":
        raise ValueError(
            "keep_int8 needs quantization int4, "
            f"got quantization={quantization!r} and keep_int8={keep_int8!r}"
        )
    if cache not in CACHES:
        raise ValueError(f"cache must be one of {list(CACHES)}, got {cache!r}")
    state = _published_grids(model, quantization, keep_float, keep_int8, activations, cache)
    enabled = [x for x in (model, *sublayers(model)) if quantization_of(x) is not None]
    if state is None and enabled:
        known = quantization_of(enabled[0])
        assert known is not None
        raise ValueError(
            f"{enabled[0].name} {known.statement} already: call disable_quantization first"
        )
    if is_quantized(model):
        raise ValueError(
            f"{model.name} is quantized by Keras, which cannot train it further: use the model as "
            "it was before quantize()"
        )
    if state is None:
        state = TrainedQuantization(model, quantization, keep_float, keep_int8, activations, cache)
    if not state.weights:
        raise ValueError(f"{model.name} has no weight that {quantization} would round")
    set_quantization(model, state)
    return len(state.weights)


def _published_grids(
    model: Model,
    quantization: str,
    keep_float: Sequence[str],
    keep_int8: Sequence[str],
    activations: bool,
    cache: str,
) -> TrainedQuantization | None:
    """The rounding of a model that keeps the grids of its checkpoint.

    Returns None for other models, and after an earlier call with activations or caches.
    """
    known = quantization_of(model)
    if known is None or not known.is_as_published:
        return None
    if quantization != known.quantization:
        raise ValueError(
            f"{model.name} {known.statement}, got quantization={quantization!r}: "
            "call disable_quantization first"
        )
    named_weights(model, keep_int8, "keep_int8")  # raises for unknown names
    return known.with_options(
        model,
        keep_float=keep_float,
        keep_int8=[*dict.fromkeys([*known.keep_int8, *keep_int8])],
        activations=activations,
        cache=cache,
    )


def disable_quantization(model: Model) -> None:
    """Ends the rounding of `enable_quantization`: the model computes with its float32 weights.

    These are not on the grid. A file of another quantization has them.

    Args:
        model: model of `enable_quantization`. It is changed.

    Raises:
        ValueError: the model is not trained with rounding.

    Example:

    >>> import keras, keras_tfm
    >>> from keras_tfm import models
    >>> x = keras.Input((64,))
    >>> model = keras_tfm.Model(x, keras.layers.Dense(3)(x))
    >>> models.enable_quantization(model, "int4")
    1
    >>> models.disable_quantization(model)
    """
    _check_enabled(model)
    set_quantization(model, None)


@contextmanager
def without_quantization(model: Model) -> Iterator[None]:
    """The context in which a model of `enable_quantization` computes with its float32 weights.

    Args:
        model: model of `enable_quantization`.

    Raises:
        ValueError: the model is not trained with rounding.

    Example:

    >>> import keras, keras_tfm
    >>> import numpy as np
    >>> from keras_tfm import models
    >>> x = keras.Input((64,))
    >>> model = keras_tfm.Model(x, keras.layers.Dense(3)(x))
    >>> models.enable_quantization(model, "int4")
    1
    >>> inputs = np.ones((1, 64), "float32")
    >>> with models.without_quantization(model):
    ...     exact = model(inputs)
    >>> bool(np.allclose(model(inputs), exact, atol=1e-6))
    False
    """
    state = _check_enabled(model)
    names = ("train_function", "test_function", "predict_function")
    compiled = {name: getattr(model, name) for name in names}
    set_quantization(model, None)
    try:
        yield
    finally:
        set_quantization(model, state)
        for name, function in compiled.items():
            setattr(model, name, function)


def _check_enabled(model: keras.Model) -> TrainedQuantization:
    state = quantization_of(model)
    if state is None:
        raise ValueError(
            f"{model.name} is not trained with rounded weights: call enable_quantization first"
        )
    return state
