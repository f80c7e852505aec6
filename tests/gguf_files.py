"""GGUF files, written by the format's documentation."""

import struct

import numpy as np

from keras_tfm.checkpoints.quantized.gguf_file import FORMATS

VOCABULARY, DIM, LAYERS, HEADS, GROUPS, SIZE, INNER = 37, 64, 2, 2, 1, 32, 96
TYPES = {str: 8, bool: 7, int: 4, float: 6}
NUMBERS = {name: number for number, (name, *_) in FORMATS.items()}


def shapes(kind="llama", tied=True):
    found = {"token_embd": (VOCABULARY, DIM), "output_norm": (DIM,)}
    if not tied:
        found["output"] = (VOCABULARY, DIM)
    for i in range(LAYERS):
        block = {
            "attn_norm": (DIM,), "ffn_norm": (DIM,), "attn_q": (HEADS * SIZE, DIM),
            "attn_k": (GROUPS * SIZE, DIM), "attn_v": (GROUPS * SIZE, DIM),
            "attn_output": (DIM, HEADS * SIZE), "ffn_gate": (INNER, DIM), "ffn_up": (INNER, DIM),
            "ffn_down": (DIM, INNER),
        }  # fmt: skip
        if kind in ("qwen3", "gemma3"):
            block |= {"attn_q_norm": (SIZE,), "attn_k_norm": (SIZE,)}
        if kind in ("gemma2", "gemma3"):
            block |= {"post_attention_norm": (DIM,), "post_ffw_norm": (DIM,)}
        found |= {f"blk.{i}.{name}": shape for name, shape in block.items()}
    return found


def fields(kind="llama", **changes):
    values = {
        "embedding_length": DIM, "block_count": LAYERS, "attention.head_count": HEADS,
        "attention.head_count_kv": GROUPS, "attention.key_length": SIZE,
        "feed_forward_length": INNER, "context_length": 64, "rope.freq_base": 5000.0,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }  # fmt: skip
    if kind in ("gemma2", "gemma3"):
        values["attention.sliding_window"] = 4
    values |= changes
    return {"general.architecture": kind, **{f"{kind}.{name}": x for name, x in values.items()}}


def text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def encoded(value):
    forms = {bool: "<?", int: "<I", float: "<f"}
    return text(value) if isinstance(value, str) else struct.pack(forms[type(value)], value)


def write_gguf(path, fields, tensors):
    """A GGUF file of tensors: name -> (type, shape, bytes)."""
    fields = {"tokenizer.ggml.tokens": ["a", "b"], **fields}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields))
    for name, value in fields.items():
        head += text(name)
        if isinstance(value, list):
            head += struct.pack("<IIQ", 9, TYPES[type(value[0])], len(value))
            head += b"".join(encoded(x) for x in value)
        else:
            head += struct.pack("<I", TYPES[type(value)]) + encoded(value)
    body = b""
    for name, (kind, shape, data) in tensors.items():
        number = NUMBERS.get(kind, kind)
        head += text(f"{name}.weight") + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}QIQ", *shape[::-1], number, len(body))
        body += data + bytes(-len(data) % 32)
    path.write_bytes(head + bytes(-len(head) % 32) + body)


def halves(numbers):
    return numbers.astype("<f2")[..., np.newaxis].view("uint8")


def encode(kind, shape, rng):
    """Random bytes of a tensor, its levels (F, D), and its values."""
    count, parts = shape[0], shape[-1] // 32
    if kind == "F32":
        values = 1 + 0.1 * rng.normal(size=shape).astype("<f4")
        return values.tobytes(), None, values
    scales = (rng.uniform(0.01, 0.05, (count, parts)) * rng.choice([-1, 1], (count, parts))).astype(
        "float16"
    )
    step = scales.astype("float32")[..., np.newaxis]
    if kind == "Q8_0":
        levels = rng.integers(-128, 128, (count, parts, 32)).astype("int8")
        blocks = np.concatenate([halves(scales), levels.view("uint8")], -1)
        return blocks.tobytes(), levels.reshape(shape), (levels * step / 16).reshape(shape)
    levels = rng.integers(0, 16, (count, parts, 32)).astype("uint8")
    levels[0, 0] = np.where(levels[0, 0] == 0, 1, levels[0, 0])  # a block without -8
    packed = levels[..., :16] | levels[..., 16:] << 4
    if kind == "Q4_1":
        lowest = rng.uniform(-0.2, 0.2, (count, parts)).astype("float16")
        blocks = np.concatenate([halves(scales), halves(lowest), packed], -1)
        values = levels * step + lowest.astype("float32")[..., np.newaxis]
        return blocks.tobytes(), levels.reshape(shape), values.reshape(shape)
    blocks = np.concatenate([halves(scales), packed], -1)
    levels = levels.astype("int8") - np.int8(8)
    return blocks.tobytes(), levels.reshape(shape), (levels * step).reshape(shape)


def make_gguf(path, types, kind="llama", tied=True, seed=0, also=(), **changes):
    """A file with types by name, and more fields; returns the levels and values of its tensors."""
    rng, tensors, found = np.random.default_rng(seed), {}, {}
    for name, shape in shapes(kind, tied).items():
        form = types(name) if len(shape) == 2 else "F32"
        data, levels, values = encode(form, shape, rng)
        tensors[name] = form, shape, data
        found[name] = levels, values
    write_gguf(path, {**fields(kind, **changes), **dict(also)}, tensors)
    return found
