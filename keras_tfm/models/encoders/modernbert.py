"""ModernBERT: "Smarter, Better, Faster, Longer" (arXiv:2412.13663)."""

import keras

from keras_tfm import layers
from keras_tfm.arguments import check_integer
from keras_tfm.layers.types import Activation, Arguments, DType
from keras_tfm.models.encoders.bidirectional_encoder import initializer
from keras_tfm.models.identity import Marker, builder
from keras_tfm.models.model import Model

# Table 4 of the paper, and Ettin's sizes (arXiv:2507.11412), whose models are paired with
# decoders. modernbert(50368, **SIZES["base"]); GTE's embedder gte-modernbert-base is "base".
SIZES: dict[str, Arguments] = {
    "base": {"dim": 768, "num_layers": 22, "num_heads": 12, "intermediate_dim": 1152},
    "large": {"dim": 1024, "num_layers": 28, "num_heads": 16, "intermediate_dim": 2624},
    "ettin-17m": {"dim": 256, "num_layers": 7, "num_heads": 4, "intermediate_dim": 384},
    "ettin-32m": {"dim": 384, "num_layers": 10, "num_heads": 6, "intermediate_dim": 576},
    "ettin-68m": {"dim": 512, "num_layers": 19, "num_heads": 8, "intermediate_dim": 768},
    "ettin-150m": {"dim": 768, "num_layers": 22, "num_heads": 12, "intermediate_dim": 1152},
    "ettin-400m": {"dim": 1024, "num_layers": 28, "num_heads": 16, "intermediate_dim": 2624},
    "ettin-1b": {"dim": 1792, "num_layers": 28, "num_heads": 28, "intermediate_dim": 3840},
}


@builder
def modernbert(
    vocabulary_size: int,
    dim: int = 768,
    num_layers: int = 22,
    num_heads: int = 12,
    intermediate_dim: int = 1152,
    embedding_dropout: float = 0.0,
    attention_dropout: float = 0.0,
    activation_dropout: float = 0.0,
    activation: Activation = "gelu",
    head_activation: Activation = "gelu",
    layer_norm_epsilon: float = 1e-5,
    window: int = 128,
    global_every: int = 3,
    rope_theta: float = 160000.0,
    local_rope_theta: float = 10000.0,
    max_length: int = 8192,
    pad_id: int = 50283,
    name: str = "modernbert",
    dtype: DType = None,
) -> Model:
    """ModernBERT's encoder, from token ids to features, without a head.

    Pre-norm blocks with rotary positions and GeGLU; no layer has a bias, and the first block has no
    normalisation before its attention. One block in `global_every` sees the whole text, from the
    first on; the others see half a window to each side.

    Args:
        num_heads: int, number of attention heads (H). Must divide `dim`.
        embedding_dropout: float, dropout rate after the embeddings.
        attention_dropout: float, dropout rate of the attention weights and of attention's output.
        head_activation: str or function, activation of the dense layer with which heads begin.
        window: int, number of neighbours that a token sees in a local block, half on each side.
        global_every: int, every block whose number it divides is global, the first included.
        rope_theta: float, longest wavelength of the rotary positions divided by 2 pi, in global
            blocks.
        local_rope_theta: float, likewise in local blocks.
        pad_id: int, id of padding tokens.

    Returns:
        A functional model from `tokens` (B, T), int32, to features (B, T, D).

    Example:

    >>> from keras_tfm.models import masked_language_model, modernbert
    >>> model = modernbert(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, pad_id=0)
    >>> masked_language_model(model).output.shape
    (None, None, 11)
    """
    check_integer("num_layers", num_layers)
    check_integer("window", window, minimum=0)
    check_integer("global_every", global_every)

    def norm(name: str) -> layers.LayerNormalization:
        return layers.LayerNormalization(
            epsilon=layer_norm_epsilon, center=False, dtype=dtype, name=name
        )

    def block(i: int) -> layers.TransformerEncoderBlock:
        is_global = i % global_every == 0
        return layers.TransformerEncoderBlock(
            self_attention=layers.MultiHeadSelfAttention(
                num_heads,
                # The token itself, and half of the window to each side.
                window=None if is_global else window // 2 + 1,
                position=layers.RotaryEmbedding(
                    rope_theta if is_global else local_rope_theta, dtype=dtype
                ),
                dropout=attention_dropout,
                use_bias=False,
                kernel_initializer=initializer(),
                dtype=dtype,
                name="self_attention",
            ),
            feed_forward=layers.FeedForward(
                intermediate_dim,
                activation=activation,
                gated=True,
                dropout=activation_dropout,
                use_bias=False,
                kernel_initializer=initializer(),
                dtype=dtype,
                name="feed_forward",
            ),
            residual={
                "self_attention": layers.Residual(
                    input_norm=norm("norm") if i else None, dropout=attention_dropout, dtype=dtype
                ),
                "feed_forward": layers.Residual(input_norm=norm("norm"), dtype=dtype),
            },
            dtype=dtype,
            name=f"encoder_{i}",
        )

    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = layers.TokenEmbedding(
        vocabulary_size,
        dim,
        mask_id=pad_id,
        padding="ends",
        embeddings_initializer=initializer(),
        dtype=dtype,
        name="embedding",
    )(tokens)
    x = norm("embedding_norm")(x)
    x = layers.Dropout(embedding_dropout, dtype=dtype, name="embedding_dropout")(x)
    blocks = [block(i) for i in range(num_layers)]
    for layer in blocks:
        x = layer(x)
    names = [layer.name for layer in blocks]
    x = Marker("features", embedding="embedding", blocks=names, dtype=dtype)(norm("final_norm")(x))
    return Model({"tokens": tokens}, x, name=name)
