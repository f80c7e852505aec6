"""The original Transformer in NumPy float64, written from the paper, to test the layers against.

Vaswani et al. 2017, "Attention Is All You Need", https://arxiv.org/abs/1706.03762. It shares no
code with the library: NumPy only, a loop over heads rather than a reshape, clarity before speed.

Alphabet: B batch, T query length, S key length, H heads, K head size, D model width, C width of the
context, F feed-forward width, V vocabulary. Masks are boolean and True means attend; one that is
passed on to an attention broadcasts to (B, T, S), so a mask over the keys is (B, 1, S).
"""

import math

import numpy as np


def positional_encoding(length, dim, max_wavelength=10000.0, start=0):
    """PE(p, 2i) = sin(p / w^(2i/D)), PE(p, 2i+1) = cos of the same angle: (length, D).

    `w` is `max_wavelength` and p runs from `start`. Where D is odd the last column is a sine.
    """
    encoding = np.zeros((length, dim))
    for row in range(length):
        for column in range(dim):
            pair = column // 2
            angle = (start + row) / max_wavelength ** (2 * pair / dim)
            encoding[row, column] = math.sin(angle) if column % 2 == 0 else math.cos(angle)
    return encoding


def relu(x):
    """max(x, 0)."""
    return np.maximum(x, 0.0)


def gelu(x):
    """x * Phi(x) = x * (1 + erf(x / sqrt(2))) / 2, exact."""
    x = np.asarray(x, dtype=np.float64)
    erf = np.vectorize(math.erf, otypes=[np.float64])
    return x * 0.5 * (1.0 + erf(x / math.sqrt(2.0)))


def softmax(x):
    """exp(x) / sum(exp(x)) over the last axis; at least one entry of each row must be finite."""
    # Subtracting the largest entry changes nothing in the ratio and keeps exp from overflowing.
    exponentials = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return exponentials / np.sum(exponentials, axis=-1, keepdims=True)


def layer_norm(x, gamma, beta, epsilon):
    """gamma * (x - mean) / sqrt(variance + epsilon) + beta over the last axis, variance over D."""
    mean = np.mean(x, axis=-1, keepdims=True)
    variance = np.mean((x - mean) ** 2, axis=-1, keepdims=True)
    return gamma * (x - mean) / np.sqrt(variance + epsilon) + beta


def _boolean(mask):
    """The mask, which must be boolean: 0 and -1e9 as booleans would mean the opposite."""
    mask = np.asarray(mask)
    if mask.dtype != np.bool_:
        raise TypeError(f"mask must be boolean, True = attend, but its dtype is {mask.dtype}")
    return mask


def attention(query, key, value, mask=None, scale=None):
    """softmax(scale * Q K^T) V, with scale = 1 / sqrt(K) unless given.

    query (..., T, K), key (..., S, K), value (..., S, V), mask broadcastable to (..., T, S)
    -> (..., T, V). A masked key has weight zero; a query whose every key is masked gets zeros.
    """
    query, key, value = (np.asarray(part, dtype=np.float64) for part in (query, key, value))
    if scale is None:
        scale = 1.0 / math.sqrt(query.shape[-1])
    scores = scale * (query @ np.swapaxes(key, -1, -2))
    if mask is None:
        return softmax(scores) @ value

    mask = np.broadcast_to(_boolean(mask), scores.shape)
    has_key = np.any(mask, axis=-1, keepdims=True)
    # A row without a key would be 0 / 0: it goes through the softmax as zeros and is dropped after.
    scores = np.where(has_key, np.where(mask, scores, -np.inf), 0.0)
    weights = np.where(has_key, softmax(scores), 0.0)
    return weights @ value


def _dense(x, kernel, bias):
    """x W + b, or x W where b is None."""
    x = np.asarray(x, dtype=np.float64)
    return x @ kernel if bias is None else x @ kernel + bias


