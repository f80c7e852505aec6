"""Folders of compressed-tensors, GPTQ, AWQ and torchao: their integers reach the exported file.

The folders are written here, by the formats' documentation; `compressed_tensors` and `torchao`
read the same ones where they are installed.
"""

import json
import warnings

import numpy as np
import pytest
from compare import assert_close, to_numpy
from gguf_files import make_gguf
from safetensors.numpy import save_file
from small_exports import four_bit_matrices

from keras_tfm import checkpoints, models
from keras_tfm.checkpoints.huggingface import open_huggingface
from keras_tfm.export import export_tflite
from keras_tfm.models.quantization.state import quantization_of

VOCABULARY, DIM, LAYERS, HEADS, GROUPS, SIZE, INNER = 37, 64, 2, 2, 1, 32, 96
# The tensors of the matrices of a block.
MATRICES = {
    "feed_forward/inner": ["mlp.gate_proj", "mlp.up_proj"],
    "feed_forward/outer": ["mlp.down_proj"],
    "self_attention/query_key_value": [f"self_attn.{x}_proj" for x in "qkv"],
    "self_attention/output_projection": ["self_attn.o_proj"],
}
# method-bits-values of a scale
CASES = [
    "compressed-4-32", "compressed-4-row", "compressed-4-32-zeros", "compressed-8-row",
    "gptq-4-32", "gptq-4-32-zeros", "gptq_v2-4-32-zeros", "gptq-8-row", "awq-4-32-zeros",
    "torchao-4-32", "torchao-4-32-zeros", "torchao-8-row", "torchao-8-row-zeros",
]  # fmt: skip


def parts_of(case):
    """The method, bits, values of a scale (None: a row) and whether there are zero points."""
    method, bits, group, *zeros = case.split("-")
    return method, int(bits), None if group == "row" else int(group), bool(zeros)


def words(levels, bits, order=None):
    """Unsigned levels (F, D) in int32 numbers, the first in the lowest bits."""
    count = 32 // bits
    padded = np.pad(levels.astype("int64"), ((0, 0), (0, -levels.shape[1] % count)))
    places = np.arange(count) if order is None else np.argsort(order)
    packed = (padded.reshape(len(levels), -1, count) << (bits * places)).sum(-1)
    return np.ascontiguousarray(packed.astype("uint32").view("int32"))


def compressed(name, bits, levels, scales, zeros, columns):
    half = 1 << (bits - 1)
    tensors = {f"{name}.weight_scale": scales}
    if columns is not None:
        tensors[f"{name}.weight_g_idx"] = columns
    if bits == 8:
        return {**tensors, f"{name}.weight": levels}, {}
    tensors[f"{name}.weight_packed"] = words(levels + half, bits)
    tensors[f"{name}.weight_shape"] = np.array(levels.shape, "int64")
    if np.any(zeros):
        packed = words(zeros.T + half, bits).T
        tensors[f"{name}.weight_zero_point"] = np.ascontiguousarray(packed)
    return tensors, {}


def gptq(name, bits, levels, scales, zeros, columns, added=1):
    half, width = 1 << (bits - 1), levels.shape[1]
    groups = np.arange(width) // (width // scales.shape[1]) if columns is None else columns
    tensors = {
        "qweight": np.ascontiguousarray(words((levels.astype("int16") + half), bits).T),
        "qzeros": words(zeros.T.astype("int16") + half - added, bits),
        "scales": np.ascontiguousarray(scales.T),
        "g_idx": groups.astype("int32"),
    }
    return {f"{name}.{part}": x for part, x in tensors.items()}, {}


def gptq_v2(*arguments):
    return gptq(*arguments, added=0)


def awq(name, bits, levels, scales, zeros, columns):
    order = [0, 2, 4, 6, 1, 3, 5, 7]  # the output in each place of a number
    tensors = {
        "qweight": words(levels.T + 8, bits, order),
        "qzeros": words(zeros.T + 8, bits, order),
        "scales": np.ascontiguousarray(scales.T),
    }
    return {f"{name}.{part}": x for part, x in tensors.items()}, {}


