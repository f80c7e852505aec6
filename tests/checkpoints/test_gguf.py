"""GGUF files: their integers and scales reach the exported file.

The files are written here, by the format's documentation; `gguf` and `transformers` read and write
the same ones where they are installed.
"""

import json
import struct

import keras
import numpy as np
import pytest
from compare import to_numpy
from gguf_files import (
    GROUPS,
    HEADS,
    LAYERS,
    NUMBERS,
    SIZE,
    VOCABULARY,
    fields,
    make_gguf,
    shapes,
    write_gguf,
)
from safetensors.numpy import save_file
from small_exports import four_bit_matrices

from keras_tfm import checkpoints, models
from keras_tfm.checkpoints.huggingface import open_huggingface
from keras_tfm.checkpoints.quantized.gguf_file import FORMATS, GgufFile
from keras_tfm.export import export_tflite
from keras_tfm.models.quantization.state import quantization_of
from keras_tfm.runtime import flatbuffer


def float16_constants(path):
    file, found = flatbuffer.read(path.read_bytes()), []
    for tensor in (x for graph in file.subgraphs for x in graph.tensors):
        data = file.buffers[tensor.buffer].data
        if tensor.type == 1 and data is not None:
            found.append(np.asarray(data, "uint8").view("float16").reshape(tensor.shape))
    return found


def order(matrix, heads):
    """Rows of llama.cpp in transformers' order."""
    return matrix.reshape(heads, SIZE // 2, 2, -1).swapaxes(1, 2).reshape(matrix.shape)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3"])
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
    found, halves_of_file = four_bit_matrices(file), float16_constants(file)
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


def test_numbers_that_scale(tmp_path):
    """As llama.cpp reads them: a factor without a type is linear, its old name is known."""
    path = tmp_path / "model.gguf"
    linear = {"rope_type": "linear", "factor": 4.0}
    for changes, scaling in (
        ({}, None),
        ({"rope.scaling.factor": 4.0}, linear),
        ({"rope.scale_linear": 4.0}, linear),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, None),
        ({"rope.scaling.type": "linear"}, None),
        (
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 16,
                "rope.scaling.yarn_beta_fast": 8.0,
                "rope.scaling.yarn_attn_factor": 1.0,
            },
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "beta_fast": 8.0,
            },
        ),
        ({"attention.causal": True, "logit_scale": 1.0, "attention.scale": 0.0}, None),
    ):
        make_gguf(path, lambda name: "Q4_0", **changes)
        assert open_config(path).get("rope_scaling") == scaling
    make_gguf(path, lambda name: "Q4_0", "gemma3", final_logit_softcapping=30.0)
    assert open_config(path)["final_logit_softcapping"] == 30.0


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
        ({"attention.causal": False}, r"llama\.attention\.causal must be True"),
        ({"attention.clamp_kqv": 8.0}, r"attention\.clamp_kqv must be 0\.0"),
        ({"attention.scale": 1.0}, r"attention\.scale must be 0\.0 or 0\.\d+: other values"),
        ({"attention.sliding_window_pattern": 6}, "sliding_window_pattern must be 1 or"),
        ({"attention.temperature_length": 4}, "temperature_length must be absent"),
        ({"logit_scale": 0.5}, r"logit_scale must be 0\.0 or 1\.0"),
        ({"rope.scaling.attn_factor": 2.0}, r"rope\.scaling\.attn_factor must be 1\.0"),
        ({"rope.scaling.yarn_ext_factor": 0.5}, r"yarn_ext_factor must be 1\.0"),
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


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gemma3"])
def test_the_packages_agree(kind, tmp_path):
    """A file of `gguf` gives transformers' logits and greedy tokens."""
    gguf = pytest.importorskip("gguf")
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from keras_tfm import generation

    rng, path = np.random.default_rng(0), tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, kind)
    for name, value in fields(kind).items():
        if name != "general.architecture":
            add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
            add(name, value)
    writer.add_uint32(f"{kind}.rope.dimension_count", SIZE)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"<{i}>" for i in range(VOCABULARY)])
    writer.add_token_types([1] * VOCABULARY)
    writer.add_token_merges(["< 0"])
    for name, shape in shapes(kind).items():
        values = rng.normal(size=shape).astype("float32") * (1 if len(shape) == 1 else 0.3)
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", values)
        else:
            form = gguf.GGMLQuantizationType.Q4_0
            writer.add_tensor(f"{name}.weight", gguf.quantize(values, form), raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = checkpoints.load_huggingface(path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name)
    if kind.startswith("gemma"):  # it takes heads of 256; llama.cpp, which made the file, the field
        for block in theirs.model.layers:
            block.self_attn.scaling = SIZE**-0.5
    tokens = rng.integers(1, VOCABULARY, (2, 7))
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
