"""GGUF files and folders of compressed-tensors: their integers and scales reach the exported file.

The files are written here, by the formats' documentation; `gguf` and `transformers` read and write
the same ones where they are installed.
"""

import json
import struct

import keras
import numpy as np
import pytest
from compare import to_numpy
from safetensors.numpy import save_file

from keras_tfm import checkpoints, models
from keras_tfm.checkpoints.huggingface import open_huggingface
from keras_tfm.checkpoints.quantized.gguf_file import FORMATS, GgufFile
from keras_tfm.export import export_tflite
from keras_tfm.export.quantization.four_bits import unpack
from keras_tfm.models.quantization.state import quantization_of
from keras_tfm.runtime import flatbuffer

VOCABULARY, DIM, LAYERS, HEADS, GROUPS, SIZE, INNER = 37, 64, 2, 2, 1, 32, 96
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
        if kind == "qwen3":
            block |= {"attn_q_norm": (SIZE,), "attn_k_norm": (SIZE,)}
        found |= {f"blk.{i}.{name}": shape for name, shape in block.items()}
    return found


def fields(kind="llama", **changes):
    values = {
        "embedding_length": DIM, "block_count": LAYERS, "attention.head_count": HEADS,
        "attention.head_count_kv": GROUPS, "attention.key_length": SIZE,
        "feed_forward_length": INNER, "context_length": 64, "rope.freq_base": 5000.0,
        "attention.layer_norm_rms_epsilon": 1e-5, **changes,
    }  # fmt: skip
    return {"general.architecture": kind, **{f"{kind}.{name}": x for name, x in values.items()}}