def torchao(name, bits, levels, scales, zeros, columns):
    tensors = {
        f"{name}._weight_qdata": levels,
        f"{name}._weight_scale": scales,
        f"{name}._weight_zero_point": zeros,
    }
    data = {
        "target_dtype": {"_type": "torch.dtype", "_data": f"int{bits}"},
        "block_size": [1, levels.shape[1] // scales.shape[1]],
        "dtype": {"_type": "torch.dtype", "_data": "float32"},
        "activation_quantization": "int8_asym_per_token",
    }
    described = {
        "_type": "IntxUnpackedToInt8Tensor",
        "_data": data,
        "_tensor_data_names": ["qdata", "scale", "zero_point"],
    }
    return tensors, {f"{name}.weight": json.dumps(described)}


WRITERS = {
    "compressed": compressed, "gptq": gptq, "gptq_v2": gptq_v2, "awq": awq, "torchao": torchao,
}  # fmt: skip


def settings(method, bits, group, zeros):
    """The "quantization_config" of a folder."""
    if method.startswith("gptq"):
        return {
            "quant_method": "gptq", "bits": bits, "group_size": group or -1, "desc_act": False,
            "sym": not zeros, "checkpoint_format": method, "pack_dtype": "int32",
        }  # fmt: skip
    if method == "awq":
        return {
            "quant_method": "awq", "bits": bits, "group_size": group, "zero_point": True,
            "version": "gemm", "modules_to_not_convert": None,
        }  # fmt: skip
    if method == "torchao":
        return {"quant_method": "torchao", "quant_type": {"default": {"_type": "a class"}}}
    weights = {
        "num_bits": bits, "type": "int", "symmetric": not zeros, "actorder": None,
        "strategy": "channel" if group is None else "group", "group_size": group,
    }  # fmt: skip
    return {
        "quant_method": "compressed-tensors", "quantization_status": "compressed",
        "format": "pack-quantized" if bits == 4 else "int-quantized", "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }  # fmt: skip


def write_folder(folder, case, seed=0, columns=False):
    """A folder; returns the levels, scales, zero points and groups of columns of its matrices."""
    method, bits, group, has_zeros = parts_of(case)
    rng = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)
    tensors, found, metadata = {}, {}, {"format": "pt"}
    for table in ("lm_head", "model.embed_tokens"):
        tensors[f"{table}.weight"] = 0.1 * rng.normal(size=(VOCABULARY, DIM)).astype("float32")
    tensors["model.norm.weight"] = np.ones(DIM, "float32")
    shapes = {
        "self_attn.q_proj": (HEADS * SIZE, DIM), "self_attn.k_proj": (GROUPS * SIZE, DIM),
        "self_attn.v_proj": (GROUPS * SIZE, DIM), "self_attn.o_proj": (DIM, HEADS * SIZE),
        "mlp.gate_proj": (INNER, DIM), "mlp.up_proj": (INNER, DIM), "mlp.down_proj": (DIM, INNER),
    }  # fmt: skip
    half = 1 << (bits - 1)
    for i in range(LAYERS):
        layer = f"model.layers.{i}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{layer}.{norm}.weight"] = np.ones(DIM, "float32")
        for name, (rows, width) in shapes.items():
            levels = rng.integers(-half, half, (rows, width)).astype("int8")
            count = 1 if group is None else width // group
            scales = rng.uniform(0.01, 0.02, (rows, count)).astype("float16") * 8 / half
            scales = scales.astype("float16")
            zeros = np.zeros((rows, count), "int8")
            if has_zeros:
                zeros = rng.integers(1 - half, half, (rows, count)).astype("int8")
            groups = rng.permutation(np.arange(width) % count).astype("int32") if columns else None
            found[f"{layer}.{name}"] = levels, scales, zeros, groups
            values, texts = WRITERS[method](f"{layer}.{name}", bits, *found[f"{layer}.{name}"])
            tensors |= values
            metadata |= texts
    if method == "torchao":
        metadata["tensor_names"] = json.dumps([*metadata])
    save_file(tensors, folder / "model.safetensors", metadata)
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": VOCABULARY,
        "hidden_size": DIM, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS, "intermediate_size": INNER, "head_dim": SIZE,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "dtype": "float32",
        "quantization_config": settings(method, bits, group, has_zeros),
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return found


