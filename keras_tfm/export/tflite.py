"""Exports a trained model to one .tflite file."""

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Unpack

import keras
import tensorflow as tf

from keras_tfm.export import files
from keras_tfm.export.carried_tokenizers import Carried, carry
from keras_tfm.export.precision import in_float32
from keras_tfm.export.quantization import Quantization
from keras_tfm.export.report import Report
from keras_tfm.export.request import ExportArguments, Request, check_keywords
from keras_tfm.export.saved_model import write_saved_model
from keras_tfm.export.signatures import Signature, make_signatures
from keras_tfm.export.text_signatures import (
    LITERT_OPERATORS,
    TEXT,
    add_text_signatures,
    check_tokenizers,
)
from keras_tfm.export.verification import verify as verify_file
from keras_tfm.generation.model_inputs import input_names
from keras_tfm.keras_internals import sublayers
from keras_tfm.models.identity import describe
from keras_tfm.runtime import flatbuffer
from keras_tfm.runtime import manifest as manifests
from keras_tfm.runtime.chat_template import ChatTemplate
from keras_tfm.runtime.inspection import bytes_by_scopes, inspected
from keras_tfm.runtime.inspection import custom_operators as foreign_operators
from keras_tfm.runtime.manifest_fields import FORMAT, signature_tensors
from keras_tfm.version import __version__

_log = logging.getLogger(__name__)


