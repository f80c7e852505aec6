"""The diagrams of the docs, in one style; docs/pictures.py saves them."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

DARK, BLUE, GREY, ORANGE, WHITE = "#1c3d5a", "#d6e6f5", "#f0f0ee", "#f9d9a8", "#ffffff"
BARS = ("#2f6fa8", "#8fb8de", "#b9b9b4", "#d9d9d4", "#e4b267", "#c9d8b6")
Point = tuple[float, float]


class Canvas:
    """A drawing of boxes, cells and arrows; a unit is a tenth of an inch."""

    def __init__(self, width: float, height: float):
        self.figure = Figure(figsize=(width / 10, height / 10))
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set(xlim=(0, width), ylim=(0, height))
        self.axes.axis("off")

    def box(
        self,
        corner: Point,
        size: Point,
        title: str,
        lines: Sequence[str] = (),
        color: str = BLUE,
        dashed: bool = False,
    ) -> None:
        """A box with a title in bold and lines below it, centred."""
        (x, y), (width, height) = corner, size
        style = {"fc": color, "ec": DARK, "lw": 1.2, "ls": "--" if dashed else "-"}
        patch = FancyBboxPatch((x, y), width, height, "round,pad=0,rounding_size=1", **style)
        self.axes.add_patch(patch)
        middle, step = y + height / 2, 2.5
        top = middle + step * len(lines) / 2
        self.text((x + width / 2, top), title, size=10, weight="bold")
        for i, line in enumerate(lines):
            self.text((x + width / 2, top - 0.4 - step * (i + 1)), line)

    def frame(self, corner: Point, size: Point, title: str, color: str = WHITE) -> None:
        """A dashed frame around other boxes, with its title inside at the top left."""
        (x, y), (width, height) = corner, size
        style = {"fc": color, "ec": DARK, "lw": 1.0, "ls": "--", "zorder": 0}
        patch = FancyBboxPatch((x, y), width, height, "round,pad=0,rounding_size=1", **style)
        self.axes.add_patch(patch)
        self.text((x + 1.2, y + height - 1.8), title, size=9.5, weight="bold", ha="left")

    def cell(self, corner: Point, side: float, color: str, text: str = "") -> None:
        self.axes.add_patch(Rectangle(corner, side, side, fc=color, ec=DARK, lw=0.7))
        self.text((corner[0] + side / 2, corner[1] + side / 2), text, size=8)

    def text(self, at: Point, text: str, size: float = 9, **style: object) -> None:
        style = {"ha": "center", "va": "center", "color": "#111111", **style}
        self.axes.text(*at, text, size=size, **style)

    def arrow(self, start: Point, end: Point, label: str = "", dashed: bool = False) -> None:
        """An arrow, with its label above the middle."""
        style = {"arrowstyle": "-|>", "color": DARK, "lw": 1.5, "ls": "--" if dashed else "-"}
        style |= {"shrinkA": 0, "shrinkB": 0}
        self.axes.annotate("", end, start, arrowprops=style)
        if label:
            middle = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2 + 1.5
            self.text(middle, label, size=8.5)


def overview() -> Figure:
    """From a Keras model or a Hugging Face folder to one file, and the devices that run it."""
    canvas = Canvas(100, 34)
    layers = ("TransformerEncoderBlock,", "TransformerDecoderBlock, ...", "trained with model.fit")
    folder = ("BERT, RoBERTa, Llama, T5,", "sentence-transformers:", "weights and tokenizer")
    contents = (
        "weights",
        "decoding loop with KV cache,",
        "greedy or beam search",
        "prefill and decode steps",
        "tokenizer",
        "checksum",
    )
    canvas.box((1, 18.5), (24, 14), "Keras 3 layers", layers)
    canvas.box((1, 1.5), (24, 14), "Hugging Face folder", folder)
    export = ("float32, float16,", "int8 or int4; compared", "with the Keras model")
    canvas.box((32, 10), (18, 14), "export_tflite", export, GREY)
    canvas.box((57, 5), (20, 24), "one .tflite file", contents)
    for i, name in enumerate(("Android", "iOS", "Raspberry Pi", "browser", "server")):
        y = 27.5 - 6.4 * i
        canvas.box((84, y), (15, 5), name, color=GREY)
        canvas.arrow((77.4, 17), (83.6, y + 2.5))
    canvas.arrow((25.4, 25.5), (31.6, 19))
    canvas.arrow((25.4, 8.5), (31.6, 15))
    canvas.arrow((50.4, 17), (56.6, 17))
    return canvas.figure


def one_definition() -> Figure:
    """One model, and its three uses."""
    canvas = Canvas(100, 36)
    model = ("a functional keras.Model,", "composed once from layers:", "ids in, logits out")
    canvas.box((1, 10.5), (25, 14), "the model", model)
    uses = [
        ("trained", "model.fit", "whole rows (B, T), all positions at once", "weights"),
        ("stepped", "Generator, generate", "one token at a time, with a KV cache", "tokens"),
        ("exported", "export_tflite", "both as graphs with fixed shapes", ".tflite file"),
    ]
    for i, (use, call, how, result) in enumerate(uses):
        y = 25 - 12 * i
        canvas.arrow((26.4, 17.5), (37.6, y + 4.5))
        canvas.box((38, y), (35, 9), f"{use}: {call}", [how], GREY)
        canvas.arrow((73.4, y + 4.5), (80.6, y + 4.5))
        canvas.box((81, y), (18, 9), result)
    return canvas.figure


def kv_cache() -> Figure:
    """Which columns of the KV cache each query attends to, in prefill and in decode."""
    canvas = Canvas(100, 43)
    tokens = ["<s>", "the", "cat", "sat", "on", "the", "mat", ".", "</s>"]
    side, prompt, capacity = 4.2, 4, 8
    left, right = 12, 60

    def columns(x: float, y: float, title: str) -> None:
        canvas.text((x + side * capacity / 2, y + 7), title, size=10, weight="bold")
        for j in range(capacity):
            canvas.text((x + side * (j + 0.5), y + 1.4), str(j), size=8)
        canvas.text((x + side * capacity / 2, y + 4), "column of the KV cache (keys, values)")

    columns(left, 31, "prefill: the prompt, except its last token, in one pass")
    for i in range(prompt):
        y = 27 - side * i
        canvas.text((left - 1, y + side / 2), tokens[i], ha="right")
        for j in range(capacity):
            color = ORANGE if i == j else BLUE if j < i else WHITE
            canvas.cell((left + side * j, y), side, color)
    canvas.text((left - 7.5, 27 - side), "query", rotation=90)

    columns(right, 31, "decode: one token per step")
    for step, position in enumerate(range(prompt, capacity)):
        y = 27 - side * step
        canvas.text((right - 1, y + side / 2), tokens[position], ha="right")
        for j in range(capacity):
            color = ORANGE if j == position else BLUE if j < position else WHITE
            canvas.cell((right + side * j, y), side, color)
        chosen = f"→ {tokens[position + 1]}"
        canvas.text((right + side * capacity + 1, y + side / 2), chosen, ha="left")
    canvas.text((right - 7.5, 27 - side), "query", rotation=90)

    for i, (color, text) in enumerate(
        [
            (ORANGE, "this token: written, and attended to"),
            (BLUE, "earlier tokens: attended to"),
            (WHITE, "later or empty columns: masked"),
        ]
    ):
        x = 4 + 33 * i
        canvas.cell((x, 6), 2.6, color)
        canvas.text((x + 3.6, 7.3), text, ha="left")
    note = "A step computes one query, key and value per layer; the others are read from the cache."
    canvas.text((50, 2.4), note)
    return canvas.figure


def kinds_of_state() -> Figure:
    """What each kind of layer keeps of the tokens before a step, and what a step does with it."""
    canvas = Canvas(100, 47)
    side, rows = 3.4, [33, 21, 9]
    names = ["keys and values", "last inputs", "recurrent state"]
    layers = ["causal attention", "causal convolution, kernel 4", "LSTM, GRU, a rule of yours"]
    for y, name, layer in zip(rows, names, layers, strict=True):
        canvas.box((1, y), (25, 8.6), name, [layer], GREY)
    for x, title in ((29, "before"), (54, "after a step"), (77, "to go back")):
        canvas.text((x, 44.5), title, ha="left", size=10, weight="bold")
    for x, count in ((29, 4), (54, 5)):
        for j in range(6):
            color = WHITE if j >= count else ORANGE if j == 4 else BLUE
            canvas.cell((x + side * j, rows[0] + 2.6), side, color)
    canvas.text((77, rows[0] + 4.3), "to any position:\nlater columns are masked", ha="left")
    for x, first in ((29, 1), (54, 2)):
        for j in range(3):
            color = ORANGE if first + j == 4 else BLUE
            canvas.cell((x + side * j, rows[1] + 2.6), side, color)
            canvas.text((x + side * (j + 0.5), rows[1] + 1), str(first + j), size=8)
    for x, color in ((29, BLUE), (54, ORANGE)):
        canvas.cell((x, rows[2] + 1.8), 5, color)
    for y in rows[1:]:
        text = "to a state that was kept;\nthe tokens after it are read again"
        canvas.text((77, y + 4.3), text, ha="left")
    for y in rows:
        canvas.arrow((50.2, y + 4.3), (53.4, y + 4.3))
    for i, (color, text) in enumerate([(BLUE, "earlier tokens"), (ORANGE, "this token")]):
        canvas.cell((29 + 25 * i, 3.4), 2.6, color)
        canvas.text((33 + 25 * i, 4.7), text, ha="left")
    canvas.text((77, 4.7), "white: empty columns", ha="left")
    return canvas.figure


def encode_and_step() -> Figure:
    """How the graph of an encoder-decoder is cut into what runs once and what runs per token."""
    canvas = Canvas(100, 48)
    canvas.frame((1, 27), (98, 20), "encode: does not depend on the target, runs once", "#fafafa")
    canvas.frame((1, 5), (98, 20), "step: depends on the target, runs once per token", "#f5f9fd")
    top, bottom = 31, 9
    canvas.box((3, top), (14, 9), "source", ["ids (B, S)"], WHITE)
    canvas.box((24, top), (18, 9), "embedding", ["and positions"], GREY)
    canvas.box((49, top), (19, 9), "encoder blocks", ["any layers"], GREY)
    canvas.box((75, top), (21, 9), "context", ["(B, S, D), with its mask"], WHITE)
    canvas.box((3, bottom), (14, 9), "target", ["one token (B, 1)"], WHITE)
    canvas.box((24, bottom), (18, 9), "embedding", ["at position p"], BLUE)
    attention = ["self-attention: KV cache", "cross-attention: context"]
    canvas.box((49, bottom - 1), (25, 11), "decoder blocks", attention, BLUE)
    canvas.box((81, bottom), (15, 9), "logits", ["(B, V)"], WHITE)
    for y in (top + 4.5, bottom + 4.5):
        canvas.arrow((17.4, y), (23.6, y))
        canvas.arrow((42.4, y), (48.6, y))
    canvas.arrow((68.4, top + 4.5), (74.6, top + 4.5))
    canvas.arrow((74.4, bottom + 4.5), (80.6, bottom + 4.5))
    canvas.arrow((79, top - 0.4), (70, bottom + 10.4))
    canvas.text((73.5, 22.5), "keys and values: projected once", ha="left", size=8.5)
    canvas.axes.plot([88.5, 88.5, 10, 10], [8.6, 2.6, 2.6, 8.6], color=DARK, lw=1.5, ls="--")
    canvas.arrow((10, 6), (10, 8.6))
    canvas.text((49, 1.2), "the next token: greedy, beam search, sampling", size=8.5)
    return canvas.figure


def the_file() -> Figure:
    """What a .tflite file of this library contains."""
    canvas = Canvas(100, 50)
    canvas.frame((1, 1), (98, 48), "model.tflite: one flatbuffer, which LiteRT maps into memory")
    signatures = [
        ("generate", "source ids -> tokens"),
        ("predict", "inputs -> outputs"),
        ("encode", "source -> keys, values"),
        ("prefill", "prompt -> KV cache"),
        ("decode", "token, cache -> logits"),
    ]
    for i, (name, what) in enumerate(signatures):
        canvas.box((3 + 19.2 * i, 34), (17.2, 9), name, [what])
        canvas.arrow((11.6 + 19.2 * i, 33.6), (11.6 + 19.2 * i, 30.4))
    graphs = ["builtin operators with fixed shapes; a decoding loop is a WHILE operator"]
    canvas.box((3, 22), (94, 8), "graphs", graphs, GREY)
    canvas.arrow((25, 21.6), (25, 18.4))
    weights = ["float32, float16, int8 or int4", "stored once, shared by all signatures"]
    canvas.box((3, 4.2), (44, 13.8), "weights", weights, GREY)
    canvas.frame((51, 3), (46, 17), "metadata")
    manifest = ["JSON: signatures,", "padding ids, sizes,", "versions"]
    canvas.box((52.5, 4.2), (15.5, 12), "manifest", manifest, ORANGE)
    tokenizers = ["tokenizer.json or", "SentencePiece"]
    canvas.box((69.5, 4.2), (15, 12), "tokenizers", tokenizers, ORANGE)
    canvas.box((86, 4.2), (10, 12), "checksum", ["of all", "bytes"], ORANGE)
    return canvas.figure


def verification() -> Figure:
    """How an export compares the file with the model."""
    canvas = Canvas(100, 44)
    canvas.box((1, 29), (20, 10), "Keras model", ["its weights in float32"])
    canvas.box((1, 4), (20, 10), "new file", ["in a temporary folder"])
    rows = ["covering the vocabulary,", "half of them padded"]
    canvas.box((1, 16), (20, 11), "random rows, or yours", rows, WHITE)
    canvas.frame((30, 1), (38, 42), "compared", "#fafafa")
    checks = [
        ("1. the stored weights", "each within half a quantization", "step of one of the model's"),
        ("2. the graph", "in float32 with the model's weights:", "at most 1e-4 apart"),
        (
            "3. the file as stored",
            "outputs, or logits of every step:",
            "within the noise of rounding",
        ),
    ]
    for i, (name, *what) in enumerate(checks):
        canvas.box((32, 28 - 12.7 * i), (34, 11), name, what, GREY)
    for y in (34, 21.5, 9):
        canvas.arrow((21.4, y), (29.6, y))
    canvas.box((79, 26), (20, 11), "kept", ["renamed to its path,", "with a report"])
    canvas.box((79, 6), (20, 11), "refused", ["VerificationError;", "nothing is written"], ORANGE)
    canvas.arrow((68.4, 31.5), (78.6, 31.5), "all pass")
    canvas.arrow((68.4, 11.5), (78.6, 11.5), "one fails")
    return canvas.figure