def values(levels, scales, zeros, groups):
    """(level - zero) scale, in float32."""
    if groups is None:
        groups = np.arange(levels.shape[1]) // (levels.shape[1] // scales.shape[1])
    shift = levels.astype("float32") - zeros.astype("float32")[:, groups]
    return shift * scales.astype("float32")[:, groups]


def matrices(model, tensors):
    """Each quantized matrix of the blocks, its variable and the parts of its tensors."""
    for variable, grid in ((x.variable, x.grid) for x in quantization_of(model).weights):
        if grid.scales is not None:
            block, part = variable.path.removesuffix("/kernel").split("/", 1)
            yield variable, grid, [tensors[f"model.layers.{block[-1]}.{x}"] for x in MATRICES[part]]


@pytest.mark.parametrize("case", CASES)
def test_every_integer(case, tmp_path):
    """The levels are the file's; a zero point becomes an offset; the others get 8 bits."""
    _, bits, _, has_zeros = parts_of(case)
    tensors = write_folder(tmp_path / "folder", case)
    with pytest.warns(UserWarning, match=r"8 of 10 matrices .*output/kernel \(F32\)"):
        model = checkpoints.load_huggingface(tmp_path / "folder")
    seen = 0
    for variable, grid, found in matrices(model, tensors):
        levels, _ = grid.round(to_numpy(variable))
        np.testing.assert_array_equal(levels, np.concatenate([x[0] for x in found]))
        wanted = np.concatenate([values(*x) for x in found])
        np.testing.assert_allclose(grid.rows(to_numpy(variable)), wanted, rtol=1e-6, atol=1e-7)
        assert (grid.offsets is not None) == has_zeros
        seen += 1
    assert seen == 4 * LAYERS
    file = tmp_path / "model.tflite"
    (check,) = export_tflite(
        model, file, quantization=f"int{bits}", source_length=6
    ).verification.checks
    assert check.graph_error <= 1e-4
    if bits == 4:
        stored = [x for x, _ in four_bit_matrices(file)]
        for name in ("mlp.down_proj", "self_attn.o_proj"):
            wanted = tensors[f"model.layers.1.{name}"][0]
            assert any(np.array_equal(x, wanted) for x in stored), name


def test_integers_are_saved_as_floats(tmp_path):
    """Of the same values, offsets included, which transformers reads as those of any model."""
    write_folder(tmp_path / "folder", "gptq-4-32-zeros")
    with pytest.warns(UserWarning, match="8 of 10 matrices"):
        model = checkpoints.load_huggingface(tmp_path / "folder")
    checkpoints.save_huggingface(model, tmp_path / "saved")
    again = checkpoints.load_huggingface(tmp_path / "saved")
    assert quantization_of(again) is None
    tokens = np.arange(12).reshape(2, 6)
    assert_close(again(tokens), model(tokens), 1e-5)
    assert quantization_of(model).is_published