def export_tflite(
    model: keras.Model,
    path: str | Path,
    signatures: Sequence[str] | None = None,
    quantization: str = "float32",
    *,
    keep_float: Sequence[str] = (),
    representative_data: Iterable[Any] | None = None,
    custom_operators: bool = False,
    verify: bool = True,
    verify_inputs: dict[str, Any] | None = None,
    tolerance: float | None = None,
    tokenizer: Any = None,
    detokenizer: Any = None,
    chat_template: ChatTemplate | None = None,
    overwrite: bool = False,
    **arguments: Unpack[ExportArguments],
) -> Report:
    """Writes one LiteRT (.tflite) file: builtin operators, static shapes, decoding loop included.

    The file holds the trained model itself: `generate` is the traced loop of `generation.generate`.
    `runtime.load` reads its manifest and checksum; the file runs in any LiteRT.

    Args:
        model: functional `keras.Model`. A model in mixed precision is exported in float32.
        path: str or Path, the file. It is written completely or not at all. An earlier export is
            replaced, and its mode kept; where `path` is a symbolic link, the file that it points to
            is replaced.
        signatures: list of str, the signatures of the file, by default "generate" with a `start_id`
            or `prompt_length`, otherwise "predict". All signatures share the weights. "predict":
            one full pass. "generate": ids in, tokens out. "encode", "prefill", "decode", for a
            decoding loop on the host: "encode" projects a source once, "prefill" reads a prompt
            except its last token, "decode" takes one token and the KV caches, and returns logits
            (B, V) and the new cache entries. "generate_text", "predict_text", next to the
            signatures above: strings in and out, with operators of tensorflow-text, whose kernels
            the app must link. The other signatures still run in any LiteRT.
        quantization: str, the format of the weights of matrix products, convolutions and lookups.
            "float32"; "float16" (computed in float32); "int8" (dynamic range: int8 activations are
            scaled at run time; no calibration data); "int8_full" (int8 activations between
            operators too, "predict" only, for integer-only processors; on a CPU it is slower and
            less accurate than "int8"); "int4" (one scale per 32 numbers of a row, needs
            `keras-tfm[quantize]`).
        keep_float: list of str, layers whose weights stay float32 in "float16", "int8" and "int4":
            names, paths (`layer.path`), or consecutive parts of paths, as "decoder_0" or
            "self_attention/key".
        representative_data: iterable, for "int8_full": a few hundred inputs of "predict",
            dictionaries of arrays (arrays, for a model of one input) of the exported shape.
        custom_operators: bool, whether to allow operators that plain LiteRT lacks, such as
            TensorFlow's (Flex). The program that runs the file must register them; the file is not
            verified.
        verify: bool, whether to compare every signature with the model before the file is kept.
        verify_inputs, tolerance: as in `verify`.
        tokenizer: tokenizer of every input of ids, or a dictionary by input, with which the
            runtime runs `generate_text` and `predict_text`. It is stored in the file: a
            `tokenizers.Tokenizer`, a `sentencepiece.SentencePieceProcessor`, the path of such a
            file (`tokenizer.json`, a SentencePiece model), or a tokenizer of keras-hub. Text
            signatures instead need a tokenizer as in `export_saved_model`, made of
            tensorflow-text's FastWordpieceTokenizer or FastSentencepieceTokenizer.
        detokenizer: tokenizer, or path of its file: that of the generated text, the stepped input;
            default `tokenizer`.
        chat_template: `ChatTemplate`, the text around the messages of a conversation, for
            `runtime.Model.chat_prompt`; `checkpoints.load_chat_template` reads one.
        overwrite: bool, whether to replace a file at `path` that is not an earlier export.
        arguments: lengths, special tokens and strategy, documented in `ExportArguments` and
            `GenerationArguments`: `source_length`, `prompt_length`, `max_length`, `start_id`,
            `end_id`, `batch_size`, `target`, `strategy`, `whole_caches`.

    Returns:
        A report: size, signatures, operators, XNNPACK partitions, and for each signature its error
        against the model and its latency.

    Raises:
        ValueError: an argument is out of range; the model cannot be stepped (the error names the
            layer); a layer's precision cannot be converted to float32; the graph needs an operator
            that LiteRT lacks; `keep_float` names an unknown layer (the error lists similar names);
            or a tokenizer does not fit the model: it has more ids than the embedding, or lacks the
            start or end token.
        TypeError: an argument is unknown (the error lists the known ones), or a tokenizer's kind
            cannot be stored in a file.
        VerificationError: a signature differs from the model by more than the tolerance.
        FileExistsError: `path` is a file that is not an earlier export, or a device or a FIFO.
        FileNotFoundError, IsADirectoryError, PermissionError: `path` cannot be written.
        ModuleNotFoundError: LiteRT, or for "int4" its quantizer, is missing; the message names the
            extra to install.

    After an error nothing is written, and an earlier file is unchanged.

    Example:

    >>> import tempfile
    >>> from keras_tfm import runtime
    >>> from keras_tfm.export import export_tflite
    >>> from keras_tfm.models import transformer
    >>> model = transformer(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = export_tflite(
    ...         model, folder + "/model.tflite", source_length=6, max_length=5, start_id=1, end_id=2
    ...     )
    ...     tokens = runtime.load(report.path).generate([3, 4, 5]).tokens
    >>> tokens.shape
    (1, 5)
    """
    check_keywords(export_tflite, arguments, ExportArguments)
    path = Path(path)
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            f"export needs Keras's tensorflow backend, got {keras.backend.backend()}: "
            "save the model, and load it with KERAS_BACKEND=tensorflow"
        )
    input_names(model)  # raises unless the model is functional
    model = in_float32(model)
    quantized = Quantization(model, quantization, keep_float, representative_data)
    if chat_template is not None and (
        tokenizer is None or not isinstance(chat_template, ChatTemplate)
    ):
        raise ValueError(
            "chat_template must be a runtime.ChatTemplate, and needs a tokenizer in the file, "
            f"got {chat_template!r} and tokenizer={tokenizer!r}"
        )
    manifests.import_litert("interpreter")
    files.check_file(path, overwrite)
    names = list(signatures or ())
    of_text = [name for name in names if name.endswith(TEXT)]
    request = Request(
        model,
        [*dict.fromkeys(x.removesuffix(TEXT) for x in names)] if of_text else signatures,
        **arguments,
    )
    quantized.check_request(request)
    if of_text:
        tokenizers = check_tokenizers(model, names, tokenizer, detokenizer)
    carried = Carried() if of_text else carry(request, tokenizer, detokenizer)
    made = make_signatures(request)
    quantized.read_data(made)
    with_text = list(made)
    if of_text:
        with_text += add_text_signatures(
            model, made, of_text, tokenizers, detokenizer, arguments.get("target")
        )
    content = _convert(model, with_text, quantized, custom_operators)
    manifest = {
        "keras_tfm": __version__,
        "format": FORMAT,
        "keras": keras.__version__,
        "tensorflow": tf.__version__,
        "quantization": quantization,
        "signatures": _describe(content, made),
        "layers": _layer_sizes(content, model),
        **carried.manifest,
        **({} if chat_template is None else {"chat_template": chat_template._asdict()}),
        # Family, arguments and head; null for a model that no builder made.
        "model": describe(model),
    }
    # TensorFlow's parameters must be identifiers; in the file each input gets its own name back.
    own = {x.name: {new: old for old, new in x.parameters.items()} for x in with_text}
    content = flatbuffer.add_manifest(content, manifest, carried.entries, own)
    _log.info("counting operators")
    report = Report(**inspected(path, content, manifest))
    with files.temporary_folder(files.real(path).parent) as folder:
        new = folder / "new"
        files.write(new, content)
        if verify and not (custom_operators and report.custom_operators):
            report.verification = verify_file(
                model, new, verify_inputs, tolerance, request.strategy
            )
            report.verification.path = str(path)
        files.replace_file(new, path, overwrite)
    return report


