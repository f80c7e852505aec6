"""Positions, windows, norms and gates in NumPy float64, written from the papers, to test against.

It shares no code with the library: NumPy only, loops over heads, queries and keys, clarity before
speed. What the original Transformer has already is in `reference`.

Alphabet: B batch, T query length, S key length, H heads, G key/value heads, K head size, V width of
a head's values, D model width. Distances are the key's position minus the query's, s - t.
"""

import math
from fractions import Fraction

import numpy as np
import reference

# Rotary positions


def rotary_frequencies(dim, base=10000.0):
    """theta_i = base^(-2i/D), i = 0 .. D/2 - 1: RoFormer (arXiv:2104.09864), section 3.2.2."""
    return np.array([base ** (-2.0 * i / dim) for i in range(dim // 2)])


def linear_frequencies(dim, factor, base=10000.0):
    """Position m is taken for m/s: "position interpolation" (arXiv:2306.15595), equation 4."""
    return rotary_frequencies(dim, base) / factor


def ntk_frequencies(dim, factor, base=10000.0):
    """b' = b s^(D/(D-2)): YaRN (arXiv:2309.00071), definition 1."""
    return rotary_frequencies(dim, base * factor ** (dim / (dim - 2)))


def yarn_frequencies(dim, factor, original_length, base=10000.0, beta_fast=32, beta_slow=1):
    """What the authors' code (jquesnelle/yarn) and all models trained with YaRN compute.

    A pair i turns r times in L positions where i = D ln(L / (2 pi r)) / (2 ln b). From the pair at
    or below the one of `beta_fast` turns to the pair at or above the one of `beta_slow` the share
    that is interpolated grows linearly in i. That of the paper's equation 18
    (`yarn_paper_frequencies`) grows linearly in r. They agree on what is kept and what is divided.
    """
    at_fast, at_slow = (
        dim * math.log(original_length / (2 * math.pi * turns)) / (2 * math.log(base))
        for turns in (beta_fast, beta_slow)
    )
    low, high = max(math.floor(at_fast), 0), min(math.ceil(at_slow), dim - 1)
    frequencies = []
    for i, theta in enumerate(rotary_frequencies(dim, base)):
        if high == low:
            share = 0.0 if i <= low else 1.0
        else:
            share = min(max((i - low) / (high - low), 0.0), 1.0)
        frequencies.append(share * theta / factor + (1.0 - share) * theta)
    return np.array(frequencies)


def yarn_paper_frequencies(dim, factor, original_length, base=10000.0, beta=32, alpha=1):
    """h(theta) = (1 - gamma) theta/s + gamma theta: arXiv:2309.00071, definition 2."""
    frequencies = []
    for theta in rotary_frequencies(dim, base):
        turns = original_length * theta / (2 * math.pi)  # r = L / lambda
        gamma = min(max((turns - alpha) / (beta - alpha), 0.0), 1.0)
        frequencies.append((1.0 - gamma) * theta / factor + gamma * theta)
    return np.array(frequencies)


def yarn_magnitude(factor):
    """sqrt(1/t) = 0.1 ln(s) + 1, for queries and for keys: arXiv:2309.00071, equation 22."""
    return 0.1 * math.log(factor) + 1.0


def rotate(x, frequencies, start=0, interleaved=False, magnitude=1.0):
    """Each pair times (cos, -sin; sin, cos) of p theta_i: (..., T, K) -> (..., T, K).

    Pairs are (x_2i, x_2i+1) if `interleaved`, else (x_i, x_{i+R/2}), R = 2 len(frequencies). What
    is beyond R stays as it is.
    """
    x = np.asarray(x, dtype=np.float64)
    y = x.copy()
    half = len(frequencies)
    for t in range(x.shape[-2]):
        for i, theta in enumerate(frequencies):
            a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
            sine, cosine = math.sin((start + t) * theta), math.cos((start + t) * theta)
            y[..., t, a] = magnitude * (x[..., t, a] * cosine - x[..., t, b] * sine)
            y[..., t, b] = magnitude * (x[..., t, b] * cosine + x[..., t, a] * sine)
    return y


# Relative positions


def t5_bucket(distance, causal, num_buckets=32, max_distance=128):
    """T5's bucket of one distance, in exact arithmetic: no logarithm is taken.

    `_relative_position_bucket` of the authors' mesh_tensorflow/transformer/transformer_layers.py:
    floor(ln(n/m) / ln(max/m) (N-m)) for n >= m is the largest k with (n/m)^(N-m) >= (max/m)^k.
    """
    bucket = 0
    behind = -distance  # how far the key is before the query
    if causal:
        behind = max(behind, 0)
    else:
        num_buckets //= 2
        if behind < 0:
            bucket += num_buckets
        behind = abs(behind)
    exact = num_buckets // 2
    if behind < exact:
        return bucket + behind
    k, steps = 0, num_buckets - exact
    while k < steps and Fraction(behind, exact) ** steps >= Fraction(max_distance, exact) ** (
        k + 1
    ):
        k += 1
    return bucket + min(exact + k, num_buckets - 1)


def t5_bias(table, query_length, key_length, causal, max_distance=128, start=0):
    """table (N, H) -> (H, T, S)."""
    table = np.asarray(table, dtype=np.float64)
    bias = np.zeros((table.shape[1], query_length, key_length))
    for t in range(query_length):
        for s in range(key_length):
            bucket = t5_bucket(s - (start + t), causal, len(table), max_distance)
            bias[:, t, s] = table[bucket]
    return bias


def alibi_slopes(num_heads):
    """2^(-8 h/H), h = 1 .. H, for a power of two; arXiv:2108.12409, section 3.

    Else, as the authors' code has it: all slopes of the next lower power n, then of those of 2n the
    first, the third and so on.
    """
    lower = 1
    while 2 * lower <= num_heads:
        lower *= 2
    slopes = [2.0 ** (-8.0 * h / lower) for h in range(1, lower + 1)]
    odd = [2.0 ** (-8.0 * h / (2 * lower)) for h in range(1, 2 * lower, 2)]
    return slopes + odd[: num_heads - lower]


def alibi_bias(num_heads, query_length, key_length, start=0):
    """-m_h |s - t|: (H, T, S)."""
    bias = np.zeros((num_heads, query_length, key_length))
    for head, slope in enumerate(alibi_slopes(num_heads)):
        for t in range(query_length):
            for s in range(key_length):
                bias[head, t, s] = -slope * abs(s - (start + t))
    return bias


def shaw_row(table, distance):
    """a_{clip(s - t, k)} of a table (2k+1, K): arXiv:1803.02155, section 3.2."""
    reach = (len(table) - 1) // 2
    return table[min(max(distance, -reach), reach) + reach]


def deberta_bucket(distance, num_buckets, max_distance):
    """DeBERTa's bucket of one distance, in exact arithmetic: no logarithm is taken.

    `make_log_bucket_position` of the authors' DeBERTa/deberta/da_utils.py: ceil(ln(n/m) /
    ln((max-1)/m) (m-1)) for n > m is the smallest k with (n/m)^(m-1) <= ((max-1)/m)^k.
    """
    m, n = num_buckets // 2, abs(distance)
    if n <= m:
        return distance
    k = 0
    while Fraction(n, m) ** (m - 1) > Fraction(max_distance - 1, m) ** k:
        k += 1
    return (m + k) * (1 if distance > 0 else -1)


def deberta_row(distance, size, num_buckets, max_distance):
    """The row of a distance, the query's position minus the key's, in a table of `size` rows.

    Equation 3 of arXiv:2006.03654, of the bucket of the distance if there are buckets.
    """
    if num_buckets is not None:
        distance = deberta_bucket(distance, num_buckets, max_distance)
    return min(max(distance + size // 2, 0), size - 1)


def disentangled_score(query, key, t, s, vectors, num_buckets, max_distance):
    """Content to position and position to content of one query and one key: (B,).

    q_t K_r + k_s Q_r with the row of t - s in both: the paper's equation 4 has the row of s - t in
    the second term, the authors' code (DeBERTa/deberta/disentangled_attention.py) and all its
    checkpoints have this one.

    Args:
        query, key: (B, K), of positions t and s.
        vectors: K_r and Q_r, (2k, K) each, or None.
        num_buckets, max_distance: as in the layer.
    """
    score = 0.0
    for content, table in zip((query, key), vectors, strict=True):
        if table is not None:
            row = deberta_row(t - s, len(table), num_buckets, max_distance)
            score = score + content @ table[row]
    return score


# Attention


def visible(query_length, key_length, causal=False, window=None, start=0):
    """Which query sees which key, by position alone: (T, S), boolean."""
    seen = np.zeros((query_length, key_length), dtype=bool)
    for t in range(query_length):
        for s in range(key_length):
            distance = s - (start + t)
            seen[t, s] = not (causal and distance > 0)
            before, after = window if isinstance(window, tuple) else (window, window)
            seen[t, s] &= window is None or -before < distance < after
    return seen


def rms_norm(x, gain, epsilon):
    """gain x / sqrt(mean(x^2) + epsilon) over the last axis: arXiv:1910.07467."""
    x = np.asarray(x, dtype=np.float64)
    return gain * x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon)


def attention_weights(scores, mask):
    """The softmax of scores (..., T, S) over the visible keys; zeros where there is none."""
    mask = np.broadcast_to(mask, scores.shape)
    some = mask.any(axis=-1, keepdims=True)
    scores = np.where(some, np.where(mask, scores, -np.inf), 0.0)
    return np.where(some, reference.softmax(scores), 0.0)


def self_attention(
    x,
    weights,
    num_heads,
    *,
    causal=False,
    window=None,
    scale=None,
    soft_cap=None,
    gains=None,
    rotary=None,
    relative=None,
    shaw=None,
    disentangled=None,
    mask=None,
    attention_mask=None,
    attention_bias=None,
    drop=None,
    with_weights=False,
):
    """x (B, T, D) -> (B, T, D), all that a self-attention may have, one head after the other.

    Args:
        x: (B, T, D).
        weights: "query", "key", "value", "output" and their biases, as in `reference`.
        num_heads: H.
        causal, window, scale, soft_cap: as in the layer.
        gains: of the RMS norms of queries and of keys, two vectors (K,), or None.
        rotary: arguments of `rotate`, or None.
        relative: (H, T, T), added to the scores, or None.
        shaw: the key table and the value table (or None) of Shaw's equations 3 and 4, or None.
        disentangled: "table" (2k, D), "num_buckets", "max_distance", and "terms", a list of "key"
            (content to position) and "query" (position to content), or None. `weights` may have
            "position_key" and "position_query" and their biases.
        mask: (B, T). attention_mask: (B, T, T). attention_bias: (B | 1, H | 1, T, T).
        drop: (B, H, T, T), what the weights are multiplied by, or None.
        with_weights: return the weights (B, H, T, T) too.
    """
    x = np.asarray(x, dtype=np.float64)
    batch, length, _ = x.shape

    def project(name):
        bias = weights.get(f"{name}_bias")
        return x @ weights[name] + (0.0 if bias is None else bias)

    query, key, value = (project(name) for name in ("query", "key", "value"))
    head_dim = query.shape[-1] // num_heads
    num_key_value_heads = key.shape[-1] // head_dim
    value_dim = value.shape[-1] // num_key_value_heads
    if attention_bias is not None:
        attention_bias = np.broadcast_to(attention_bias, (batch, num_heads, length, length))

    seen = np.broadcast_to(visible(length, length, causal, window), (batch, length, length))
    if mask is not None:
        seen = seen & mask[:, np.newaxis, :]
    if attention_mask is not None:
        seen = seen & attention_mask

    def vectors(head, shared):
        """K_r and Q_r of a head."""
        result = []
        for name, index in (("key", shared), ("query", head)):
            own = f"position_{name}" in weights
            source = f"position_{name}" if own else name
            table = disentangled["table"] @ weights[source]
            if weights.get(f"{source}_bias") is not None:
                table = table + weights[f"{source}_bias"]
            first = (head if own else index) * head_dim
            is_used = name in disentangled["terms"]
            result.append(table[:, first : first + head_dim] if is_used else None)
        return result

    heads, all_weights = [], []
    for head in range(num_heads):
        shared = head // (num_heads // num_key_value_heads)
        q = query[..., head * head_dim : (head + 1) * head_dim]
        k = key[..., shared * head_dim : (shared + 1) * head_dim]
        v = value[..., shared * value_dim : (shared + 1) * value_dim]
        if gains is not None:
            q, k = rms_norm(q, gains[0], 1e-6), rms_norm(k, gains[1], 1e-6)
        if rotary is not None:
            q, k = rotate(q, **rotary), rotate(k, **rotary)
        scores = np.zeros((batch, length, length))
        for t in range(length):
            for s in range(length):
                # Shaw's equation 4: the key's vector is added before the product is scaled.
                extra = 0.0 if shaw is None else shaw_row(shaw[0], s - t)
                scores[:, t, s] = np.sum(q[:, t] * (k[:, s] + extra), axis=-1)
                if disentangled is not None:
                    scores[:, t, s] += disentangled_score(
                        q[:, t], k[:, s], t, s, vectors(head, shared),
                        disentangled["num_buckets"], disentangled["max_distance"],
                    )  # fmt: skip
        scores *= head_dim**-0.5 if scale is None else scale
        if soft_cap is not None:
            scores = soft_cap * np.tanh(scores / soft_cap)
        if relative is not None:
            scores = scores + relative[head]
        if attention_bias is not None:
            scores = scores + attention_bias[:, head]
        alpha = attention_weights(scores, seen)
        all_weights.append(alpha)
        if drop is not None:
            alpha = alpha * drop[:, head]
        z = np.zeros((batch, length, value_dim))
        for t in range(length):
            for s in range(length):
                # Shaw's equation 3.
                extra = 0.0 if shaw is None or shaw[1] is None else shaw_row(shaw[1], s - t)
                z[:, t] += alpha[:, t, s, np.newaxis] * (v[:, s] + extra)
        heads.append(z)
    y = np.concatenate(heads, axis=-1) @ weights["output"]
    if weights.get("output_bias") is not None:
        y = y + weights["output_bias"]
    return (y, np.stack(all_weights, axis=1)) if with_weights else y


# Blocks


def silu(x):
    """x / (1 + exp(-x))."""
    return x / (1.0 + np.exp(-x))


def sigmoid(x):
    """1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + np.exp(-x))


def gated_feed_forward(x, weights, activation):
    """(activation(x W_g) * (x W_1)) W_2, with biases: arXiv:2002.05202, equation 6.

    `weights`: "gate" (D, F), "inner" (D, F), "outer" (F, D) and "..._bias", None or absent: none.
    """

    def dense(x, name):
        bias = weights.get(f"{name}_bias")
        return x @ weights[name] + (0.0 if bias is None else bias)

    x = np.asarray(x, dtype=np.float64)
    return dense(activation(dense(x, "gate")) * dense(x, "inner"), "outer")


def residual(x, sublayer, order, norm, output_norm=None, scale=1.0, factors=1.0):
    """One sublayer f and its norms; a is `scale`, l `factors`.

    post: norm(a x + l f(x)); pre: a x + l f(norm(x)); sandwich: a x + l norm'(f(norm(x))).
    """
    if order == "post":
        return norm(scale * x + factors * sublayer(x))
    y = sublayer(norm(x))
    if order == "sandwich":
        y = output_norm(y)
    return scale * x + factors * y
