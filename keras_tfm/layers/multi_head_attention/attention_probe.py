"""Records attention weights without changing what a layer returns."""

from contextvars import ContextVar, Token

from keras_tfm.layers.types import Tensor

current_probe: ContextVar["AttentionProbe | None"] = ContextVar("attention_probe", default=None)


class AttentionProbe:
    """Collects the attention weights of every attention layer that is called inside it.

    Attributes:
        maps: dict from the call's number and the layer's name ("000_self_attention") to the
            attention weights (B, H, T, S) before dropout; each row sums to 1. Eager calls give
            values; inside `tf.function` or `jax.jit` the weights are tensors of that graph. While a
            probe is open, attention is not computed block by block.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import AttentionProbe, MultiHeadSelfAttention
    >>> layer = MultiHeadSelfAttention(num_heads=2, causal=True, name="attention")
    >>> with AttentionProbe() as probe:
    ...     y = layer(np.ones((1, 3, 4), "float32"))
    >>> probe.maps["000_attention"][0, 0, 1].numpy().tolist()
    [0.5, 0.5, 0.0]
    """

    def __init__(self) -> None:
        self.maps: dict[str, Tensor] = {}
        self._token: Token[AttentionProbe | None] | None = None

    @staticmethod
    def current() -> "AttentionProbe | None":
        """The innermost open probe; None without one."""
        return current_probe.get()

    def record(self, name: str, weights: Tensor) -> None:
        """Stores the attention weights of one call of the layer `name`."""
        self.maps[f"{len(self.maps):03d}_{name}"] = weights

    def __enter__(self) -> "AttentionProbe":
        """Opens the probe."""
        self._token = current_probe.set(self)
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes the probe; `maps` remains available."""
        assert self._token is not None
        current_probe.reset(self._token)
