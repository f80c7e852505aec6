"""The figures of docs/gallery.md; docs/pictures.py saves them.

On the left, what a builder composes; on the right, one thing in which the system differs, computed
by this library's own layers where they have it. Numbers of blocks are those of the base models.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from diagrams import BLUE, DARK, GREY, ORANGE, WHITE, Canvas
from matplotlib.figure import Figure

from keras_tfm import layers
from keras_tfm.layers.positions.relative_position_table import log_buckets
from keras_tfm.text import MaskTokens
from keras_tfm.training import hungarian_matching

WIDTH, HEIGHT, LEFT = 100, 34, 56  # the right half begins at LEFT


class Column(NamedTuple):
    """An input and the layers that it passes, from the bottom; `x` is the column's centre."""

    x: float
    inputs: str
    boxes: Sequence[str]


def composed(columns: Sequence[Column], top: Sequence[str] = (), arrows=()) -> Canvas:
    """The left half: columns of boxes, which join below the boxes of `top`.

    Args:
        columns: `Column`s.
        top: titles of boxes above all columns.
        arrows: (column, box, column, box): further arrows, from the right of one box to the left of
            the other.
    """
    canvas = Canvas(WIDTH, HEIGHT)
    tall = max(len(x.boxes) for x in columns)
    step = min(5.6, (HEIGHT - 6) / (tall + len(top)))
    height, width = step - 1.5, 24 if len(columns) > 1 else 30
    level = [4 + step * i for i in range(tall + len(top) + 1)]

    def box(x: float, i: int, title: str) -> None:
        blocks = title[0].isdigit()
        canvas.box((x - width / 2, level[i]), (width, height), "", color=BLUE if blocks else GREY)
        canvas.text((x, level[i] + height / 2), title, size=8.2, weight="bold" if blocks else None)

    for x, inputs, boxes in columns:
        canvas.text((x, 1.4), inputs, size=8.5, style="italic")
        canvas.arrow((x, 2.4), (x, level[0]))
        for i, title in enumerate(boxes):
            box(x, i, title)
            if i:
                canvas.arrow((x, level[i - 1] + height), (x, level[i]))
        if top:
            middle = sum(c.x for c in columns) / len(columns)
            canvas.arrow((x, level[len(boxes) - 1] + height), (middle, level[tall]))
    for i, title in enumerate(top):
        middle = sum(c.x for c in columns) / len(columns)
        box(middle, tall + i, title)
        if i:
            canvas.arrow((middle, level[tall + i - 1] + height), (middle, level[tall + i]))
    for start, i, end, j in arrows:
        sign = 1 if columns[end].x > columns[start].x else -1
        canvas.arrow(
            (columns[start].x + sign * width / 2, level[i] + height / 2),
            (columns[end].x - sign * width / 2, level[j] + height / 2),
        )
    return canvas


ONE, TWO = 27, (13.5, 40.5)


def encoder(inputs: str, *boxes: str) -> Canvas:
    return composed([Column(ONE, inputs, boxes)])


def encoder_decoder(before: Sequence[str], blocks: int, between: Sequence[str], *after: str):
    """Both columns of an encoder-decoder, with the arrow from encoder to cross-attention."""
    own = [*before, f"{blocks} × TransformerEncoderBlock", *between]
    other = [*before, f"{blocks} × TransformerDecoderBlock", *after]
    columns = [Column(TWO[0], "source", own), Column(TWO[1], "target", other)]
    return composed(columns, arrows=[(0, len(own) - 1, 1, len(before))])


# --- The right half


def title(canvas: Canvas, text: str, y: float = HEIGHT - 2) -> None:
    canvas.text(((LEFT + WIDTH) / 2, y), text, size=9, weight="bold")