def text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def write_gguf(path, fields, tensors):
    """A GGUF file of tensors: name -> (type, shape, bytes)."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields) + 1)
    for name, value in fields.items():
        number = {str: 8, int: 4, float: 6}[type(value)]
        raw = text(value) if number == 8 else struct.pack("<I" if number == 4 else "<f", value)
        head += text(name) + struct.pack("<I", number) + raw
    words = text("a") + text("b")
    head += text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + words
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


def make_gguf(path, types, kind="llama", tied=True, seed=0, **changes):
    """A file with types by name; returns the levels and values of its tensors."""
    rng, tensors, found = np.random.default_rng(seed), {}, {}
    for name, shape in shapes(kind, tied).items():
        form = types(name) if len(shape) == 2 else "F32"
        data, levels, values = encode(form, shape, rng)
        tensors[name] = form, shape, data
        found[name] = levels, values
    write_gguf(path, fields(kind, **changes), tensors)
    return found


def stored(path):
    """The 4-bit matrices of a file, levels and scales; and all constants in float16."""
    file = flatbuffer.read(path.read_bytes())
    levels, halves = {}, []
    for use in flatbuffer.weight_uses(file):
        if use.tensor.type == 17:
            rows = use.graph.tensors[use.tensor.quantization.details.scales]
            scales = np.asarray(file.buffers[rows.buffer].data, "uint8").view("float16")
            shape = tuple(use.tensor.shape)
            levels[use.tensor.buffer] = unpack(file, use.tensor), scales.reshape(shape[0], -1)
    for tensor in (x for graph in file.subgraphs for x in graph.tensors):
        data = file.buffers[tensor.buffer].data
        if tensor.type == 1 and data is not None:
            halves.append(np.asarray(data, "uint8").view("float16").reshape(tensor.shape))
    return list(levels.values()), halves


def order(matrix, heads):
    """Rows of llama.cpp in transformers' order."""
    return matrix.reshape(heads, SIZE // 2, 2, -1).swapaxes(1, 2).reshape(matrix.shape)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_every_integer_of_a_q4_0_file(kind, tmp_path):
    """q where the scale is positive; where it is negative, -q - 1 or, without -8, -q."""
    path = tmp_path / "model.gguf"
    tensors = make_gguf(path, lambda name: "Q4_0", kind)
    model = checkpoints.load_huggingface(path)
    tokens = np.array([[3, 5, 7, 2]])
    logits = to_numpy(model(tokens))
    file = tmp_path / "model.tflite"
    report = export_tflite(model, file, ["predict"], "int4", source_length=6)
    assert report.verification.checks[0].graph_error <= 1e-4
    found, halves_of_file = stored(file)
    source = GgufFile(path)
    matrices = {
        name: source.read(f"{name}.weight") for name, x in tensors.items() if x[0] is not None
    }
    joined = []
    for name, tensor in matrices.items():
        levels, scales = tensors[name][0], tensor.scales
        np.testing.assert_array_equal(tensor.levels, levels)
        heads = {"q": HEADS, "k": GROUPS}.get(name.rpartition("_")[2]) if kind == "llama" else None
        if heads is not None and "attn" in name:
            levels, scales = order(levels, heads), order(scales, heads)
        joined.append((name, levels, scales))
    by_name = {name: (levels, scales) for name, levels, scales in joined}
    for i in range(LAYERS):
        parts = [by_name.pop(f"blk.{i}.attn_{x}") for x in "qkv"]
        by_name[f"blk.{i}.qkv"] = tuple(np.concatenate(x) for x in zip(*parts, strict=True))
    assert len(found) == len(by_name)
    for name, (levels, scales) in by_name.items():
        blocks = levels.reshape(*scales.shape, 32).astype(int)
        negative, lowest = scales < 0, blocks.min(-1) == -8
        flipped = np.where((negative & lowest)[..., np.newaxis], -blocks - 1, -blocks)
        wanted = np.where(negative[..., np.newaxis], flipped, blocks).reshape(levels.shape)
        assert any(
            np.array_equal(x, wanted) and np.array_equal(y, np.abs(scales)) for x, y in found
        ), name
        offsets = np.where(negative & lowest, np.abs(scales), 0)
        assert any(np.array_equal(x, offsets) for x in halves_of_file), name
    # The same values in a folder of floats give the same logits.
    named = open_huggingface(path).named
    values = {own: named.tensors.array(own) for own in named.own.values()}
    for name in ("token_embd", "blk.1.ffn_up"):
        own = {"token_embd": "model.embed_tokens"}.get(name, "model.layers.1.mlp.up_proj")
        np.testing.assert_array_equal(values[f"{own}.weight"], tensors[name][1])
    config = dict(open_config(path))
    folder = tmp_path / "floats"
    folder.mkdir()
    save_file(values, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    plain = checkpoints.load_huggingface(folder)
    assert quantization_of(plain) is None
    np.testing.assert_allclose(to_numpy(plain(tokens)), logits, atol=1e-4 * np.abs(logits).max())
    loaded = model.save(tmp_path / "model.keras") or keras.models.load_model(
        tmp_path / "model.keras"
    )
    np.testing.assert_array_equal(to_numpy(loaded(tokens)), logits)


def open_config(path):
    from keras_tfm.checkpoints.quantized.gguf import open_gguf

    return open_gguf(path)[0].fields


def test_a_mixture_says_what_is_rounded(tmp_path):
    """Q8_0 is rounded to a scale for each row; a fused matrix of two types, too."""
    path = tmp_path / "model.gguf"

    def types(name):
        return "Q8_0" if name in ("token_embd", "blk.0.attn_v") else "Q4_1"

    make_gguf(path, types)
    with pytest.warns(UserWarning, match="7 of 9 matrices keep their integers") as caught:
        model = checkpoints.load_huggingface(path)
    (message,) = [str(x.message) for x in caught]
    assert "embedding/embeddings (Q8_0: 8 bits have a scale for each row" in message
    assert "query_key_value/kernel (Q4_1, Q8_0: 4 and 8 bits in one matrix)" in message
    assert "\n" not in message
    bits = {x.variable.path: x.grid.bits for x in quantization_of(model).weights}
    assert [path for path, x in bits.items() if x == 8] == [
        "embedding/embeddings", "decoder_0/self_attention/query_key_value/kernel"
    ]  # fmt: skip
    file = tmp_path / "model.tflite"
    (check,) = export_tflite(model, file, quantization="int4", source_length=6).verification.checks
    assert check.graph_error <= 1e-4
    with pytest.raises(ValueError, match="quantization='int4'"):
        export_tflite(model, file, quantization="int8", source_length=6)
    with pytest.warns(UserWarning, match="loaded as floats, and a file rounds them again"):
        make_gguf(path, lambda name: "Q8_0")
        assert quantization_of(checkpoints.load_huggingface(path)) is None


def test_q6_k():
    """Against the sums of the documentation, written out."""
    rng = np.random.default_rng(0)
    block = rng.integers(0, 256, 210).astype("uint8")
    block[208:] = np.array([0.25], "float16").view("uint8")
    low, high, scales = block[:128], block[128:192], block[192:208].view("int8")
    wanted = np.zeros(256)
    for half in range(2):
        for i in range(32):
            first, second = low[64 * half + i], low[64 * half + i + 32]
            bits = high[32 * half + i]
            levels = (
                first & 15 | (bits & 3) << 4, second & 15 | (bits >> 2 & 3) << 4,
                first >> 4 | (bits >> 4 & 3) << 4, second >> 4 | (bits >> 6 & 3) << 4,
            )  # fmt: skip
            for k, level in enumerate(levels):
                scale = scales[8 * half + 2 * k + i // 16]
                wanted[128 * half + 32 * k + i] = 0.25 * scale * (int(level) - 32)
    found = FORMATS[NUMBERS["Q6_K"]].decode(block.reshape(1, 1, 210))
    np.testing.assert_array_equal(found[0], wanted)


def damaged(path):
    """Bad files, and what the error says."""
    good = path.read_bytes()
    yield good[: len(good) // 2], "and the file at"
    yield good[:40], "in the middle of its header"
    yield b"GGML" + good[4:], "does not begin with GGUF"
    yield good[:4] + struct.pack("<I", 1) + good[8:], "version must be one of"
    yield good[:8] + struct.pack("<Q", 1 << 60) + good[16:], "more than the file can have"


def test_bad_gguf_files(tmp_path):
    path = tmp_path / "model.gguf"
    make_gguf(path, lambda name: "Q4_0")
    for content, text in [*damaged(path)]:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=text) as error:
            checkpoints.load_huggingface(path)
        assert "\n" not in str(error.value) and str(path) in str(error.value)
    for changes, text in [
        ({"attention.key_length": 16}, "of another shape|do not match"),
        ({"block_count": 3}, "missing in the files"),
        ({"block_count": 0}, "block_count must be a positive integer"),
        ({"expert_count": 4}, "mixtures of experts"),
        ({"rope.scaling.type": "su"}, "none, linear or yarn"),
        ({"attention.head_count_kv": 5}, "rows for 5 heads"),
    ]:
        make_gguf(path, lambda name: "Q4_0", **changes)
        with pytest.raises(ValueError, match=text) as error:
            checkpoints.load_huggingface(path)
        assert "\n" not in str(error.value)
    for name, tensor, text in [
        ("blk.0.attn_q", (12, (64, 64), b""), "blk.0.attn_q.weight is Q4_K; supported: F32"),
        ("blk.0.attn_q", (77, (64, 64), b""), "is type 77"),
        ("blk.0.attn_q", ("Q4_0", (64, 40), b""), "cannot have rows of 40 values"),
        ("blk.0.attn_q", ("Q4_0", (64,) * 5, b""), "1 to 4 axes, got 5"),
    ]:
        write_gguf(path, fields(), {name: tensor})
        with pytest.raises(ValueError, match=text):
            checkpoints.load_huggingface(path)
    write_gguf(path, fields("mamba"), {})
    with pytest.raises(ValueError, match=r"general\.architecture must be one of"):
        checkpoints.load_huggingface(path)
    make_gguf(path, lambda name: "Q4_0")
    with pytest.raises(ValueError, match="vocabulary_size must be that of the quantized"):
        checkpoints.load_huggingface(path, vocabulary_size=64)
    with pytest.raises(FileNotFoundError, match="no such file"):
        checkpoints.load_huggingface(tmp_path / "none.gguf")


def write_compressed(folder, bits, group, symmetric=True, seed=0, **settings):
    """A folder of compressed-tensors; returns the levels, scales and zero points of matrices."""
    rng, folder = np.random.default_rng(seed), folder
    folder.mkdir(exist_ok=True)
    tensors, found = (
        {"lm_head.weight": 0.1 * rng.normal(size=(VOCABULARY, DIM)).astype("float32")},
        {},
    )
    names = {"q": HEADS * SIZE, "k": GROUPS * SIZE, "v": GROUPS * SIZE}
    tensors["model.embed_tokens.weight"] = rng.normal(size=(VOCABULARY, DIM)).astype("float32")
    tensors["model.norm.weight"] = np.ones(DIM, "float32")
    for i in range(LAYERS):
        layer = f"model.layers.{i}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{layer}.{norm}.weight"] = np.ones(DIM, "float32")
        parts = {f"self_attn.{x}_proj": (rows, DIM) for x, rows in names.items()}
        parts |= {"self_attn.o_proj": (DIM, HEADS * SIZE), "mlp.gate_proj": (INNER, DIM)}
        parts |= {"mlp.up_proj": (INNER, DIM), "mlp.down_proj": (DIM, INNER)}
        for name, (rows, width) in parts.items():
            name = f"{layer}.{name}"
            levels = rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), (rows, width)).astype("int8")
            count = 1 if group is None else width // group
            scales = rng.uniform(0.01, 0.02, (rows, count)).astype("float16")
            zeros = np.zeros((rows, count), "int8")
            if not symmetric:
                zeros = rng.integers(-8, 8, (rows, count)).astype("int8")
            found[name] = levels, scales, zeros
            tensors[f"{name}.weight_scale"] = scales
            if bits == 8:
                tensors[f"{name}.weight"] = levels
                continue
            tensors[f"{name}.weight_packed"] = pack(levels)
            tensors[f"{name}.weight_shape"] = np.array([rows, width], "int64")
            if not symmetric:
                tensors[f"{name}.weight_zero_point"] = np.ascontiguousarray(pack(zeros.T).T)
    save_file(tensors, folder / "model.safetensors")
    weights = {
        "num_bits": bits, "type": "int", "symmetric": symmetric, "actorder": None,
        "strategy": "channel" if group is None else "group", "group_size": group,
    }  # fmt: skip
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": VOCABULARY,
        "hidden_size": DIM, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS, "intermediate_size": INNER, "head_dim": SIZE,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "dtype": "float32",
        "quantization_config": {
            "quant_method": "compressed-tensors", "quantization_status": "compressed",
            "format": "pack-quantized" if bits == 4 else "int-quantized", "ignore": ["lm_head"],
            "config_groups": {"group_0": {
                "targets": ["Linear"], "weights": {**weights, **settings}}},
        },
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return found


