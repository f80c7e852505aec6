"""An Evoformer block in NumPy float64, written from the supplement of Jumper et al. 2021.

Loops over heads, rows and pairs, as the algorithms state them: clarity before speed. `w` holds the
weights of one of our layers by the last part of their paths.
"""

import numpy as np
from reference import layer_norm, softmax

EPSILON = 1e-5


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def normalized(x, w, name):
    return layer_norm(x, w[f"{name}/gamma"], w[f"{name}/beta"], EPSILON)


def dense(x, w, name):
    return x @ w[f"{name}/kernel"] + w.get(f"{name}/bias", 0.0)


def within(w, part):
    """The weights of a part."""
    return {key[len(part) + 1 :]: x for key, x in w.items() if key.startswith(f"{part}/")}


def gated_attention(x, w, num_heads, mask, bias=None):
    """One sequence: x (T, D), mask (T,), bias (H, T, T) -> (T, D)."""
    query, key, value = np.split(x @ w["query_key_value/kernel"], 3, axis=-1)
    width = query.shape[-1] // num_heads
    heads = []
    for h in range(num_heads):
        part = slice(h * width, (h + 1) * width)
        scores = query[:, part] @ key[:, part].T / np.sqrt(width)
        if bias is not None:
            scores = scores + bias[h]
        if not mask.any():
            heads.append(np.zeros((len(x), width)))
            continue
        heads.append(softmax(np.where(mask, scores, -np.inf)) @ value[:, part])
    gate = sigmoid(dense(x, w, "gate"))
    return dense(gate * np.concatenate(heads, axis=-1), w, "output_projection")


def row_attention(x, z, w, num_heads, mask):
    """Algorithm 7, for one alignment: (S, N, D), (N, N, E) -> (S, N, D)."""
    x = normalized(x, w, "norm")
    bias = np.moveaxis(dense(normalized(z, w, "pair_norm"), w, "pair_bias"), -1, 0)
    inner = within(w, "attention")
    return np.stack([gated_attention(x[s], inner, num_heads, mask[s], bias) for s in range(len(x))])


def column_attention(x, w, num_heads, mask):
    """Algorithm 8."""
    x = normalized(x, w, "norm")
    inner = within(w, "attention")
    columns = [gated_attention(x[:, i], inner, num_heads, mask[:, i]) for i in range(x.shape[1])]
    return np.stack(columns, axis=1)


def global_attention(x, w, num_heads, mask):
    """Algorithm 19."""
    x = normalized(x, w, "norm")
    columns = []
    for i in range(x.shape[1]):
        seen, column = mask[:, i], x[:, i]
        gate = sigmoid(dense(column, w, "gate"))
        if not seen.any():
            columns.append(dense(np.zeros_like(gate), w, "output_projection"))
            continue
        query = np.mean(column[seen], axis=0) @ w["query/kernel"]
        key, value = np.split(column @ w["key_value/kernel"], 2, axis=-1)
        width = key.shape[-1]
        heads = []
        for h in range(num_heads):
            scores = key @ query[h * width : (h + 1) * width] / np.sqrt(width)
            heads.append(softmax(np.where(seen, scores, -np.inf)) @ value)
        columns.append(dense(gate * np.concatenate(heads), w, "output_projection"))
    return np.stack(columns, axis=1)


def outer_product_mean(x, w, mask):
    """Algorithm 10; the authors' code also divides the bias and adds 0.001 to the count."""
    first, second = np.split(dense(normalized(x, w, "norm"), w, "projections"), 2, axis=-1)
    length = x.shape[1]
    rows = []
    for i in range(length):
        for j in range(length):
            both = mask[:, i] & mask[:, j]
            outer = sum(np.outer(first[s, i], second[s, j]) for s in np.flatnonzero(both))
            flat = np.ravel(outer) if both.any() else np.zeros(first.shape[-1] ** 2)
            rows.append(dense(flat, w, "output_projection") / (1e-3 + both.sum()))
    return np.reshape(rows, (length, length, -1))


def triangle_multiplication(z, w, mask, incoming):
    """Algorithms 11 and 12."""
    z = normalized(z, w, "norm")
    edges = sigmoid(dense(z, w, "edge_gates")) * dense(z, w, "edges") * mask[..., None]
    first, second = np.split(edges, 2, axis=-1)
    length = len(z)
    y = np.zeros((length, length, first.shape[-1]))
    for i in range(length):
        for j in range(length):
            for k in range(length):
                y[i, j] += first[k, i] * second[k, j] if incoming else first[i, k] * second[j, k]
    y = dense(normalized(y, w, "output_norm"), w, "output_projection")
    return sigmoid(dense(z, w, "gate")) * y


def triangle_attention(z, w, num_heads, mask, ending):
    """Algorithms 13 and 14."""
    z = normalized(z, w, "norm")
    inner = within(w, "attention")
    bias = np.moveaxis(dense(z, w, "pair_bias"), -1, 0)  # (H, j, k)
    if not ending:
        rows = [gated_attention(z[i], inner, num_heads, mask[i], bias) for i in range(len(z))]
        return np.stack(rows)
    # Column j: pairs (i, j) attend to (k, j), with the bias of (k, i).
    bias = np.swapaxes(bias, 1, 2)
    columns = [gated_attention(z[:, j], inner, num_heads, mask[:, j], bias) for j in range(len(z))]
    return np.stack(columns, axis=1)


def transition(x, w):
    """Algorithms 9 and 15."""
    inner = np.maximum(dense(normalized(x, w, "transition_norm"), w, "transition/inner"), 0.0)
    return dense(inner, w, "transition/outer")


def msa_block(x, z, w, num_heads, mask, extra=False):
    """Lines 2 to 4 of algorithm 6, or of algorithm 18."""
    x = x + row_attention(x, z, within(w, "row_attention"), num_heads, mask)
    columns = global_attention if extra else column_attention
    x = x + columns(x, within(w, "column_attention"), num_heads, mask)
    return x + transition(x, w)


def pair_block(z, x, w, num_heads, mask):
    """Lines 5 to 10 of algorithm 6."""
    seen = mask[0][:, None] & mask[0][None, :]
    z = z + outer_product_mean(x, within(w, "outer_product"), mask)
    z = z + triangle_multiplication(z, within(w, "outgoing"), seen, incoming=False)
    z = z + triangle_multiplication(z, within(w, "incoming"), seen, incoming=True)
    z = z + triangle_attention(z, within(w, "starting"), num_heads, seen, ending=False)
    z = z + triangle_attention(z, within(w, "ending"), num_heads, seen, ending=True)
    return z + transition(z, w)