def grid(canvas, values, corner, side, colors=None, texts=None) -> None:
    """Cells of a matrix (rows from the top): booleans, or numbers in [0, 1] as shades of blue."""
    x, y = corner
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            if isinstance(value, (bool, np.bool_)):
                color = BLUE if value else WHITE
            else:
                color = tuple(1 - value * (1 - np.array([0.11, 0.24, 0.35])))
            if colors is not None and colors[i][j]:
                color = colors[i][j]
            text = "" if texts is None else str(texts[i][j])
            at = (x + side * j, y + side * (len(values) - 1 - i))
            canvas.cell(at, side, color, text)


def image(canvas, values, corner, size) -> None:
    """A matrix as one picture, white to blue."""
    (x, y), (width, height) = corner, size
    canvas.axes.imshow(
        values, extent=(x, x + width, y, y + height), aspect="auto", cmap="Blues", zorder=2
    )
    canvas.axes.set(xlim=(0, WIDTH), ylim=(0, HEIGHT))


def transformer() -> Figure:
    canvas = encoder_decoder(
        ["TokenEmbedding × sqrt(D)", "PositionalEncoding"], 6, [], "logits (tied table)"
    )
    title(canvas, "PositionalEncoding: 64 positions, D = 48")
    x = layers.PositionalEncoding()(np.zeros((1, 64, 48), "float32"))[0]
    image(canvas, (np.array(x).T + 1) / 2, (LEFT + 4, 5), (38, 24))
    canvas.text((LEFT + 23, 2.6), "position")
    canvas.text((LEFT + 1.6, 17), "feature", rotation=90)
    return canvas.figure


WORDS = ["the", "cat", "sat", "on", "the", "red", "mat", "and", "fell", "fast", "asleep", "."]


def masked_rows(epochs: Sequence[int]) -> tuple[list, list]:
    """The words after `MaskTokens` at these steps, and the colour of each: real choices."""
    vocabulary = sorted({*WORDS})
    ids = np.array([[5 + vocabulary.index(x) for x in WORDS]])
    mask = MaskTokens(5 + len(vocabulary), mask_id=4, special_ids=range(5), name="tokens", seed=7)
    texts, colors = [], []
    for step in epochs:
        found, _, weights = mask({"tokens": ids}, step)
        shown = np.asarray(found["tokens"])[0]
        chosen = np.asarray(weights)[0] > 0
        texts.append(["[M]" if x == 4 else vocabulary[x - 5] for x in shown])
        colors.append([ORANGE if x else WHITE for x in chosen])
    return texts, colors