@pytest.mark.parametrize(
    "case",
    [
        "gptq-4-32-zeros",
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("torchao-8-row", "gguf")),
    ],
)
def test_adapters_of_a_quantized_base(case, tmp_path):
    """QLoRA: they are added to the values of the integers, which are no integers afterwards."""
    base, floats, adapters = (tmp_path / x for x in ("base.gguf", "floats", "adapters"))
    if case == "gguf":
        make_gguf(base, lambda name: "Q4_0")
    else:
        write_folder(base, case)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # matrices that are rounded further
        checkpoints.save_huggingface(checkpoints.load_huggingface(base), floats)
    tensors = open_huggingface(base).named.tensors
    save_file({name: tensors.array(name) for name in tensors}, floats / "model.safetensors")
    model = checkpoints.load_huggingface(floats)
    models.enable_lora(model, rank=2, names=["output_projection", "query_key_value"])
    rng = np.random.default_rng(0)
    for weight in model.trainable_weights:
        weight.assign(rng.normal(size=weight.shape) / 8)
    checkpoints.save_peft(model, adapters, floats)
    again = checkpoints.load_huggingface(base, peft=adapters)
    assert quantization_of(again) is None
    tokens = np.arange(12).reshape(2, 6)
    assert_close(again(tokens), model(tokens), 1e-5)
    assert (
        np.abs(to_numpy(again(tokens) - checkpoints.load_huggingface(floats)(tokens))).max() > 0.1
    )


@pytest.mark.parametrize("case", ["gptq-4-32-zeros", "compressed-8-row"])
def test_adapters_that_are_trained_on_a_quantized_base(case, tmp_path):
    """Beside the base's integers; PEFT reads its other matrices without rounding."""
    base, adapters = tmp_path / "base", tmp_path / "adapters"
    write_folder(base, case)
    with pytest.warns(UserWarning, match="8 of 10 matrices"):
        model = checkpoints.load_huggingface(base)
    models.enable_lora(model, rank=2)
    rng = np.random.default_rng(0)
    for weight in model.trainable_weights:
        weight.assign(rng.normal(size=weight.shape) / 8)
    tokens = np.arange(12).reshape(2, 6)
    before = to_numpy(model(tokens))
    checkpoints.save_peft(model, adapters, base)
    fields = json.loads((adapters / "adapter_config.json").read_text())
    assert fields["base_model_name_or_path"] == str(base)
    assert_close(model(tokens), before, 0.0)  # still rounded
    again = checkpoints.load_huggingface(base, peft=adapters)
    with models.without_quantization(model):
        assert_close(again(tokens), model(tokens), 1e-5)
        assert np.abs(to_numpy(model(tokens)) - before).max() > 1e-4
    (table,) = model.embedding.weights
    table.assign(2 * to_numpy(table))
    with pytest.raises(ValueError, match="base is not what the adapters were trained on"):
        checkpoints.save_peft(model, adapters, base)


@pytest.mark.parametrize("case", ["compressed-4-32", "gptq-4-32-zeros"])
def test_columns_in_any_order_are_loaded_as_floats(case, tmp_path):
    """Act-order: no file stores such groups, so the values are loaded, and rounded again."""
    tensors = write_folder(tmp_path, case, columns=True)
    with pytest.warns(UserWarning, match="columns of a group are not next to each other"):
        model = checkpoints.load_huggingface(tmp_path)
    assert quantization_of(model) is None
    own = open_huggingface(tmp_path).named.tensors
    for name, parts in tensors.items():
        found = own.array(f"{name}.weight")
        np.testing.assert_allclose(found, values(*parts), rtol=1e-6, atol=1e-7)


