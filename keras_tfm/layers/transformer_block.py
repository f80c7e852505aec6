"""The encoder and the decoder block of a Transformer, and what they share."""

import inspect
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

import keras

from keras_tfm.arguments import check_not_negative, check_rate
from keras_tfm.layers.arguments import as_activation, as_initializer, check_sequence, serialize_part
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.feed_forward import FeedForward
from keras_tfm.layers.finite_padding import finite_padding
from keras_tfm.layers.layer_normalization import LayerNormalization
from keras_tfm.layers.multi_head_attention import masks
from keras_tfm.layers.multi_head_attention.multi_head_cross_attention import MultiHeadCrossAttention
from keras_tfm.layers.multi_head_attention.multi_head_self_attention import MultiHeadSelfAttention
from keras_tfm.layers.positions.attention_position import refuse_separation
from keras_tfm.layers.recurrent.token_mixer import TokenMixer
from keras_tfm.layers.residual import Residual
from keras_tfm.layers.types import Activation, Arguments, Config, Initializer, Shape, Tensor

Part: TypeAlias = bool | keras.Layer | Config
Residuals: TypeAlias = Residual | Mapping[str, Residual | Config] | Config

SUBLAYERS = ("self_attention", "cross_attention", "feed_forward")
ONE_RESIDUAL = "one_residual"