def bert() -> Figure:
    canvas = encoder(
        "tokens, segments", "TokenEmbedding + SegmentEmbedding", "PositionEmbedding",
        "LayerNormalization", "12 × TransformerEncoderBlock", "masked_language_model",
    )  # fmt: skip
    title(canvas, "15 % of the tokens are to be restored")
    texts, colors = masked_rows([3])
    for i, (text, color) in enumerate(zip(texts[0], colors[0], strict=True)):
        x, y = LEFT + 2 + 10.2 * (i % 4), 22 - 6.2 * (i // 4)
        canvas.box((x, y), (9.4, 4.6), "", color=color)
        canvas.text((x + 4.7, y + 2.3), text, size=9)
    canvas.text((LEFT + 22, 5.6), "orange: chosen; [M] with 80 %, another token with 10 %,", size=8)
    canvas.text((LEFT + 22, 3.4), "unchanged with 10 %. Only these have a loss.", size=8)
    return canvas.figure


def roberta() -> Figure:
    canvas = encoder(
        "tokens", "TokenEmbedding", "PositionEmbedding (offset 2)", "LayerNormalization",
        "12 × TransformerEncoderBlock", "masked_language_model",
    )  # fmt: skip
    title(canvas, "another choice in each epoch (MaskTokens)")
    _, colors = masked_rows(range(6))
    grid(canvas, np.zeros((6, len(WORDS)), bool), (LEFT + 5, 7), 3.1, colors)
    for j, word in enumerate(WORDS):
        canvas.text(
            (LEFT + 6.6 + 3.1 * j, 26.2), word, size=7.5, rotation=60, va="bottom", ha="left"
        )
    for i in range(6):
        canvas.text((LEFT + 4.4, 7 + 3.1 * (5 - i) + 1.5), f"epoch {i + 1}", size=7.5, ha="right")
    return canvas.figure


def deberta() -> Figure:
    canvas = encoder(
        "tokens", "TokenEmbedding", "LayerNormalization", "12 × TransformerEncoderBlock",
        "token_classifier",
    )  # fmt: skip
    title(canvas, "score = content + content→position + position→content")
    distances = np.arange(-256, 257)
    buckets = np.asarray(log_buckets(distances, 64, 512))
    x = LEFT + 6 + (distances + 256) / 512 * 36
    y = 5 + (buckets - buckets.min()) / np.ptp(buckets) * 22
    canvas.axes.plot(x, y, color=DARK, lw=1.6)
    canvas.axes.plot([LEFT + 6, LEFT + 42], [5, 5], color=DARK, lw=0.8)
    canvas.axes.plot([LEFT + 6, LEFT + 6], [5, 27], color=DARK, lw=0.8)
    for at, text in ((LEFT + 6, "-256"), (LEFT + 24, "0"), (LEFT + 42, "256")):
        canvas.text((at, 3.4), text, size=8)
    canvas.text((LEFT + 24, 1.4), "distance of query and key")
    canvas.text((LEFT + 3, 16), "bucket", rotation=90)
    return canvas.figure


def t5() -> Figure:
    canvas = encoder_decoder(
        ["TokenEmbedding"], 12, ["RMSNormalization"], "RMSNormalization", "logits"
    )
    title(canvas, "RelativePositionBias: the bucket of each distance")
    bias = layers.RelativePositionBias(num_buckets=32, max_distance=128)
    i, j = np.mgrid[0:40, 0:40]
    for k, (causal, text) in enumerate([(False, "encoder"), (True, "decoder")]):
        buckets = bias.buckets((j - i).ravel(), causal).reshape(i.shape).astype("float32")
        if causal:
            buckets[j > i] = 0
        image(canvas, buckets / 32, (LEFT + 1 + 22 * k, 6), (20, 20))
        canvas.text((LEFT + 11 + 22 * k, 3.6), text)
    canvas.text(
        (LEFT + 22, 28.6),
        "rows: queries, columns: keys; one learned bias per head and bucket",
        size=8,
    )
    return canvas.figure


def bart() -> Figure:
    canvas = encoder_decoder(
        ["TokenEmbedding", "PositionEmbedding", "LayerNormalization"], 6, [], "logits"
    )
    title(canvas, "who attends to whom")
    n = 6
    full, causal = np.ones((n, n), bool), np.tril(np.ones((n, n), bool))
    for k, (mask, text) in enumerate([(full, "encoder"), (causal, "decoder"), (full, "cross")]):
        grid(canvas, mask, (LEFT + 1 + 15 * k, 10), 2.1)
        canvas.text((LEFT + 7.3 + 15 * k, 7.6), text)
    canvas.text((LEFT + 22, 3.8), "the source is a corrupted text, the target the original", size=8)
    return canvas.figure


def gpt() -> Figure:
    canvas = encoder(
        "tokens", "TokenEmbedding", "PositionEmbedding", "12 × TransformerDecoderBlock",
        "LayerNormalization", "logits (tied table)",
    )  # fmt: skip
    title(canvas, "causal attention; GPT-3 and GPT-Neo alternate with windows")
    n = 11
    causal = np.tril(np.ones((n, n), bool))
    window = causal & ~np.tril(np.ones((n, n), bool), -4)
    for k, (mask, text) in enumerate([(causal, "all before"), (window, "window of 4")]):
        grid(canvas, mask, (LEFT + 1 + 22 * k, 6.4), 1.85)
        canvas.text((LEFT + 11 + 22 * k, 4), text)
    return canvas.figure


def llama() -> Figure:
    canvas = encoder(
        "tokens", "TokenEmbedding", "32 × TransformerDecoderBlock", "RMSNormalization", "logits"
    )
    title(canvas, "rotary positions, and grouped queries: a smaller KV cache")
    for h in range(8):
        canvas.cell((LEFT + 4 + 4.6 * h, 21), 3.4, BLUE, f"q{h}")
        group = h // 4
        canvas.arrow((LEFT + 5.7 + 4.6 * h, 21), (LEFT + 13 + 18.4 * group, 14.4))
    for g in range(2):
        canvas.box((LEFT + 8 + 18.4 * g, 9.4), (10, 5), "", color=ORANGE)
        canvas.text((LEFT + 13 + 18.4 * g, 11.9), f"k{g}, v{g}")
    canvas.text((LEFT + 22, 27), "num_heads=8", size=8.5)
    canvas.text((LEFT + 22, 6.4), "num_key_value_heads=2: these alone are cached", size=8.5)
    return canvas.figure


def _picture(size: int = 24) -> np.ndarray:
    """A face, as a small picture of numbers."""
    i, j = np.mgrid[0:size, 0:size] / (size - 1) * 2 - 1
    face = (i**2 + j**2 < 0.9).astype(float) * 0.35
    for x in (-0.35, 0.35):
        face[(i + 0.3) ** 2 + (j - x) ** 2 < 0.02] = 1
    face[(np.abs(i**2 + j**2 - 0.35) < 0.06) & (i > 0.25)] = 1
    return face


def vit() -> Figure:
    canvas = encoder(
        "pixels", "PatchEmbedding", "PrefixTokens (class)", "PositionEmbedding2D",
        "12 × TransformerEncoderBlock", "image_classifier",
    )  # fmt: skip
    title(canvas, "a picture is a sequence of patches")
    face = _picture()
    image(canvas, face, (LEFT + 1, 9), (18, 18))
    for i in range(4):
        for j in range(4):
            patch = face[6 * i : 6 * i + 6, 6 * j : 6 * j + 6]
            image(canvas, np.clip(patch, 0, 1), (LEFT + 23 + 5.4 * j, 23 - 5.0 * i), (4.4, 4.4))
            canvas.axes.images[-1].set_clim(0, 1)
    canvas.arrow((LEFT + 19.4, 18), (LEFT + 22.6, 18))
    canvas.text((LEFT + 22, 4), "16 patches, and a class token before them", size=8.5)
    return canvas.figure


def dino() -> Figure:
    columns = [
        Column(TWO[0], "all crops", ["student: models.vit", "head", "log softmax"]),
        Column(TWO[1], "two large crops", ["teacher: moving average", "head", "center, softmax"]),
    ]
    canvas = composed(columns, ["cross-entropy"])
    title(canvas, "multi-crop: the same picture, seen in parts")
    image(canvas, _picture(48), (LEFT + 9, 4), (26, 26))
    from matplotlib.patches import Rectangle

    for (x, y), side, color in (
        ((10, 5), 21, DARK), ((14, 9), 20, DARK), ((11, 6), 8, "#c77700"), ((25, 20), 8, "#c77700"),
        ((14, 19), 8, "#c77700"),
    ):  # fmt: skip
        style = {"fill": False, "ec": color, "lw": 2.2, "zorder": 5}
        canvas.axes.add_patch(Rectangle((LEFT + x, y), side, side, **style))
    return canvas.figure


def detr() -> Figure:
    canvas = encoder(
        "pixels", "models.resnet", "PositionalEncoding2D", "6 × TransformerEncoderBlock",
        "6 × TransformerDecoderBlock (queries)", "object_detector",
    )  # fmt: skip
    title(canvas, "hungarian_matching: each object gets one query")
    cost = np.random.default_rng(4).uniform(size=(6, 3))
    matched = np.asarray(hungarian_matching(cost[None]))[0]
    colors = [[ORANGE if matched[j] == i else None for j in range(3)] for i in range(6)]
    texts = [[f"{x:.2f}" for x in row] for row in cost]
    grid(canvas, cost * 0.6, (LEFT + 15, 5), 3.9, colors, texts)
    for j in range(3):
        canvas.text((LEFT + 17 + 3.9 * j, 29.6), f"obj. {j}", size=8)
    for i in range(6):
        canvas.text((LEFT + 14.2, 5 + 3.9 * (5 - i) + 2), f"query {i}", size=8, ha="right")
    canvas.text((LEFT + 36, 17), "cost of class\nand box", size=8)
    return canvas.figure


def vilbert() -> Figure:
    columns = [
        Column(TWO[0], "tokens", ["TokenEmbedding", "12 × text block", "6 × co-attention"]),
        Column(TWO[1], "regions", ["RegionEmbedding", "6 × region block", "6 × co-attention"]),
    ]
    canvas = composed(columns, ["image_text_pretraining"], [(0, 2, 1, 2), (1, 2, 0, 2)])
    title(canvas, "the schedule of co-attention")
    for i in range(12):
        canvas.cell((LEFT + 12, 2.5 + 2.4 * i), 2.1, BLUE, str(i))
    for i in range(6):
        canvas.cell((LEFT + 30, 2.5 + 2.4 * (i + 3)), 2.1, ORANGE, str(i))
    for text, visual in zip(range(6, 12), range(6), strict=True):
        start = (LEFT + 14.2, 3.5 + 2.4 * text)
        canvas.arrow(start, (LEFT + 30, 3.5 + 2.4 * (visual + 3)))
    canvas.text((LEFT + 11, 16), "text blocks", rotation=90)
    canvas.text((LEFT + 34.6, 16), "region blocks", rotation=90)
    return canvas.figure


def clip() -> Figure:
    columns = [
        Column(TWO[0], "pixels", ["PatchEmbedding", "12 × TransformerEncoderBlock", "Dense"]),
        Column(
            TWO[1], "tokens", ["TokenEmbedding", "12 × TransformerEncoderBlock", "EndTokenPooling"]
        ),
    ]
    canvas = composed(columns, ["cosines × temperature"])
    title(canvas, "each picture must find its text among all")
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(7, 9))
    other = vectors + 0.8 * rng.normal(size=(7, 9))
    norm = lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)  # noqa: E731
    cosines = norm(vectors) @ norm(other).T
    texts = [[f"{x:.1f}" for x in row] for row in cosines]
    colors = [[ORANGE if i == j else None for j in range(7)] for i in range(7)]
    grid(canvas, np.clip(cosines, 0, 1) * 0.7, (LEFT + 9, 4.6), 3.5, colors, texts)
    canvas.text((LEFT + 21, 2.6), "texts")
    canvas.text((LEFT + 6.6, 17), "pictures", rotation=90)
    return canvas.figure


