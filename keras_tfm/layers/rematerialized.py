"""Base of layers that recompute their activations in the backward pass (`keras.RematScope`)."""

from collections.abc import Callable
from typing import Any

import keras

from keras_tfm.keras_internals import remat_mode, run_after_build, set_remat_mode, sublayers
from keras_tfm.layers.attention_probe import AttentionProbe
from keras_tfm.layers.decoding.scope import DecodingScope
from keras_tfm.layers.projection import Projection

Tensor = Any


@run_after_build
class RematerializedLayer(keras.layers.Layer):
    """The base of the layers of this package: `keras.RematScope` works on every backend.

    A layer that the scope selects stores only its input and recomputes everything inside it once,
    sublayers included. In mode "larger_than" the output size of the outermost layer decides. Keras
    3.15 would pass `call` to `tf.recompute_grad` unchanged, which accepts no keyword arguments in a
    graph and draws different dropout masks in the backward pass.
    """

    def __init__(self, *, quantized: Any = None, **kwargs: Any):
        super().__init__(**kwargs)
        self._quantized = quantized

    def get_config(self) -> dict[str, Any]:
        """The arguments of the base, and how `quantize` changed the projections inside, if it did.

        Projections are made by `build`, so the configuration of a layer does not have theirs.
        """
        quantized = [
            {
                "index": i,
                "mode": layer.quantization_mode,
                "config": keras.saving.serialize_keras_object(layer.quantization_config),
            }
            for i, layer in enumerate(self._projections())
            if layer.quantization_mode is not None
        ]
        return {**super().get_config(), **({"quantized": quantized} if quantized else {})}

    def after_build(self) -> None:
        """Quantizes the projections that were quantized in the layer that was saved or copied."""
        if self._quantized:
            projections = self._projections()
            for entry in self._quantized:
                layer = projections[entry["index"]]
                if layer.built and layer.quantization_mode is None:
                    config = keras.saving.deserialize_keras_object(entry["config"])
                    layer.quantize(entry["mode"], config=config)

    def _projections(self) -> list[Projection]:
        return [layer for layer in sublayers(self) if isinstance(layer, Projection)]

    def rematerialized_call(
        self, layer_call: Callable[..., Tensor], *args: Any, **kwargs: Any
    ) -> Callable[..., Tensor]:
        """`layer_call`, recomputed in the backward pass if the `RematScope` selects the layer."""
        mode = remat_mode(self).mode
        picked = super().rematerialized_call(layer_call, *args, **kwargs)
        if mode == "activations":
            return picked
        if mode == "list_of_layers" and picked is layer_call:
            return layer_call  # the list may still name a sublayer
        inside = sublayers(self)
        for layer in inside:
            set_remat_mode(layer, None)
        if picked is layer_call:
            return layer_call
        if DecodingScope.current() is not None or AttentionProbe.current() is not None:
            return layer_call  # tensors that a scope collects would not leave the recomputed part

        def recomputed(*args: Any, **kwargs: Any) -> Tensor:
            # `remat` differentiates only its float arguments, so the weights are arguments too.
            # Seeds are drawn first, so that recomputing drops the same values.
            generators = [getattr(layer, "seed_generator", None) for layer in inside]
            seeds = [(g.state, g.next()) for g in generators if g is not None]
            structure = (list(self.trainable_variables), args, kwargs)
            leaves = keras.tree.flatten(
                ([variable.value for variable in structure[0]], args, kwargs)
            )
            places = [i for i, leaf in enumerate(leaves) if _is_float(leaf)]

            def run(*floats: Tensor) -> Tensor:
                filled = list(leaves)
                for place, value in zip(places, floats, strict=True):
                    filled[place] = value
                values, args, kwargs = keras.tree.pack_sequence_as(structure, filled)
                with keras.StatelessScope([*seeds, *zip(structure[0], values, strict=True)]):
                    return layer_call(*args, **kwargs)

            return keras.remat(run)(*(leaves[place] for place in places))

        return recomputed

    def _dense(
        self,
        name: str,
        units: int,
        use_bias: bool | None = None,
        kernel_initializer: Any = None,
        bias_initializer: Any = None,
    ) -> Projection:
        """A projection; by default with this layer's `use_bias` and initializers."""
        # Cloned: one initializer object would draw the same numbers for every projection.
        dense = Projection(
            units,
            use_bias=self.use_bias if use_bias is None else use_bias,
            kernel_initializer=kernel_initializer or self.kernel_initializer.clone(),
            bias_initializer=bias_initializer or self.bias_initializer.clone(),
            dtype=self.dtype_policy,
            name=name,
        )
        # Not the mode of a scope that happens to be open when the layer is built.
        set_remat_mode(dense, remat_mode(self))
        return dense


def _is_float(leaf: Any) -> bool:
    return keras.ops.is_tensor(leaf) and "float" in keras.backend.standardize_dtype(leaf.dtype)