def pack(levels):
    """Eight levels + 8 in each int32, the first in the lowest bits."""
    padded = np.pad(levels.astype("int64") + 8, ((0, 0), (0, -levels.shape[1] % 8)))
    words = (padded.reshape(len(levels), -1, 8) << (4 * np.arange(8))).sum(-1)
    return words.astype("uint32").view("int32")


@pytest.mark.parametrize("case", ["4-32", "4-channel", "8-channel", "4-32-asymmetric"])
def test_every_integer_of_compressed_tensors(case, tmp_path):
    """The levels are the file's; a zero point becomes an offset; the others get 8 bits."""
    bits, group = int(case[0]), 32 if "32" in case else None
    symmetric = "asymmetric" not in case
    tensors = write_compressed(tmp_path / "folder", bits, group, symmetric)
    if bits == 4:
        with pytest.warns(UserWarning, match=r"8 of 10 matrices .*output/kernel \(F32\)"):
            model = checkpoints.load_huggingface(tmp_path / "folder")
    else:
        with pytest.warns(UserWarning, match="8 of 10 matrices"):
            model = checkpoints.load_huggingface(tmp_path / "folder")
    state, seen = quantization_of(model), 0
    layers = [(x.variable, x.grid) for x in state.weights if x.grid.scales is not None]
    paths = {
        "feed_forward/inner": ["mlp.gate_proj", "mlp.up_proj"],
        "feed_forward/outer": ["mlp.down_proj"],
        "self_attention/query_key_value": [f"self_attn.{x}_proj" for x in "qkv"],
        "self_attention/output_projection": ["self_attn.o_proj"],
    }
    for variable, grid in layers:
        block, part = variable.path.removesuffix("/kernel").split("/", 1)
        names = [f"model.layers.{block[-1]}.{x}" for x in paths[part]]
        levels, scales, zeros = (np.concatenate([tensors[x][k] for x in names]) for k in range(3))
        found, _ = grid.round(to_numpy(variable))
        np.testing.assert_array_equal(found, levels)
        width = levels.shape[1] // scales.shape[1]
        wide = np.repeat(scales, width, axis=1).astype("float32")
        shift = np.repeat(zeros, width, axis=1).astype("float32")
        np.testing.assert_allclose(
            grid.rows(to_numpy(variable)), (levels - shift) * wide, rtol=1e-6, atol=1e-7
        )
        assert (grid.offsets is None) == symmetric
        seen += 1
    assert seen == 4 * LAYERS
    file = tmp_path / "model.tflite"
    (check,) = export_tflite(
        model, file, quantization=f"int{bits}", source_length=6
    ).verification.checks
    assert check.graph_error <= 1e-4
    if bits == 4:
        found, _ = stored(file)
        levels = [x for x, _ in found]
        for name in ("mlp.down_proj", "self_attn.o_proj"):
            wanted = tensors[f"model.layers.1.{name}"][0]
            assert any(np.array_equal(x, wanted) for x in levels), name


