"""Base of layers that recompute their activations in the backward pass (`keras.RematScope`)."""

from typing import Any

import keras

from keras_tfm.keras_internals import remat_mode, run_after_build, set_remat_mode, sublayers
from keras_tfm.layers.projection import Projection
from keras_tfm.layers.recomputation import Recomputation
from keras_tfm.layers.types import Config, Initializer


@run_after_build
class RematerializedLayer(Recomputation):
    """The base of the layers of this package: `keras.RematScope` works on every backend."""

    def __init__(self, *, quantized: list[Config] | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self._quantized = quantized

    def get_config(self) -> Config:
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

    def _dense(
        self,
        name: str,
        units: int,
        use_bias: bool | None = None,
        kernel_initializer: Initializer | None = None,
        bias_initializer: Initializer | None = None,
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