def dalle() -> Figure:
    canvas = encoder(
        "tokens of a text, then codes", "TokenEmbedding", "GridPositionEmbedding",
        "64 × TransformerDecoderBlock", "LayerNormalization", "logits → dvae decoder → pixels",
    )  # fmt: skip
    title(canvas, "what each code attends to: 3 tokens, 4 × 4 codes")
    masks = [layers.RowMask(3, 4), layers.ColumnMask(3, 4), layers.ConvolutionMask(3, 4, 3)]
    query, key = np.mgrid[0:19, 0:19]
    for k, (mask, text) in enumerate(zip(masks, ("row", "column", "convolution"), strict=True)):
        seen = mask.visible()[np.clip(query - key, 0, 15)] | (key < 3)
        seen &= key <= query
        grid(canvas, seen, (LEFT - 2 + 15.4 * k, 10), 0.75)
        canvas.text((LEFT + 5 + 15.4 * k, 7.6), text, size=8.5)
    return canvas.figure


def whisper() -> Figure:
    encoder = ["LogMelSpectrogram", "2 × Conv1D", "6 × TransformerEncoderBlock"]
    decoder = ["TokenEmbedding", "PositionEmbedding", "6 × TransformerDecoderBlock", "logits"]
    columns = [Column(TWO[0], "samples", encoder), Column(TWO[1], "target", decoder)]
    canvas = composed(columns, arrows=[(0, 2, 1, 2)])
    title(canvas, "LogMelSpectrogram of a rising and a falling tone")
    time = np.arange(16000) / 16000
    phase = 2 * np.pi * np.cumsum(300 + 3000 * np.abs(np.sin(2 * np.pi * time))) / 16000
    mel = layers.LogMelSpectrogram(num_mels=80)(np.sin(phase)[None].astype("float32"))[0]
    mel = np.asarray(mel)
    mel = mel if mel.shape[0] == 80 else mel.T
    image(canvas, (mel[::-1] - mel.min()) / np.ptp(mel), (LEFT + 4, 6), (38, 22))
    canvas.text((LEFT + 23, 3.6), "1 second")
    canvas.text((LEFT + 1.8, 17), "mel band", rotation=90)
    return canvas.figure


