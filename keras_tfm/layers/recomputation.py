"""How layers recompute their activations in the backward pass (`keras.RematScope`)."""

from collections.abc import Callable
from typing import Any

import keras

from keras_tfm.keras_internals import remat_mode, set_remat_mode, sublayers
from keras_tfm.layers.decoding.scope import current_scope
from keras_tfm.layers.multi_head_attention.attention_probe import current_probe
from keras_tfm.layers.types import Tensor


class Recomputation(keras.layers.Layer):
    """What `keras.RematScope` calls in a layer: the first base of a layer of Keras's.

    A layer that the scope selects stores only its input and recomputes everything inside it once,
    sublayers included. In mode "larger_than" the output size of the outermost layer decides. Keras
    3.15 would pass `call` to `tf.recompute_grad` unchanged, which accepts no keyword arguments in a
    graph and draws different dropout masks in the backward pass.

    >>> import keras, numpy as np
    >>> from keras_tfm.layers.recomputation import Recomputation
    >>> class Square(Recomputation):
    ...     def call(self, x):
    ...         return x * x
    >>> with keras.RematScope("full"):
    ...     layer = Square()
    >>> np.array(layer(np.array([3.0]))).tolist()
    [9.0]
    """

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
        if current_scope.get() is not None or current_probe.get() is not None:
            return layer_call  # tensors that a scope collects would not leave the recomputed part

        def recompute(*args: Any, **kwargs: Any) -> Tensor:
            # `remat` differentiates only its float arguments, so the weights are arguments too.
            # Seeds are drawn first, so that recomputing drops the same values.
            generators = [getattr(layer, "seed_generator", None) for layer in (self, *inside)]
            seeds = [(g.state, g.next()) for g in generators if g is not None]
            structure = (list(self.trainable_variables), args, kwargs)
            leaves = keras.tree.flatten(
                ([variable.value for variable in structure[0]], args, kwargs)
            )
            places = [i for i, leaf in enumerate(leaves) if _is_float(leaf)]
            if not places:  # ids alone, of which a mask is made: there are no gradients
                return layer_call(*args, **kwargs)

            def run(*floats: Tensor) -> Tensor:
                filled = list(leaves)
                for place, value in zip(places, floats, strict=True):
                    filled[place] = value
                values, args, kwargs = keras.tree.pack_sequence_as(structure, filled)
                with keras.StatelessScope([*seeds, *zip(structure[0], values, strict=True)]):
                    return layer_call(*args, **kwargs)

            return keras.remat(run)(*(leaves[place] for place in places))

        return recompute


def _is_float(leaf: Tensor) -> bool:
    return keras.ops.is_tensor(leaf) and "float" in keras.backend.standardize_dtype(leaf.dtype)
