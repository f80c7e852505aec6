"""Exports a trained model to one .tflite file."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import keras

from keras_tfm.export import files
from keras_tfm.export.carried_tokenizers import Carried, carry
from keras_tfm.export.graph.adapters import Placeholders, save_adapter, with_effect
from keras_tfm.export.graph.conversion import convert, exportable, manifest_of, own_names
from keras_tfm.export.graph.gpu_graph import for_gpu
from keras_tfm.export.graph.int8_caches import with_int8_operators
from keras_tfm.export.image_entries import image_entries, label_entry
from keras_tfm.export.quantization.precision import quantized_models
from keras_tfm.export.quantization.presets import Quantization
from keras_tfm.export.report import Report
from keras_tfm.export.several_models import export_models
from keras_tfm.export.signatures.make import make_signatures
from keras_tfm.export.signatures.request import (
    ExportArguments,
    Request,
    check_keywords,
    without_mask_warnings,
)
from keras_tfm.export.signatures.text import (
    TEXT,
    add_text_signatures,
    check_tokenizers,
)
from keras_tfm.export.verification.verify import Verification
from keras_tfm.export.verification.verify import verify as verify_file
from keras_tfm.export.written_file import written
from keras_tfm.runtime import flatbuffer
from keras_tfm.runtime.manifest import storage as manifests
from keras_tfm.runtime.media.image_processor import ImageProcessor
from keras_tfm.runtime.tokenizers.chat_template import ChatTemplate


@without_mask_warnings()
def export_tflite(
    model: keras.Model | Mapping[str, keras.Model],
    path: str | Path,
    signatures: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    quantization: str = "float32",
    *,
    keep_float: Sequence[str] = (),
    keep_int8: Sequence[str] = (),
    representative_data: Iterable[Any] | None = None,
    custom_operators: bool = False,
    verify: bool = True,
    verify_inputs: dict[str, Any] | None = None,
    tolerance: float | None = None,
    tokenizer: Any = None,
    detokenizer: Any = None,
    chat_template: ChatTemplate | None = None,
    images: ImageProcessor | dict[str, ImageProcessor] | None = None,
    labels: Sequence[str] | None = None,
    separate_adapters: bool = False,
    overwrite: bool = False,
    **arguments: Unpack[ExportArguments],
) -> Report:
    """Writes one LiteRT (.tflite) file: builtin operators, static shapes, decoding loop included.

    The file holds the trained model itself: `generate` is the traced loop of `generation.generate`.
    `runtime.load` reads its manifest and checksum; the file runs in any LiteRT.

    Args:
        model: functional `keras.Model`, or a dictionary of several by name, which become one file:
            each is a signature of its name, one full pass (with several `source_length`, one for
            each: "text_16", "text_64"); weights that they share are stored once. One of them may
            generate, see `signatures`. A model in mixed precision is exported in float32.
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
            the app must link. The other signatures still run in any LiteRT. Of several models, a
            dictionary with the signatures of the one that generates, whose names then begin with
            the model's: {"dalle": ["prefill", "decode"]} gives "dalle_decode".
        quantization: str, the format of the weights of matrix products, convolutions and lookups.
            "float32"; "float16" (computed in float32); "int8" (dynamic range: int8 activations are
            scaled at run time; no calibration data); "int8_full" (int8 activations between
            operators too, "predict" only, for integer-only processors; on a CPU it is slower and
            less accurate than "int8"); "int4" (one scale per 32 numbers of a row, needs
            the extra `quantize`).
        keep_float: list of str, layers whose weights stay float32 in "float16", "int8" and "int4":
            names, paths (`layer.path`), or consecutive parts of paths, as "decoder_0" or
            "self_attention/key".
        keep_int8: list of str, layers whose weights get 8 bits in "int4", by name as in
            `keep_float`; `calibrate` needs the same list.
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
        images: `runtime.ImageProcessor`, how pictures become the model's pixels, with which the
            runtime runs `predict_images` and `detect`; or a dictionary by input. Inputs of pixels,
            which only an `ImageNormalization` reads, are uint8 in the file, with or without it.
        labels: list of str, names of the classes, in order, no two alike: as many as an output has
            classes; for a detector one fewer, without "no object". Default: those of the head.
        separate_adapters: bool, whether the file is a base for LoRA adapters (`models.enable_lora`)
            that `runtime.load` adds from files of their own, which `save_adapter` writes. Each
            adapted projection computes x W + (x A) B with A and B in float32; without an adapter
            they are zeros. The model's ranks are the largest that the file takes. By default the
            model's adapters are merged into its weights. Not for "int8_full".
        overwrite: bool, whether to replace a file at `path` that is not an earlier export.
        arguments: lengths, special tokens and strategy, documented in `ExportArguments` and
            `GenerationArguments`: `source_length`, `prompt_length`, `max_length`, `start_id`,
            `end_id`, `batch_size`, `target`, `strategy`, `accelerator`, `whole_caches`,
            `cache`, `draft_length`.

    With several models, `tokenizer`, `images`, `labels`, `source_length`, `verify_inputs` and
    `representative_data` may be dictionaries by model; a value that is not a dictionary is for each
    model that takes it (`images` and `labels`: only one model may). The arguments of generation are
    those of the model in `signatures`. Adapters and chat templates are for files of one model.

    Returns:
        A report: size, signatures, operators, XNNPACK partitions, and for each signature its error
        against the model and its latency.

    Raises:
        ValueError: an argument is out of range; the model cannot be stepped (the error names the
            layer); a layer's precision cannot be converted to float32; the graph needs an operator
            that LiteRT lacks; `keep_float` or `keep_int8` names an unknown layer (the error lists
            similar names); a tokenizer does not fit the model: it has more ids than the embedding,
            or lacks the start or end token; `images` do not have the size of the model's input;
            there is not one label per class; or of several models, a name cannot be a signature's,
            or an argument is for one model.
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
    if isinstance(model, Mapping):
        options = dict(locals())
        passed = ("quantization", "representative_data", "custom_operators", "verify")
        chosen = {name: options[name] for name in passed}
        return export_models(model, path, **chosen, options=options, arguments=arguments)
    if isinstance(signatures, Mapping):
        raise ValueError(
            f"signatures by model are for a file of several models, got {dict(signatures)}"
        )
    given, model = model, exportable(model, merge_adapters=not separate_adapters)
    quantized = Quantization(model, quantization, keep_float, representative_data, keep_int8)
    placeholders = None
    if separate_adapters:
        placeholders = Placeholders(model)
        quantized.keep(placeholders.kernels)
    if chat_template is not None and (
        tokenizer is None or not isinstance(chat_template, ChatTemplate)
    ):
        raise ValueError(
            "chat_template must be a runtime.ChatTemplate, and needs a tokenizer in the file, "
            f"got {chat_template!r} and tokenizer={tokenizer!r}"
        )
    manifests.import_litert("interpreter")
    files.check_file(path, overwrite)
    pictures = image_entries(model, images)
    names_of_classes = label_entry(model, labels)
    names = list(signatures or ())
    of_text = [name for name in names if name.endswith(TEXT)]
    request = Request(
        model,
        [*dict.fromkeys(x.removesuffix(TEXT) for x in names)] if of_text else signatures,
        **arguments,
    )
    quantized.check_request(request)
    if of_text and request.accelerator == "gpu":
        raise ValueError(
            "signatures of texts are for accelerator='cpu', as a GPU delegate has no operator of "
            f"texts: let the runtime tokenize, got {of_text}"
        )
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
    with nullcontext() if placeholders is None else placeholders.tracing():
        content = convert(model, with_text, quantized, custom_operators)
    if request.accelerator == "gpu":
        content = for_gpu(content)
    if request.cache == "int8":
        content = with_int8_operators(content)
    manifest = replace(
        manifest_of(model, content, made, quantization, request.cache),
        tokenizers=carried.names,
        tokenizer_options=carried.options,
        images=pictures,
        labels=names_of_classes,
        chat_template=chat_template,
        adapters=None if placeholders is None else placeholders.find(content),
    )
    content = flatbuffer.add_manifest(
        content, manifest, carried.entries, own_names(with_text), separate_adapters
    )

    def verified(new: Path, folder: Path) -> Verification:
        with nullcontext() if placeholders is None else with_effect(model):
            adapter = save_adapter(model, folder / "adapter") if separate_adapters else None
            rows = verify_inputs
            if rows is None and quantized.rows:  # calibration with them, so they are like real ones
                (rows,) = quantized.rows.values()
            return verify_file(model, new, rows, tolerance, request.strategy, adapter)

    report = written(
        path,
        content,
        manifest,
        overwrite,
        custom_operators,
        verified if verify else None,
        on_gpu=request.accelerator == "gpu",
    )
    report.dequantized = quantized_models({given.name: given})
    return report