def evoformer() -> Figure:
    columns = [
        Column(TWO[0], "alignment", ["TokenEmbedding", "48 × MSABlock"]),
        Column(TWO[1], "residues", ["PairEmbedding", "48 × PairBlock"]),
    ]
    canvas = composed(columns, ["masked_msa, pair_classifier"], [(0, 1, 1, 1), (1, 1, 0, 1)])
    title(canvas, "a pair (i, j) is updated from all triangles with k")
    i, j, k = (LEFT + 8, 8), (LEFT + 36, 8), (LEFT + 22, 25)
    for start, end, text, at in (
        (i, j, "(i, j)", (22, 5.6)), (i, k, "(i, k)", (11, 18)), (j, k, "(j, k)", (33.4, 18)),
    ):  # fmt: skip
        color = "#c77700" if text == "(i, j)" else DARK
        canvas.axes.plot([start[0], end[0]], [start[1], end[1]], color=color, lw=2.5, zorder=1)
        canvas.text((LEFT + at[0], at[1]), text)
    for (x, y), name in ((i, "i"), (j, "j"), (k, "k")):
        canvas.axes.plot([x], [y], "o", ms=20, mfc=BLUE, mec=DARK, zorder=3)
        canvas.text((x, y), name, zorder=4)
    return canvas.figure