def _convert(
    model: keras.Model, signatures: Sequence[Signature], quantization: Quantization, custom: bool
) -> bytes:
    of_text = any(signature.name.endswith(TEXT) for signature in signatures)
    with files.temporary_folder() as folder:
        saved = folder / "saved_model"
        _log.info("tracing %s", ", ".join(signature.name for signature in signatures))
        with quantization.tracing():
            write_saved_model(model, signatures, saved)

        def convert(set_up: Callable[[Any], None]) -> bytes:
            converter = tf.lite.TFLiteConverter.from_saved_model(
                str(saved), signature_keys=[signature.name for signature in signatures]
            )
            converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
            converter.allow_custom_ops = custom or of_text
            if custom:
                converter.target_spec.supported_ops.append(tf.lite.OpsSet.SELECT_TF_OPS)
            set_up(converter)
            try:
                return bytes(converter.convert())
            except Exception as error:  # several types; the message has the whole graph
                failure = error
            lacking = _lacking(str(failure), model)
            if lacking:
                raise ValueError(
                    f"{model.name} cannot be converted: LiteRT has no {', '.join(lacking)}"
                ) from None
            raise ValueError(f"{model.name} cannot be converted: {_reason(failure)}") from failure

        _log.info("converting")
        content = quantization.apply(convert)
    foreign = [] if custom else sorted({*foreign_operators(content)} - LITERT_OPERATORS)
    if foreign:  # only with text signatures; without them the converter itself raises
        raise ValueError(f"{model.name} needs operators that LiteRT does not have: {foreign}")
    return content


def _lacking(text: str, model: keras.Model) -> list[str]:
    """The unsupported operators, and their layers, in a converter's error."""
    found = re.findall(
        r'error: (?:loc\(callsite\(fused\["\w*:", "([^"@]*)/[^"/]*"\].*?)?'
        r"'(\w+\.\w+)' op is neither a custom op nor a flex op",
        text,
    )
    return list(
        dict.fromkeys(
            f"{operator} (in {_layer_path(model, scope) or model.name})" if scope else operator
            for scope, operator in found
        )
    )


def _reason(error: Exception) -> str:
    """The line of a converter's error that gives the cause, without the graph."""
    text = str(error)
    failed = re.findall(r"(failed to legalize operation '[\w.]+'.*)", text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (failed or lines or [type(error).__name__])[0][:300]


def _layer_path(model: keras.Model, scope: str) -> str:
    """The path of the layer whose scope in the graph is `scope`.

    A full pass has the model's name as the outermost scope, a step does not. Names in a scope may
    have a numeric suffix, and a scope also lists layers that call the layer but do not own it.
    """
    paths: list[list[str]] = [(layer.path or layer.name).split("/") for layer in sublayers(model)]
    known = {path[-1] for path in paths}
    parts = scope.split("/")
    if model.name in (parts[0], re.sub(r"_\d+$", "", parts[0])):
        parts = parts[1:]
    names = [x if x in known else re.sub(r"_\d+$", "", x) for x in parts]

    def is_in_scope(path: list[str]) -> bool:
        rest = iter(names)
        return all(name in rest for name in path)

    deepest = max((path for path in paths if is_in_scope(path)), key=len, default=[])
    return "/".join(deepest)


def _layer_sizes(content: bytes, model: keras.Model) -> dict[str, int]:
    """The bytes of each layer's weights, by path; "" for constants of no layer."""
    sizes: dict[str, int] = {}
    for scopes, size in bytes_by_scopes(content).items():
        # The innermost layer: of a projection and the residual that was fused with it, the former.
        paths = [_layer_path(model, re.sub(r"^(while(_\d+)?/)+", "", x)) for x in scopes[::-1]]
        path = max(paths, key=lambda x: x.count("/") if x else -1, default="")
        sizes[path] = sizes.get(path, 0) + size
    order = {layer.name: i for i, layer in enumerate(model.layers)}
    return dict(sorted(sizes.items(), key=lambda x: (order.get(x[0].split("/")[0], len(order)), x)))


def _describe(content: bytes, signatures: Sequence[Signature]) -> dict[str, Any]:
    """The signatures for the manifest, with the outputs of the file."""
    schema = manifests.import_litert("schema_py_generated")
    stored = signature_tensors(schema, schema.Model.GetRootAsModel(content, 0))
    return {x.name: {**x.manifest(), "outputs": stored[x.name]["outputs"]} for x in signatures}
