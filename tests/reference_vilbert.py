"""ViLBERT in NumPy float64, written from arXiv:1908.02265 and the arithmetic of the authors' code.

It has a loop over blocks as theirs: blocks of text, then of regions, then one co-attention.
"""

import numpy as np
from reference import feed_forward, gelu, layer_norm, multi_head_attention

EPSILON = 1e-12


def normalized(x, norm):
    return layer_norm(x, norm["gamma"], norm["beta"], EPSILON)


def dense(x, weights, name):
    return x @ weights[name] + weights[f"{name}_bias"]


def sublayers(x, context, weights, kind, num_heads, mask):
    """Post-norm attention to the context, and a feed-forward network."""
    attended = multi_head_attention(x, context, weights[kind], num_heads, mask)
    x = normalized(x + attended, weights[f"{kind}_norm"])
    fed = feed_forward(x, weights["feed_forward"], gelu)
    return normalized(x + fed, weights["feed_forward_norm"])


def geometry(boxes):
    """Left, top, right, bottom and the area that is covered."""
    left, top, right, bottom = np.moveaxis(boxes, -1, 0)
    return np.stack([left, top, right, bottom, (right - left) * (bottom - top)], axis=-1)


def vilbert(inputs, w, given):
    """Features of text and regions, both pooled vectors, and their product."""
    tokens, boxes = inputs["tokens"], np.asarray(inputs["region_boxes"], "float64")
    x = w["tokens"][tokens] + w["segments"][inputs["segments"]]
    x = normalized(x + w["positions"][: tokens.shape[1]], w["embedding_norm"])
    regions = w["regions"]
    y = dense(np.asarray(inputs["region_features"], "float64"), regions, "feature")
    y = normalized(y + dense(geometry(boxes), regions, "box"), regions)
    words, seen = (tokens != 0)[:, None], (inputs["region_mask"] != 0)[:, None]

    def run_text(x, begin, end):
        for i in range(begin, end):
            x = sublayers(x, x, w["text"][i], "self_attention", given["num_heads"], words)
        return x

    def run_regions(y, begin, end):
        for i in range(begin, end):
            heads = given["num_visual_heads"]
            y = sublayers(y, y, w["visual"][i], "self_attention", heads, seen)
        return y

    heads, text, visual = given["num_co_attention_heads"], 0, 0
    schedule = zip(given["visual_schedule"], given["text_schedule"], strict=True)
    for i, (visual_end, text_end) in enumerate(schedule):
        x, y = run_text(x, text, text_end), run_regions(y, visual, visual_end)
        text, visual = text_end, visual_end
        x, y = (
            sublayers(x, y, w["co_text"][i], "cross_attention", heads, seen),
            sublayers(y, x, w["co_visual"][i], "cross_attention", heads, words),
        )
    x, y = run_text(x, text, len(w["text"])), run_regions(y, visual, len(w["visual"]))
    text_pooled = np.maximum(dense(x[:, 0], w["poolers"], "text"), 0)
    visual_pooled = np.maximum(dense(y[:, 0], w["poolers"], "visual"), 0)
    fused = (
        text_pooled * visual_pooled
        if given["fusion"] == "product"
        else (text_pooled + visual_pooled)
    )
    return {
        "features": x,
        "visual_features": y,
        "pooled": fused,
        "text_pooled": text_pooled,
        "visual_pooled": visual_pooled,
    }


def heads(found, w):
    """Logits of masked words, masked regions, and whether text and image belong together."""
    words = normalized(gelu(dense(found["features"], w, "transform")), w["transform_norm"])
    y = gelu(dense(found["visual_features"], w, "region_transform"))
    return {
        "tokens": words @ w["tokens"].T + w["output_bias"],
        "regions": dense(normalized(y, w["region_transform_norm"]), w, "region_classes"),
        "matching": dense(found["pooled"], w, "matching"),
    }


def region_loss(targets, logits, weights):
    """Of chosen regions, the mean of sum_k p_k (log p_k - log q_k)."""
    total, count = 0.0, 0.0
    for p, z, weight in zip(targets, logits, weights, strict=True):
        z = np.asarray(z, "float64")
        log_q = z - z.max() - np.log(np.sum(np.exp(z - z.max())))
        total += weight * sum(a * (np.log(a) - b) for a, b in zip(p, log_q, strict=True) if a > 0)
        count += weight
    return total / count
