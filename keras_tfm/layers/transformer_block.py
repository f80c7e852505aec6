"""What encoder and decoder blocks share: their arguments and how sublayers are made of them."""

import weakref
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import keras

from keras_tfm.arguments import check_rate
from keras_tfm.layers.arguments import as_activation, as_initializer, check_sequence
from keras_tfm.layers.feed_forward import FeedForward
from keras_tfm.layers.multi_head_cross_attention import MultiHeadCrossAttention
from keras_tfm.layers.multi_head_self_attention import MultiHeadSelfAttention
from keras_tfm.layers.positions.attention_position import refuse_separation
from keras_tfm.layers.rematerialized import RematerializedLayer
from keras_tfm.layers.residual import Residual

Tensor = Any
Part: TypeAlias = bool | keras.layers.Layer | dict[str, Any]


class TransformerBlock(RematerializedLayer):
    """The arguments that `TransformerEncoderBlock` and `TransformerDecoderBlock` share.

    Not used by itself. The first eight arguments make the block of the original paper, or its
    pre-norm variant. For anything else, give the part that differs: an attention layer, a
    feed-forward network, a residual connection, made with the options of its own class.

    Args:
        intermediate_dim: int, inner width of the feed-forward network (F).
        num_heads: int, number of attention heads (H).
        dropout: float, rate of the dropout of the attention weights and of each sublayer's output.
        activation: of the feed-forward network.
        layer_norm_epsilon: float, of every normalisation.
        normalize_first: bool, normalise a sublayer's input rather than the sum (pre-norm,
            arXiv:2002.04745).
        kernel_initializer: of every projection.
        bias_initializer: of every projection.
        causal: bool, whether a position sees itself and those before it alone.
        self_attention: a `MultiHeadSelfAttention` in the place of the block's own; False: none.
        cross_attention: a `MultiHeadCrossAttention`; True: the block makes its own; False: none.
        feed_forward: a layer (..., T, D) -> (..., T, D) in the place of the block's `FeedForward`.
        residual: a `Residual`, of which the block makes a copy for each sublayer, in the place of
            post-norm or pre-norm with layer normalisation and `dropout`.

    Raises:
        TypeError: a part of the wrong kind.
        ValueError: a part that belongs to another block, or of another width; an argument that is
            missing, or has no effect because the parts that it describes were given.
    """

    def __init__(
        self,
        intermediate_dim: int | None = None,
        num_heads: int | None = None,
        dropout: float = 0.0,
        activation: Any = "relu",
        layer_norm_epsilon: float = 1e-5,
        normalize_first: bool = False,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        causal: bool = False,
        self_attention: Part = True,
        cross_attention: Part = False,
        feed_forward: Part | None = None,
        residual: Residual | dict[str, Any] | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_rate("dropout", dropout)
        self.intermediate_dim = intermediate_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.activation = as_activation("activation", activation)
        self.layer_norm_epsilon = layer_norm_epsilon
        self.normalize_first = normalize_first
        self.kernel_initializer = as_initializer("kernel_initializer", kernel_initializer)
        self.bias_initializer = as_initializer("bias_initializer", bias_initializer)
        self.causal = causal
        self.supports_masking = True
        parts = {
            "self_attention": self_attention,
            "cross_attention": cross_attention,
            "feed_forward": True if feed_forward is None else feed_forward,
            "residual": True if residual is None else residual,
        }
        parts = {
            name: keras.saving.deserialize_keras_object(part) if isinstance(part, dict) else part
            for name, part in parts.items()
        }
        self._check_arguments(parts)
        # Names and a configuration, not the parts: Keras would track those twice, in another order.
        self._given = frozenset(
            name for name, part in parts.items() if isinstance(part, keras.layers.Layer)
        )
        self._residual = _serialized(parts["residual"]) if "residual" in self._given else None
        heads, width = cast(int, num_heads), cast(int, intermediate_dim)  # None: not made here
        shared: dict[str, Any] = {
            "kernel_initializer": self.kernel_initializer,
            "bias_initializer": self.bias_initializer,
            "dtype": self.dtype_policy,
        }
        self.self_attention = self._part(
            "self_attention",
            parts["self_attention"],
            MultiHeadSelfAttention,
            lambda: MultiHeadSelfAttention(
                heads, causal=causal, dropout=dropout, name="self_attention", **shared
            ),
        )
        self.self_attention_residual = self._residual_of("self_attention", parts)
        self.feed_forward = self._part(
            "feed_forward",
            parts["feed_forward"],
            keras.layers.Layer,
            lambda: FeedForward(width, activation=self.activation, name="feed_forward", **shared),
        )
        self.feed_forward_residual = self._residual_of("feed_forward", parts)
        self.cross_attention = self._part(
            "cross_attention",
            parts["cross_attention"],
            MultiHeadCrossAttention,
            lambda: MultiHeadCrossAttention(
                heads, dropout=dropout, name="cross_attention", **shared
            ),
        )
        self.cross_attention_residual = self._residual_of("cross_attention", parts)
        if self.self_attention is not None and self.self_attention.causal != causal:
            raise ValueError(
                f"{self.name}: causal={causal}, but self_attention has "
                f"causal={self.self_attention.causal}: give both the same"
            )

    def _check_arguments(self, parts: dict[str, Any]) -> None:
        heads = [parts["self_attention"], parts["cross_attention"]]
        for name, value, made in (
            ("num_heads", self.num_heads, any(part is True for part in heads)),
            ("intermediate_dim", self.intermediate_dim, parts["feed_forward"] is True),
        ):
            if made and value is None:
                raise ValueError(f"{name} must be given where the block makes its own parts")
            if value is not None and not made:
                raise ValueError(
                    f"{name}={value} has no effect: the parts that it describes are given"
                )
        if self.normalize_first and parts["residual"] is not True:
            raise ValueError(
                'normalize_first=True has no effect beside residual=: give Residual("pre")'
            )

    def _part(self, name: str, part: Any, kind: Any, make: Callable[[], Any]) -> Any:
        """A part that was given, checked, or the block's own, or None."""
        if part is True:
            return make()
        if part is False and name != "feed_forward":
            return None
        if not isinstance(part, kind):
            raise TypeError(f"{self.name}: {name} must be a {kind.__name__}, got {part!r}")
        owner = getattr(part, "_block", lambda: None)()
        if owner is not None and owner is not self:
            raise ValueError(
                f"{self.name}: {name} {part.name!r} belongs to the block {owner.name!r}: "
                "make another one (a position part may be shared)"
            )
        part._block = weakref.ref(self)
        return part

    def _residual_of(self, sublayer: str, parts: dict[str, Any]) -> Any:
        """The residual connection of a sublayer; None where there is no such sublayer."""
        if parts[sublayer] is False:
            return None
        template, name = parts["residual"], f"{sublayer}_residual"
        if template is True:
            return Residual(
                "pre" if self.normalize_first else "post",
                epsilon=self.layer_norm_epsilon,
                dropout=self.dropout,
                dtype=self.dtype_policy,
                name=name,
            )
        if not isinstance(template, Residual):
            raise TypeError(f"{self.name}: residual must be a Residual, got {template!r}")
        return type(template).from_config({**template.get_config(), "name": name})

    def _build(self, x_shape: Any, context_shape: Any = None) -> None:
        check_sequence(self, "x", x_shape)
        self._build_part(self.self_attention, x_shape)
        self._build_part(self.self_attention_residual, x_shape)
        self._build_part(self.feed_forward, x_shape)
        self._build_part(self.feed_forward_residual, x_shape)
        self._build_part(self.cross_attention, x_shape, context_shape)
        self._build_part(self.cross_attention_residual, x_shape)
        self.built = True

    def _build_part(self, part: Any, x_shape: Any, *others: Any) -> None:
        if part is None:
            return
        if part.built:
            config = part.get_build_config() or {}
            shapes = config.get("shapes_dict", config)
            before = next(iter(shapes.values()), None)
            if before is not None and before[-1] != x_shape[-1]:
                raise ValueError(
                    f"{self.name}: {part.name} was built for inputs of width {before[-1]}, "
                    f"got {x_shape[-1]}"
                )
        else:
            part.build(x_shape, *others)
        if not isinstance(part, Residual):
            after = part.compute_output_shape(x_shape)
            if after[-1] != x_shape[-1]:
                raise ValueError(
                    f"{self.name}: {part.name} must return the width of its input, "
                    f"{x_shape[-1]}, got {after[-1]}"
                )

    def _attend(self, x: Tensor, position_encoding: Tensor | None, **given: Any) -> Tensor:
        """The self-attention in its residual connection, if there is one: (..., T, D), the same."""
        if self.self_attention is None:
            return x
        training = given.pop("training")

        def attend(y: Tensor) -> Tensor:
            moved = None if position_encoding is None else y + position_encoding
            arguments = {"query": moved, "key": moved, **given}
            return self.self_attention(y, training=training, **present(arguments))

        return self.self_attention_residual(x, sublayer=attend, training=training)

    def _feed_forward(self, x: Tensor, training: bool | None) -> Tensor:
        return self.feed_forward_residual(x, sublayer=self.feed_forward, training=training)

    def compute_output_shape(self, x_shape: Any, *_: Any, **__: Any) -> Any:
        """The first input's."""
        return x_shape

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """The layer of a configuration."""
        refuse_separation(config)
        return super().from_config(config)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        parts = {
            name: _serialized(getattr(self, name)) if name in self._given else default
            for name, default in (
                ("self_attention", self.self_attention is not None),
                ("cross_attention", self.cross_attention is not None),
                ("feed_forward", None),
            )
        }
        return {
            **super().get_config(),
            "intermediate_dim": self.intermediate_dim,
            "num_heads": self.num_heads,
            "dropout": self.dropout,
            "activation": keras.activations.serialize(self.activation),
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "normalize_first": self.normalize_first,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "causal": self.causal,
            **parts,
            "residual": self._residual,
        }


def _serialized(part: keras.layers.Layer) -> dict[str, Any]:
    """The configuration of a part, to be built by the block: its weights' paths begin with it."""
    config = keras.saving.serialize_keras_object(part)
    config.pop("build_config", None)
    return config


def present(arguments: dict[str, Any]) -> dict[str, Any]:
    """Those that are not None: Keras takes time for each that a call gets."""
    return {name: value for name, value in arguments.items() if value is not None}