class TransformerBlock(RematerializedLayer):
    """The arguments shared by `TransformerEncoderBlock` and `TransformerDecoderBlock`.

    A base class: use one of these two layers. The first eight arguments give the block of the
    original paper or its pre-norm variant. For anything else pass the part that differs, made with
    the options of its own class: an attention layer, a feed-forward network, a residual connection.

    Args:
        intermediate_dim: int, inner width of the feed-forward network (F).
        num_heads: int, number of attention heads (H). Must divide the width D.
        dropout: float, dropout rate of the attention weights and of each sublayer's output.
        activation: str or function, activation of the feed-forward network.
        layer_norm_epsilon: float, epsilon of every normalisation.
        normalize_first: bool, normalise the input of each sublayer instead of the sum (pre-norm,
            arXiv:2002.04745).
        kernel_initializer: initializer of every kernel.
        bias_initializer: initializer of every bias.
        causal: bool, whether a position sees only itself and earlier positions.
        self_attention: `MultiHeadSelfAttention` to use instead of the default one; or, with
            `causal`, a `ShortConvolution`, `GatedDeltaNet` or `Mamba2`; False: none. If it has
            `merged=True`, it attends to the context, and `cross_attention` must be False.
        cross_attention: `MultiHeadCrossAttention` to use; True: the default one; False: none.
        feed_forward: layer (..., T, D) -> (..., T, D) to use instead of the default `FeedForward`;
            False: none, as in the cross-attention of LXMERT (arXiv:1908.07490).
        residual: `Residual`, copied for each sublayer, to use instead of post-norm or pre-norm with
            layer normalisation and `dropout`; or a dictionary of one for each sublayer, by its
            name: "self_attention", "cross_attention" and "feed_forward".
        parallel: bool, whether the feed-forward network reads the input of the block, as the
            self-attention does, and both outputs are added to it (arXiv:2204.06745, section 2.1).
            Default: it reads the output of the attention. "one_residual": both are in one residual
            connection, and so behind one norm, as in GPT-J, Falcon and Cohere.

    Raises:
        TypeError: a part of the wrong type.
        ValueError: a part that belongs to another block or has another width; an argument that is
            missing, or that has no effect because the parts it describes are given; in a call, an
            argument of attention, such as `attention_mask`, for a `self_attention` without it.
    """

    def __init__(
        self,
        intermediate_dim: int | None = None,
        num_heads: int | None = None,
        dropout: float = 0.0,
        activation: Activation = "relu",
        layer_norm_epsilon: float = 1e-5,
        normalize_first: bool = False,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        causal: bool = False,
        self_attention: Part = True,
        cross_attention: Part = False,
        feed_forward: Part | None = None,
        residual: Residuals | None = None,
        parallel: bool | str = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_rate("dropout", dropout)
        check_not_negative("layer_norm_epsilon", layer_norm_epsilon)
        self.intermediate_dim = intermediate_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.activation = as_activation("activation", activation)
        self.layer_norm_epsilon = layer_norm_epsilon
        self.normalize_first = normalize_first
        self.kernel_initializer = as_initializer("kernel_initializer", kernel_initializer)
        self.bias_initializer = as_initializer("bias_initializer", bias_initializer)
        self.causal = causal
        self.parallel = parallel
        parts = {
            "self_attention": self_attention,
            "cross_attention": cross_attention,
            "feed_forward": True if feed_forward is None else feed_forward,
        }
        parts = {
            name: keras.saving.deserialize_keras_object(part) if isinstance(part, dict) else part
            for name, part in parts.items()
        }
        self._check_arguments(parts, residual is not None)
        # Names and a configuration: Keras would track the parts themselves twice, in another order.
        self._given = frozenset(
            name for name, part in parts.items() if isinstance(part, keras.layers.Layer)
        )
        self._has_one_residual = parallel == ONE_RESIDUAL
        connected = [x for x in SUBLAYERS if parts[x] is not False]
        if self._has_one_residual:
            connected = ["self_attention"]
        templates = self._templates(residual, connected)
        # None, one configuration, or one for each sublayer.
        self._residual = keras.tree.map_structure(serialize_part, templates)
        heads, width = cast(int, num_heads), cast(int, intermediate_dim)  # None only if not used
        shared: Arguments = {
            "kernel_initializer": self.kernel_initializer,
            "bias_initializer": self.bias_initializer,
            "dtype": self.dtype_policy,
        }
        self.self_attention = self._part(
            "self_attention",
            parts["self_attention"],
            (MultiHeadSelfAttention, TokenMixer),
            lambda: MultiHeadSelfAttention(
                heads, causal=causal, dropout=dropout, name="self_attention", **shared
            ),
        )
        self.self_attention_residual = self._residual_of("self_attention", templates)
        self.feed_forward = self._part(
            "feed_forward",
            parts["feed_forward"],
            (keras.layers.Layer,),
            lambda: FeedForward(width, activation=self.activation, name="feed_forward", **shared),
        )
        self.feed_forward_residual = self._residual_of("feed_forward", templates)
        self.cross_attention = self._part(
            "cross_attention",
            parts["cross_attention"],
            (MultiHeadCrossAttention,),
            lambda: MultiHeadCrossAttention(
                heads, dropout=dropout, name="cross_attention", **shared
            ),
        )
        self.cross_attention_residual = self._residual_of("cross_attention", templates)
        if parallel not in (False, True, ONE_RESIDUAL):
            raise ValueError(
                f"{self.name}: parallel must be True, False or {ONE_RESIDUAL!r}, got {parallel!r}"
            )
        if parallel and (
            None in (self.self_attention, self.feed_forward) or self.cross_attention is not None
        ):
            raise ValueError(
                f"{self.name}: parallel={parallel!r} is for self-attention and a feed-forward "
                "network"
            )
        if self._is_merged and self.cross_attention is not None:
            raise ValueError(
                f"{self.name}: cross_attention must be False with a self_attention that has "
                "merged=True, which attends to the context"
            )
        if self._has_one_residual and self._key_value == "returned":
            raise ValueError(
                f'{self.name}: key_value="returned" is not for parallel={ONE_RESIDUAL!r}'
            )
        if self.self_attention is not None and self.self_attention.causal != causal:
            raise ValueError(
                f"{self.name}: causal={causal}, but self_attention has "
                f"causal={self.self_attention.causal}: give both the same"
            )

    def _check_arguments(self, parts: dict[str, Part], has_residual: bool) -> None:
        heads = [parts["self_attention"], parts["cross_attention"]]
        for name, value, made in (
            ("num_heads", self.num_heads, any(part is True for part in heads)),
            ("intermediate_dim", self.intermediate_dim, parts["feed_forward"] is True),
        ):
            if made and value is None:
                raise ValueError(
                    f"{name} is required, unless the parts that it describes are given"
                )
            if value is not None and not made:
                raise ValueError(
                    f"{name}={value} has no effect, because the parts that it describes are given"
                )
        defaults = inspect.signature(TransformerBlock).parameters
        activation = as_activation("activation", defaults["activation"].default)
        if parts["feed_forward"] is not True and self.activation != activation:
            raise ValueError(
                "activation has no effect with feed_forward=...: pass it to that layer"
            )
        if has_residual and self.layer_norm_epsilon != defaults["layer_norm_epsilon"].default:
            raise ValueError(
                f"layer_norm_epsilon={self.layer_norm_epsilon} has no effect with residual=...: "
                "pass it to the norms of that layer"
            )
        if self.normalize_first and has_residual:
            raise ValueError(
                "normalize_first=True has no effect with residual=...: pass "
                "Residual(input_norm=LayerNormalization())"
            )

    def _part(
        self,
        name: str,
        part: Any,
        kinds: tuple[type[keras.Layer], ...],
        make: Callable[[], keras.Layer],
    ) -> Any:
        """The given part, checked, or a default one from `make`, or None."""
        if part is True:
            return make()
        if part is False:
            return None
        if not isinstance(part, kinds):
            expected = " or a ".join(x.__name__ for x in kinds)
            raise TypeError(f"{self.name}: {name} must be a {expected}, got {part!r}")
        owner = getattr(part, "_block", lambda: None)()
        if owner is not None and owner is not self:
            raise ValueError(
                f"{self.name}: {name} {part.name!r} belongs to the block {owner.name!r}: "
                "make another one (a position part may be shared)"
            )
        part._block = weakref.ref(self)
        return part

    def _templates(self, residual: Any, sublayers: list[str]) -> Any:
        """The residual connections to copy: None, one for all sublayers, or one by sublayer."""
        if isinstance(residual, Mapping) and "class_name" not in residual:
            if set(residual) != set(sublayers):
                raise ValueError(
                    f"{self.name}: residual must have one for each sublayer, {sublayers}, got "
                    f"{list(residual)}"
                )
            return {name: self._template(residual[name]) for name in sublayers}
        return None if residual is None else self._template(residual)

    def _template(self, residual: Any) -> Residual:
        if isinstance(residual, dict):
            residual = keras.saving.deserialize_keras_object(residual)
        if not isinstance(residual, Residual):
            raise TypeError(f"{self.name}: residual must be a Residual, got {residual!r}")
        return residual

    def _residual_of(self, sublayer: str, templates: Any) -> Any:
        """The residual connection of a sublayer, or None if the block has no such sublayer."""
        if getattr(self, sublayer) is None or (
            self._has_one_residual and sublayer != "self_attention"
        ):
            return None
        name = f"{sublayer}_residual"
        template = templates[sublayer] if isinstance(templates, dict) else templates
        if template is None:
            norm = LayerNormalization(
                epsilon=self.layer_norm_epsilon, dtype=self.dtype_policy, name="norm"
            )
            place = "input_norm" if self.normalize_first else "sum_norm"
            options: Arguments = {place: norm, "dropout": self.dropout}
            return Residual(**options, dtype=self.dtype_policy, name=name)
        return type(template).from_config({**template.get_config(), "name": name})

    def _build(self, x_shape: Shape, context_shape: Shape | None = None) -> None:
        check_sequence(self, "x", x_shape)
        self._build_part(self.self_attention, x_shape)
        self._build_part(self.self_attention_residual, x_shape)
        self._build_part(self.feed_forward, x_shape)
        self._build_part(self.feed_forward_residual, x_shape)
        self._build_part(self.cross_attention, x_shape, context_shape)
        self._build_part(self.cross_attention_residual, x_shape)
        self.built = True

    def _build_part(self, part: Any, x_shape: Shape, *others: Shape | None) -> None:
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
            if after and isinstance(after[0], tuple | list):  # with keys and values
                after = after[0]
            if after[-1] != x_shape[-1]:
                raise ValueError(
                    f"{self.name}: {part.name} must return the width of its input, "
                    f"{x_shape[-1]}, got {after[-1]}"
                )

    def _attend(
        self,
        x: Tensor,
        mask: Tensor | None,
        position_encoding: Tensor | None,
        training: bool | None,
        **arguments: Tensor | None,
    ) -> Tensor:
        """Self-attention, if any, in its residual connection: (..., T, D) -> (..., T, D).

        If both sublayers have one residual connection, with the feed-forward network.
        """
        if self.self_attention is None:
            return x
        if isinstance(self.self_attention, TokenMixer):
            self._refuse(**arguments, position_encoding=position_encoding)

        def attend(y: Tensor) -> Tensor:
            moved = None if position_encoding is None else y + position_encoding
            given = _present({"mask": mask, "query": moved, "key": moved, **arguments})
            attended = self.self_attention(y, training=training, **given)
            return attended + self.feed_forward(y) if self._has_one_residual else attended

        return self.self_attention_residual(x, sublayer=attend, training=training)

    def _refuse(self, **arguments: Tensor | None) -> None:
        """Raises if a layer without attention is given an argument of attention."""
        names = list(_present(arguments))
        if names:
            mixer = self.self_attention
            raise ValueError(
                f"{self.name}: {mixer.name} ({type(mixer).__name__}) has no attention, so the "
                f"block takes no {', '.join(names)}: each token reads all earlier tokens of its "
                "row, and rows packed with several texts need a block with attention"
            )

    def _feed_forward(self, x: Tensor, attended: Tensor, training: bool | None) -> Tensor:
        """The feed-forward network, if any, in its residual connection.

        Args:
            x: the block's input.
            attended: what its attention returned.
            training: as in `call`.
        """
        if self.feed_forward is None or self._has_one_residual:
            return attended
        given: Arguments = {"sublayer": self.feed_forward, "training": training}
        if self.parallel:
            return self.feed_forward_residual(x, base=attended, **given)
        return self.feed_forward_residual(attended, **given)

    @property
    def _is_merged(self) -> bool:
        """Whether the self-attention attends to the context, too."""
        return self.self_attention is not None and self.self_attention.merged

    @property
    def _key_value(self) -> str:
        """Where the keys and values of the self-attention are from; see there."""
        return "own" if self.self_attention is None else str(self.self_attention.key_value)

    def compute_output_shape(self, x_shape: Shape, *_: object, **__: object) -> Shape:
        """The shape of the first input, and of keys and values if they are returned."""
        if self._key_value == "returned":
            return self.self_attention.compute_output_shape(x_shape)
        return x_shape

    @classmethod
    def from_config(cls, config: Config) -> keras.Layer:
        """The layer of a configuration."""
        refuse_separation(config)
        return super().from_config(config)

    def get_config(self) -> Config:
        """The constructor's arguments."""
        parts = {
            name: serialize_part(getattr(self, name)) if name in self._given else default
            for name, default in (
                ("self_attention", self.self_attention is not None),
                ("cross_attention", self.cross_attention is not None),
                ("feed_forward", None if self.feed_forward is not None else False),
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
            "parallel": self.parallel,
        }


@keras.saving.register_keras_serializable("keras_tfm")
class TransformerEncoderBlock(TransformerBlock):
    """Self-attention, then a feed-forward network, each in a residual connection.

    "Attention Is All You Need" (arXiv:1706.03762), figure 1, left. Post-norm as in the paper, or
    pre-norm (arXiv:2002.04745) with `normalize_first`.

    The arguments are those of `TransformerBlock`: `intermediate_dim`, `num_heads`, `dropout` and so
    on, or the parts `self_attention`, `feed_forward` and `residual`.

    Call arguments:
        x: float tensor (..., T, D).
        mask: (..., T), boolean, True = token, False = padding. Default: the mask that `x` carries.
        attention_mask: (..., T, T), boolean, True = the query sees the key. Combined with `mask`.
        attention_bias: float tensor, broadcastable to (..., H, T, T), added to the scaled scores.
        positions: int32, (T,), (..., T) or (..., T, C), positions of the tokens for the position
            part of the self-attention.
        position_encoding: (..., T, D), added to the inputs of the query and key projections, but
            not to values (DETR, arXiv:2005.12872).

    Returns:
        Float tensor (..., T, D).

    Example:

    >>> import keras
    >>> from keras_tfm.layers import TransformerEncoderBlock
    >>> x = keras.Input((None, 12))
    >>> y = TransformerEncoderBlock(intermediate_dim=16, num_heads=3, dropout=0.1)(x)
    >>> y.shape
    (None, None, 12)

    A block made of parts, with rotary positions, RMS pre-norm and SwiGLU:

    >>> from keras_tfm.layers import FeedForward, MultiHeadSelfAttention
    >>> from keras_tfm.layers import Residual, RMSNormalization, RotaryEmbedding
    >>> block = TransformerEncoderBlock(
    ...     self_attention=MultiHeadSelfAttention(3, position=RotaryEmbedding()),
    ...     feed_forward=FeedForward(16, activation="silu", gated=True),
    ...     residual=Residual(input_norm=RMSNormalization()),
    ... )
    >>> block(x).shape
    (None, None, 12)
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if self.cross_attention is not None or self._is_merged:
            raise ValueError(
                f"{self.name}: an encoder block has no "
                + ("context" if self._is_merged else "cross_attention")
                + ", use TransformerDecoderBlock"
            )

    def build(self, x_shape: Shape) -> None:
        """Creates the weights for inputs of width D."""
        self._build(x_shape)

    def call(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        attention_bias: Tensor | None = None,
        positions: Tensor | None = None,
        position_encoding: Tensor | None = None,
        x_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """(..., T, D) -> (..., T, D)."""
        mask = x_mask if mask is None else mask
        x = with_finite_padding(x, mask)
        attended = self._attend(
            x,
            mask,
            position_encoding,
            training,
            attention_mask=attention_mask,
            attention_bias=attention_bias,
            positions=positions,
        )
        return self._feed_forward(x, attended, training)


@keras.saving.register_keras_serializable("keras_tfm")
class TransformerDecoderBlock(TransformerBlock):
    """Causal self-attention, cross-attention to a context, then a feed-forward network.

    "Attention Is All You Need" (arXiv:1706.03762), figure 1, right. With `cross_attention=False` it
    is the block of a decoder-only model.

    The arguments are those of `TransformerBlock`: `intermediate_dim`, `num_heads`, `dropout` and so
    on, or the parts `self_attention`, `cross_attention`, `feed_forward` and `residual`. `causal`
    and `cross_attention` are True by default.

    Call arguments:
        x: float tensor (..., T, D). A position sees only itself and earlier positions.
        context: float tensor (..., S, C), the sequence that cross-attention attends to. Required
            with `cross_attention`, or a merged self-attention.
        mask: (..., T), boolean, True = token, False = padding. Default: the mask that `x` carries.
        context_mask: (..., S), boolean, likewise. Default: the mask that `context` carries.
        attention_mask: (..., T, T), boolean, True = the query sees the key. Combined with `mask`
            and causality.
        attention_bias: float tensor, broadcastable to (..., H, T, T), added to the scores of the
            self-attention.
        positions: int32, (T,), (..., T) or (..., T, C), positions of `x` for the position parts.
        position_encoding: (..., T, D), added to the inputs of the query projections of both
            attentions and of the key projection of the self-attention, but not to values (DETR,
            arXiv:2005.12872).
        context_position_encoding: (..., S, C), added to the input of the key projection of the
            cross-attention.
        keys, values: (..., T, G K) and (..., T, G V), those of another block, for a self-attention
            with `key_value="given"`.
        token_groups: (B, T), int32, the `groups` of the self-attention: tokens of which each sees
            the others, also later ones; 0 = none.

    Returns:
        Float tensor (..., T, D). If the self-attention has `key_value="returned"`, a tuple of it,
        the keys and the values.

    Example:

    >>> import keras
    >>> from keras_tfm.layers import TransformerDecoderBlock
    >>> x, context = keras.Input((None, 12)), keras.Input((None, 10))
    >>> TransformerDecoderBlock(intermediate_dim=16, num_heads=3)(x, context).shape
    (None, None, 12)
    """

    def __init__(
        self,
        intermediate_dim: int | None = None,
        num_heads: int | None = None,
        cross_attention: Part = True,
        causal: bool = True,
        **kwargs: Any,
    ):
        super().__init__(
            intermediate_dim, num_heads, cross_attention=cross_attention, causal=causal, **kwargs
        )

    def build(self, x_shape: Shape, context_shape: Shape | None = None) -> None:
        """Creates the weights for inputs of width D and a context of width C."""
        self._check_context(context_shape)
        self._build(x_shape, context_shape)

    def call(
        self,
        x: Tensor,
        context: Tensor | None = None,
        mask: Tensor | None = None,
        context_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        attention_bias: Tensor | None = None,
        positions: Tensor | None = None,
        position_encoding: Tensor | None = None,
        context_position_encoding: Tensor | None = None,
        keys: Tensor | None = None,
        values: Tensor | None = None,
        token_groups: Tensor | None = None,
        x_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor | tuple[Tensor, ...]:
        """(..., T, D), (..., S, C) -> (..., T, D)."""
        self._check_context(context)
        mask = x_mask if mask is None else mask
        x = with_finite_padding(x, mask)
        attended = self._attend(
            x,
            mask,
            position_encoding,
            training,
            attention_mask=attention_mask,
            attention_bias=attention_bias,
            positions=positions,
            keys=keys,
            values=values,
            groups=token_groups,
            memory=context if self._is_merged else None,
            memory_mask=context_mask if self._is_merged else None,
        )
        shared: tuple[Tensor, ...] = ()
        if self._key_value == "returned":
            attended, shared = attended[0], attended[1:]
        if self.cross_attention is not None:
            key = None if context_position_encoding is None else context + context_position_encoding
            given = {"context_mask": context_mask, "key": key, "positions": positions}

            def attend_to_context(y: Tensor) -> Tensor:
                y = y if position_encoding is None else y + position_encoding
                return self.cross_attention(y, context, training=training, **_present(given))

            attended = self.cross_attention_residual(
                attended, sublayer=attend_to_context, training=training
            )
        y = self._feed_forward(x, attended, training)
        return (y, *shared) if shared else y

    def _check_context(self, context: Tensor) -> None:
        if self._is_merged:
            if context is None:
                raise ValueError(
                    f"{self.name}: merged=True of its self_attention needs a context, got none; "
                    "call block(x, context)"
                )
            return
        if self.cross_attention is not None and context is None:
            raise ValueError(
                f"{self.name}: cross_attention=True needs a context, got none; "
                "call block(x, context), or create the block with cross_attention=False"
            )
        if self.cross_attention is None and context is not None:
            raise ValueError(f"{self.name}: cross_attention=False takes no context, got one")


def with_finite_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """`finite_padding`, without its cost if there is no mask."""
    return x if mask is None else finite_padding(x, masks.key_mask("mask", mask, x))


def _present(arguments: Arguments) -> Arguments:
    """The arguments that are not None: each one costs Keras time in a call."""
    return {name: value for name, value in arguments.items() if value is not None}