def multi_head_attention(x, context, weights, num_heads, mask=None):
    """Concat(head_1, ..., head_H) W_O, head_h = Attention(x W_Q[h], c W_K[h], c W_V[h]).

    x (B, T, D) gives the queries, the context c (B, S, C) the keys and values -> (B, T, D).
    `weights`: "query" (D, H*K), "key" (C, G*K), "value" (C, G*Kv), "output" (H*Kv, D), and for each
    a "..._bias" that may be None or absent. Head h owns the columns h*K to (h+1)*K. With grouped
    heads, G < H, query head h uses the key/value head h // (H/G); G follows from the widths.
    """
    query = _dense(x, weights["query"], weights.get("query_bias"))
    key = _dense(context, weights["key"], weights.get("key_bias"))
    value = _dense(context, weights["value"], weights.get("value_bias"))
    head_dim = query.shape[-1] // num_heads
    num_key_value_heads = key.shape[-1] // head_dim
    value_dim = value.shape[-1] // num_key_value_heads
    group_size = num_heads // num_key_value_heads

    heads = []
    for head in range(num_heads):
        shared = head // group_size
        heads.append(
            attention(
                query[..., head * head_dim : (head + 1) * head_dim],
                key[..., shared * head_dim : (shared + 1) * head_dim],
                value[..., shared * value_dim : (shared + 1) * value_dim],
                mask,
            )
        )
    return _dense(np.concatenate(heads, axis=-1), weights["output"], weights.get("output_bias"))


def feed_forward(x, weights, activation=relu):
    """activation(x W_inner + b_inner) W_outer + b_outer, the same at each position.

    `weights`: "inner" (D, F), "outer" (F, D), "inner_bias" and "outer_bias" (None or absent: none).
    """
    inner = activation(_dense(x, weights["inner"], weights.get("inner_bias")))
    return _dense(inner, weights["outer"], weights.get("outer_bias"))


def _residual(x, sublayer, norm, epsilon, normalize_first):
    """Post-norm: LayerNorm(x + Sublayer(x)). Pre-norm: x + Sublayer(LayerNorm(x))."""
    if normalize_first:
        return x + sublayer(layer_norm(x, norm["gamma"], norm["beta"], epsilon))
    return layer_norm(x + sublayer(x), norm["gamma"], norm["beta"], epsilon)


def encoder_block(
    x, weights, num_heads, mask=None, activation=relu, epsilon=1e-5, normalize_first=False
):
    """Self-attention, then feed-forward, each in a residual: (B, T, D) -> (B, T, D).

    `weights`: "self_attention" and "feed_forward", and for each a "..._norm" of "gamma" and "beta".
    """

    def self_attend(y):
        return multi_head_attention(y, y, weights["self_attention"], num_heads, mask)

    def feed(y):
        return feed_forward(y, weights["feed_forward"], activation)

    x = np.asarray(x, dtype=np.float64)
    x = _residual(x, self_attend, weights["self_attention_norm"], epsilon, normalize_first)
    return _residual(x, feed, weights["feed_forward_norm"], epsilon, normalize_first)


def decoder_block(
    x,
    context,
    weights,
    num_heads,
    self_mask=None,
    context_mask=None,
    activation=relu,
    epsilon=1e-5,
    normalize_first=False,
):
    """Causal self-attention, cross-attention, then feed-forward, each in a residual.

    x (B, T, D), context (B, S, C), or None for no cross-attention -> (B, T, D). Query t sees the
    keys up to t that `self_mask` (broadcastable to (B, T, T)) allows. `weights` are those of an
    encoder block and, with a context, "cross_attention" and "cross_attention_norm".
    """
    x = np.asarray(x, dtype=np.float64)
    length = x.shape[-2]
    causal = np.array([[s <= t for s in range(length)] for t in range(length)], dtype=bool)
    mask = causal if self_mask is None else np.logical_and(causal, _boolean(self_mask))

    def self_attend(y):
        return multi_head_attention(y, y, weights["self_attention"], num_heads, mask)

    def cross_attend(y):
        return multi_head_attention(y, context, weights["cross_attention"], num_heads, context_mask)

    def feed(y):
        return feed_forward(y, weights["feed_forward"], activation)

    x = _residual(x, self_attend, weights["self_attention_norm"], epsilon, normalize_first)
    if context is not None:
        x = _residual(x, cross_attend, weights["cross_attention_norm"], epsilon, normalize_first)
    return _residual(x, feed, weights["feed_forward_norm"], epsilon, normalize_first)