BAD = {
    "compressed-4-32": [
        ({"config_groups.group_0.weights.num_bits": 3}, "num_bits must be one of"),
        ({"config_groups.group_0.weights.strategy": "tensor_group"}, "strategy must be one of"),
        ({"config_groups.group_0.weights.type": "float"}, "type must be one of"),
        ({"config_groups.group_0.input_activations": {"dynamic": False}}, "input_activations"),
        ({"config_groups.group_0.output_activations": {"dynamic": True}}, "output_activations"),
        ({"transform_config": {"config_groups": {"R1": {"type": "hadamard"}}}}, "transform_config"),
        ({"format": "marlin-24"}, "format must be one of"),
        ({"quant_method": "bitsandbytes"}, "must be one of.*got 'bitsandbytes'"),
        ({"quant_method": ["gptq"]}, "must be one of"),
    ],
    "gptq-4-32": [
        ({"bits": 3}, "bits must be one of"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format must be one of"),
        ({"dynamic": {"-:lm_head": {}}}, "dynamic must be one of"),
        ({"pack_dtype": "int64"}, "pack_dtype must be one of"),
    ],
    "awq-4-32-zeros": [
        ({"bits": 8}, "bits must be one of"),
        ({"version": "gemv"}, "version must be one of"),
    ],
}


@pytest.mark.parametrize("case", BAD)
def test_bad_settings(case, tmp_path):
    write_folder(tmp_path, case)
    good = (tmp_path / "config.json").read_text()
    for changes, text in BAD[case]:
        config = json.loads(good)
        for path, value in changes.items():
            place = config["quantization_config"]
            *parents, last = path.split(".")
            for parent in parents:
                place = place[parent]
            place[last] = value
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match=text) as error:
            checkpoints.load_huggingface(tmp_path)
        assert "\n" not in str(error.value)


def test_groups_of_16_are_loaded_as_floats(tmp_path):
    write_folder(tmp_path, "compressed-4-16")
    with pytest.warns(UserWarning, match="a scale for 16 values, which is no multiple of 32"):
        assert quantization_of(checkpoints.load_huggingface(tmp_path)) is None


@pytest.mark.parametrize("case", ["compressed-4-32-zeros", "gptq-4-32", "awq-4-32", "torchao-4-32"])
def test_a_part_is_missing_or_has_another_shape(case, tmp_path):
    from safetensors.numpy import load_file

    tensors = write_folder(tmp_path, case)
    file, name = tmp_path / "model.safetensors", next(iter(tensors))
    metadata = metadata_of(file)
    good = load_file(file)
    parts = [x for x in good if x.startswith(f"{name}.")]
    assert len(parts) >= 3
    for part in parts:
        for change in ("missing", "shape", "dtype"):
            changed = dict(good)
            if change == "missing":
                del changed[part]
            elif change == "shape":
                changed[part] = np.zeros((3, *good[part].shape), good[part].dtype)
            else:
                changed[part] = good[part].astype("bool")
            save_file(changed, file, metadata)
            with pytest.raises(ValueError) as error:
                checkpoints.load_huggingface(tmp_path)
            assert "\n" not in str(error.value)
            assert part in str(error.value) or f"{name}.weight" in str(error.value), error.value


def metadata_of(file):
    raw = file.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    return header["__metadata__"]


def test_other_classes_of_torchao(tmp_path):
    from safetensors.numpy import load_file

    write_folder(tmp_path, "torchao-4-32")
    file = tmp_path / "model.safetensors"
    tensors, metadata = load_file(file), metadata_of(file)
    name = "model.layers.0.mlp.up_proj.weight"
    for changes, text in [
        ({"_type": "Int4TilePackedTo4dTensor"}, f"torchao's class of {name} must be"),
        ({"_data": {"block_size": [1, 7], "target_dtype": "int4"}}, "block_size that divides"),
        ({"_data": {"block_size": [1, 32], "target_dtype": "int9"}}, "target_dtype of"),
        (None, f"metadata of {name} must be"),
    ]:
        text_of = "[1" if changes is None else json.dumps(json.loads(metadata[name]) | changes)
        save_file(tensors, file, {**metadata, name: text_of})
        with pytest.raises(ValueError, match=text) as error:
            checkpoints.load_huggingface(tmp_path)
        assert "\n" not in str(error.value) and str(error.value).startswith(str(tmp_path))