def mathematics() -> Figure:
    canvas = encoder_decoder(["TokenEmbedding", "PositionalEncoding"], 3, [], "logits, beam search")
    title(canvas, "∫ x·cos(x) dx as prefix notation: mul x cos x")
    nodes = {"mul": (22, 25), "x": (12, 15), "cos": (32, 15), "x ": (32, 5.6)}
    for start, end in (("mul", "x"), ("mul", "cos"), ("cos", "x ")):
        (a, b), (c, d) = nodes[start], nodes[end]
        canvas.axes.plot([LEFT + a, LEFT + c], [b, d], color=DARK, lw=1.5, zorder=1)
    for name, (x, y) in nodes.items():
        canvas.axes.plot([LEFT + x], [y], "o", ms=26, mfc=ORANGE, mec=DARK, zorder=3)
        canvas.text((LEFT + x, y), name.strip(), zorder=4, size=9)
    return canvas.figure


def word2vec() -> Figure:
    canvas = encoder(
        "a word, and words near it", "Embedding of words", "Embedding of contexts", "dot products"
    )
    title(canvas, "skip-gram: predict the words in a window")
    for i, word in enumerate(WORDS[:8]):
        color = ORANGE if i == 3 else BLUE if abs(i - 3) < 3 else WHITE
        x, y = LEFT + 2 + 10.4 * (i % 4), 19 - 8 * (i // 4)
        canvas.box((x, y), (9.4, 5), "", color=color)
        canvas.text((x + 4.7, y + 2.5), word)
    canvas.text(
        (LEFT + 22, 5),
        "orange: the word; blue: predicted; random other\nwords are the negative samples",
        size=8,
    )
    return canvas.figure


FIGURES: dict[str, Callable[[], Figure]] = {
    f"gallery-{draw.__name__}": draw
    for draw in (
        transformer, bert, roberta, deberta, t5, bart, gpt, llama, vit, dino, detr, vilbert, clip,
        dalle, whisper, evoformer, mathematics, word2vec,
    )
}  # fmt: skip