def embed(ids, embedding):
    """sqrt(D) * E[ids] + PE: ids (B, T), embedding (V, D) -> (B, T, D)."""
    dim = embedding.shape[-1]
    return math.sqrt(dim) * embedding[ids] + positional_encoding(ids.shape[-1], dim)


def transformer(
    source, target, weights, num_heads, normalize_first, epsilon, pad_id=0, activation=relu
):
    """Logits of the next token at each target position: ids (B, S) and (B, T) -> (B, T, V).

    `weights`: "source_embedding" (V, D); "target_embedding" (V, D), where None or absent the
    source's; "output" (D, V), where None or absent the target embedding transposed; "encoder" and
    "decoder", lists of block weights; "encoder_norm" and "decoder_norm", a norm after the stack
    each, None or absent for none (the paper's post-norm has none, pre-norm needs both).

    A position whose id is `pad_id` is no key: not in the encoder's self-attention, nor in
    cross-attention, nor, with the causal mask, in the decoder's self-attention.
    """
    source, target = np.asarray(source), np.asarray(target)
    source_embedding = weights["source_embedding"]
    target_embedding = weights.get("target_embedding")
    if target_embedding is None:
        target_embedding = source_embedding
    output = weights.get("output")
    if output is None:
        output = target_embedding.T
    source_mask = (source != pad_id)[:, np.newaxis, :]
    target_mask = (target != pad_id)[:, np.newaxis, :]

    context = embed(source, source_embedding)
    for block in weights["encoder"]:
        context = encoder_block(
            context, block, num_heads, source_mask, activation, epsilon, normalize_first
        )
    context = _stack_norm(context, weights.get("encoder_norm"), epsilon)

    x = embed(target, target_embedding)
    for block in weights["decoder"]:
        x = decoder_block(
            x,
            context,
            block,
            num_heads,
            self_mask=target_mask,
            context_mask=source_mask,
            activation=activation,
            epsilon=epsilon,
            normalize_first=normalize_first,
        )
    x = _stack_norm(x, weights.get("decoder_norm"), epsilon)
    return x @ output


def _stack_norm(x, norm, epsilon):
    """LayerNorm(x), or x where there is no norm after the stack."""
    return x if norm is None else layer_norm(x, norm["gamma"], norm["beta"], epsilon)


def label_smoothed_cross_entropy(labels, logits, label_smoothing=0.1, ignore_class=0):
    """Mean over labels of -sum_v q(v) log softmax(logits)(v), q = y (1 - a) + a / V: a scalar.

    labels (...), logits (..., V), `a` is `label_smoothing` and y the one-hot label. Labels equal to
    `ignore_class` (None: no such class) count neither in the sum nor in the number; 0.0 when none
    is left.
    """
    labels = np.asarray(labels).reshape(-1)
    logits = np.asarray(logits, dtype=np.float64)
    vocabulary_size = logits.shape[-1]
    losses = []
    for label, row in zip(labels, logits.reshape(-1, vocabulary_size), strict=True):
        if ignore_class is not None and label == ignore_class:
            continue
        shifted = row - np.max(row)
        log_probability = shifted - np.log(np.sum(np.exp(shifted)))
        wanted = np.full(vocabulary_size, label_smoothing / vocabulary_size)
        wanted[label] += 1.0 - label_smoothing
        losses.append(-np.sum(wanted * log_probability))
    return float(np.mean(losses)) if losses else 0.0


def transformer_schedule(step, dim, warmup_steps):
    """lr = D^-0.5 * min(step^-0.5, step * warmup^-1.5); the first step is 1."""
    return dim**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)
