"""Attention with separate inputs, gates and disentangled positions, and blocks of it, in NumPy.

Written from the papers, in float64, beside `reference`: a loop over heads, no code of the library.

Alphabet: B batch, T query length, S key length, H heads, K head size, D model width, C width of the
context. Masks are boolean, True = attend, broadcastable to (B, T, S).
"""

import numpy as np
from reference import feed_forward, layer_norm, softmax


def dense(x, weights, name):
    """x W + b, or x W where there is no b."""
    y = np.asarray(x, np.float64) @ weights[name]
    bias = weights.get(f"{name}_bias")
    return y if bias is None else y + bias


def columns(x, head, width):
    """The columns of one head."""
    return x[..., head * width : (head + 1) * width]


def attention(
    query, key, value, weights, num_heads, mask=None, gate=None, rotate=None, relative=None
):
    """Concat(head_1, ..., head_H) W_O with queries, keys and values from three inputs.

    query (B, T, D), key (B, S, C), value (B, S, C) -> (B, T, D). `weights`: "query", "key",
    "value", "output", perhaps "gate", and "..._bias" of each.

    gate: (B, T, D), of which sigmoid(x W_g + b_g) multiplies the heads' results (AlphaFold 2,
        supplement, algorithm 7, line 3); if W_g has H columns, each multiplies a whole head.
    rotate: two functions, applied to each head's queries and keys.
    relative: DeBERTa's table P (2k, D), arXiv:2006.03654, equations 2 to 4: the scores are
        Qc_i Kc_j + Qc_i Kr_d(i,j) + Kc_j Qr_d(j,i), divided by sqrt(3 K), where Kr = P W_k and
        Qr = P W_q.
    """
    q, k, v = (
        dense(x, weights, name) for x, name in ((query, "query"), (key, "key"), (value, "value"))
    )
    head_dim, value_dim = q.shape[-1] // num_heads, v.shape[-1] // num_heads
    results = []
    for head in range(num_heads):
        qh, kh, vh = (
            columns(q, head, head_dim),
            columns(k, head, head_dim),
            columns(v, head, value_dim),
        )
        if rotate is not None:
            qh, kh = rotate[0](qh), rotate[1](kh)
        scores = np.einsum("btk,bsk->bts", qh, kh)
        terms = 1
        if relative is not None:
            terms = 3
            scores = scores + disentangled(
                qh,
                kh,
                columns(dense(relative, weights, "query"), head, head_dim),
                columns(dense(relative, weights, "key"), head, head_dim),
            )
        scores = scores / np.sqrt(terms * head_dim)
        results.append(weighted(scores, mask) @ vh)
    y = np.concatenate(results, axis=-1)
    if gate is not None:
        gates = 1.0 / (1.0 + np.exp(-dense(gate, weights, "gate")))
        y = y * np.repeat(gates, y.shape[-1] // gates.shape[-1], axis=-1)
    return dense(y, weights, "output")


def weighted(scores, mask):
    """The softmax over the keys that `mask` lets through; zeros where it lets none."""
    if mask is None:
        return softmax(scores)
    mask = np.broadcast_to(mask, scores.shape)
    rows = np.zeros_like(scores)
    for place in np.ndindex(scores.shape[:-1]):
        seen = mask[place]
        if seen.any():
            rows[place][seen] = softmax(scores[place][seen])
    return rows


def disentangled(query, key, relative_query, relative_key):
    """Content to position, and position to content: (B, T, S)."""
    size = len(relative_key)

    def row(i, j):  # d(i, j), equation 3 with 2 k = size
        return min(max(i - j + size // 2, 0), size - 1)

    scores = np.zeros((len(query), query.shape[1], key.shape[1]))
    for i in range(query.shape[1]):
        for j in range(key.shape[1]):
            scores[:, i, j] = query[:, i] @ relative_key[row(i, j)]
            scores[:, i, j] += key[:, j] @ relative_query[row(j, i)]
    return scores


def block(
    x,
    weights,
    num_heads,
    context=None,
    mask=None,
    context_mask=None,
    position_encoding=0.0,
    context_position_encoding=0.0,
    epsilon=1e-5,
    normalize_first=False,
):
    """A block of the sublayers that `weights` has, each in a residual: (B, T, D) -> the same.

    `position_encoding` is added to what queries and keys are projected from, not to values: DETR
    (arXiv:2005.12872), appendix A.3 and figure 10.
    """

    def sublayers():
        def attend(y):
            moved = y + position_encoding
            return attention(moved, moved, y, weights["self_attention"], num_heads, mask)

        def attend_to_context(y):
            keys = context + context_position_encoding
            return attention(
                y + position_encoding, keys, context, weights["cross_attention"], num_heads,
                context_mask,
            )  # fmt: skip

        yield "self_attention", attend
        yield "cross_attention", attend_to_context
        yield "feed_forward", lambda y: feed_forward(y, weights["feed_forward"])

    x = np.asarray(x, np.float64)
    for name, sublayer in sublayers():
        if name not in weights:
            continue
        norm = weights[f"{name}_norm"]
        if normalize_first:
            x = x + sublayer(layer_norm(x, norm["gamma"], norm["beta"], epsilon))
        else:
            x = layer_norm(x + sublayer(x), norm["gamma"], norm["beta"], epsilon)
    return x