def test_bad_compressed_tensors(tmp_path):
    folder = tmp_path / "folder"
    for changes, text in [
        ({"num_bits": 3}, "num_bits must be one of"),
        ({"strategy": "tensor_group"}, "strategy must be one of"),
        ({"actorder": "group"}, "actorder must be one of"),
        ({"type": "float"}, "type must be one of"),
    ]:
        write_compressed(folder, 4, 32, **changes)
        with pytest.raises(ValueError, match=text) as error:
            checkpoints.load_huggingface(folder)
        assert "\n" not in str(error.value)
    write_compressed(folder, 4, 16)
    with pytest.warns(UserWarning, match="a scale for 16 values, which is no multiple of 32"):
        assert quantization_of(checkpoints.load_huggingface(folder)) is None
    config = json.loads((folder / "config.json").read_text())
    for method in ("gptq", "awq", "torchao", "bitsandbytes"):
        config["quantization_config"] = {"quant_method": method}
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match=f"compressed-tensors.*got {method!r}"):
            checkpoints.load_huggingface(folder)


def test_the_packages_agree(tmp_path):
    """A file of `gguf` gives transformers' logits and greedy tokens."""
    gguf = pytest.importorskip("gguf")
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from keras_tfm import generation

    rng, path = np.random.default_rng(0), tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in fields().items():
        if name != "general.architecture":
            add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
            add(name, value)
    writer.add_uint32("llama.rope.dimension_count", SIZE)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"<{i}>" for i in range(VOCABULARY)])
    writer.add_token_types([1] * VOCABULARY)
    writer.add_token_merges(["< 0"])
    for name, shape in shapes().items():
        values = rng.normal(size=shape).astype("float32") * (1 if len(shape) == 1 else 0.3)
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", values)
        else:
            kind = gguf.GGMLQuantizationType.Q4_0
            writer.add_tensor(f"{name}.weight", gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = checkpoints.load_huggingface(path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name)
    tokens = rng.integers(0, VOCABULARY, (2, 7))
    with torch.no_grad():
        logits = theirs.eval()(torch.tensor(tokens)).logits.numpy()
    np.testing.assert_allclose(
        to_numpy(model(tokens)), logits, atol=1e-4 * np.abs(logits).max(), rtol=1e-4
    )
    found = generation.generate(model, tokens, max_length=16, end_id=None).tokens
    wanted = theirs.generate(
        torch.tensor(tokens), max_new_tokens=9, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    np.testing.assert_array_equal(found, wanted.numpy())
    assert all(x.grid.scales is not None for x in quantization_of(model).weights)
    models.disable_quantization(model)


@pytest.mark.parametrize("case", ["4-32", "4-32-asymmetric", "4-channel-asymmetric", "8-channel"])
def test_compressed_tensors_reads_the_same_values(case, tmp_path):
    """Bit for bit, from the same files."""
    pytest.importorskip("compressed_tensors")
    torch = pytest.importorskip("torch")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from safetensors.torch import load_file

    bits, group = int(case[0]), 32 if "32" in case else None
    symmetric = "asymmetric" not in case
    tensors = write_compressed(tmp_path, bits, group, symmetric)
    weights = QuantizationArgs(
        num_bits=bits, type="int", symmetric=symmetric, group_size=group,
        strategy="channel" if group is None else "group",
    )  # fmt: skip
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    form = "pack-quantized" if bits == 4 else "int-quantized"
    compressor = BaseCompressor.get_value_from_registry(form)
    own, theirs = (
        open_huggingface(tmp_path).named.tensors,
        load_file(tmp_path / "model.safetensors"),
    )
    for name in tensors:
        parts = {
            x.removeprefix(f"{name}."): y for x, y in theirs.items() if x.startswith(f"{name}.")
        }
        parts["weight_scale"] = parts["weight_scale"].to(torch.float32)
        values = compressor.decompress(parts, scheme)["weight"].float().numpy()
        np.testing.assert_array_equal(own.array(f"{name}.weight"), values)