@pytest.mark.parametrize(
    "case", [x for x in CASES if x.startswith("compressed")] + ["compressed-4-row-zeros"]
)
def test_compressed_tensors_reads_the_same_values(case, tmp_path):
    """Bit for bit, from the same files."""
    pytest.importorskip("compressed_tensors")
    torch = pytest.importorskip("torch")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from safetensors.torch import load_file

    _, bits, group, has_zeros = parts_of(case)
    tensors = write_folder(tmp_path, case)
    weights = QuantizationArgs(
        num_bits=bits, type="int", symmetric=not has_zeros, group_size=group,
        strategy="channel" if group is None else "group",
    )  # fmt: skip
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    form = "pack-quantized" if bits == 4 else "int-quantized"
    compressor = BaseCompressor.get_value_from_registry(form)
    own = open_huggingface(tmp_path).named.tensors
    theirs = load_file(tmp_path / "model.safetensors")
    for name in tensors:
        parts = {
            x.removeprefix(f"{name}."): y for x, y in theirs.items() if x.startswith(f"{name}.")
        }
        parts["weight_scale"] = parts["weight_scale"].to(torch.float32)
        found = compressor.decompress(parts, scheme)["weight"].float().numpy()
        np.testing.assert_array_equal(own.array(f"{name}.weight"), found)


def test_compressed_tensors_unpacks_the_same_awq(tmp_path):
    """Its converter of AWQ's folders finds our levels, scales and zero points."""
    pytest.importorskip("compressed_tensors")
    pytest.importorskip("torch")
    convert = pytest.importorskip("compressed_tensors.entrypoints.convert.converters")
    from safetensors.torch import load_file

    tensors = write_folder(tmp_path, "awq-4-32-zeros")
    converter = convert.AutoAWQConverter(group_size=32)
    theirs = load_file(tmp_path / "model.safetensors")
    own = open_huggingface(tmp_path).named.tensors
    for name in tensors:
        parts = (theirs[f"{name}.{x}"] for x in ("qweight", "scales", "qzeros"))
        levels, scales, zeros = (x.numpy() for x in converter._convert_gemm_module(*parts))
        tensor = own.quantized_tensor(f"{name}.weight")
        np.testing.assert_array_equal(tensor.levels, levels)
        np.testing.assert_array_equal(tensor.scales, scales.astype("float32"))
        np.testing.assert_array_equal(
            tensor.offsets, -zeros.astype("float32") * scales.astype("float32")
        )


@pytest.mark.parametrize("case", ["4-32", "8-row", "8-row-intx"])
def test_folders_of_torchao(case, tmp_path):
    """What transformers and torchao save and compute is what is loaded, to the last integer."""
    pytest.importorskip("torchao")
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from torchao.quantization import (
        Int8WeightOnlyConfig,
        IntxWeightOnlyConfig,
        PerAxis,
        PerGroup,
    )

    if case == "4-32":
        settings = IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32))
    elif case == "8-row":
        settings = Int8WeightOnlyConfig(version=2)
    else:
        settings = IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerAxis(0))
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=DIM, num_hidden_layers=LAYERS, head_dim=SIZE,
        num_attention_heads=HEADS, num_key_value_heads=GROUPS, intermediate_size=INNER,
        tie_word_embeddings=False,
    )  # fmt: skip
    theirs = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    quantization = transformers.TorchAoConfig(settings, modules_to_not_convert=[])
    theirs.save_pretrained(tmp_path / "float")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "float", quantization_config=quantization, dtype=torch.bfloat16
    )
    theirs.save_pretrained(tmp_path / "folder")
    own = open_huggingface(tmp_path / "folder").named.tensors
    seen = set()
    for name, weight in theirs.state_dict().items():
        if hasattr(weight, "qdata"):
            tensor = own.quantized_tensor(name)
            np.testing.assert_array_equal(tensor.levels, weight.qdata.numpy())
            np.testing.assert_allclose(
                own.array(name), weight.dequantize().float().numpy(), rtol=2**-8, atol=1e-6
            )
            seen.add(name)
    tables = {"lm_head.weight", "model.embed_tokens.weight"}
    assert len(seen - tables) == 7 * LAYERS
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* matrices keep their integers")
        model = checkpoints.load_huggingface(tmp_path / "folder")
    kept = [x for x in quantization_of(model).weights if x.grid.scales is not None]
    assert len(kept) == 4 * LAYERS + len(seen & tables)
