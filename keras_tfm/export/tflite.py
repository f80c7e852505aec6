"""Exports a trained model to one .tflite file."""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Unpack

import keras
import numpy as np

from keras_tfm.arguments import check_not_negative
from keras_tfm.export.checkpoints import accept_checkpoints, check_no_peft
from keras_tfm.export.graph.adapters import Placeholders, save_adapter, with_effect
from keras_tfm.export.graph.conversion import ModelGroup, exportable
from keras_tfm.export.member import make_member
from keras_tfm.export.pipeline import (
    ONLY,
    Report,
    check_file,
    convert_members,
    passes_of,
    write_file,
)
from keras_tfm.export.quantization.precision import quantized_models
from keras_tfm.export.quantization.presets import Quantization, warn_if_short
from keras_tfm.export.several_models import check_models, make_members
from keras_tfm.export.signatures.request import (
    ExportArguments,
    check_keywords,
    without_mask_warnings,
)
from keras_tfm.export.verification.in_float16 import check_in_float16, warn_of
from keras_tfm.export.verification.on_gpu import check_on_gpu
from keras_tfm.export.verification.verify import Verification, VerificationError
from keras_tfm.export.verification.verify import verify as verify_file
from keras_tfm.runtime.manifest.storage import import_litert
from keras_tfm.runtime.media.image_processor import ImageProcessor
from keras_tfm.runtime.tokenizers.chat_template import ChatTemplate


@accept_checkpoints(ExportArguments)
@without_mask_warnings()
def export_tflite(
    model: keras.Model | Mapping[str, keras.Model],
    path: str | Path,
    signatures: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    quantization: str = "float32",
    *,
    keep_float: Sequence[str] = (),
    keep_int8: Sequence[str] = (),
    representative_data: Iterable[object] | None = None,
    custom_operators: bool = False,
    verify: bool = True,
    verify_inputs: dict[str, Any] | None = None,
    tolerance: float | None = None,
    tokenizer: object = None,
    detokenizer: object = None,
    chat_template: ChatTemplate | None = None,
    images: ImageProcessor | dict[str, ImageProcessor] | None = None,
    labels: Sequence[str] | None = None,
    separate_adapters: bool = False,
    peft: str | Path | None = None,
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
            generate, see `signatures`. A model in mixed precision is exported in float32. Or a task
            or backbone of KerasHub or the folder of a preset, which `checkpoints.from_keras_hub`
            converts, or a folder of transformers or sentence-transformers. As with `keras-tfm
            export`, what is left open is then the folder's or the preprocessor's: `signatures`,
            `tokenizer`, `chat_template`, `images`, `source_length`, `max_length`, `prompt_length`,
            `start_id`, `default_prompt`, `end_id`; the report's `notes` say what was taken. The
            large weights of a model of more than 100 million stay in a folder of transformers while
            it is exported.
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
            less accurate than "int8"); "int4" (one scale per 32 numbers of a row).
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
            An open height and width are those of its pictures.
        labels: list of str, names of the classes, in order, no two alike: as many as an output has
            classes; for a detector one fewer, without "no object". Default: those of the head.
        separate_adapters: bool, whether the file is a base for LoRA adapters (`models.enable_lora`)
            that `runtime.load` adds from files of their own, which `save_adapter` writes. Each
            adapted projection computes x W + (x A) B with A and B in float32; without an adapter
            they are zeros. The model's ranks are the largest that the file takes. By default the
            model's adapters are merged into its weights. Not for "int8_full".
        peft: str or Path, of a folder: the LoRA adapters that PEFT saved for it, which are merged
            into its weights, as in `checkpoints.load_huggingface`.
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
        ModuleNotFoundError: LiteRT is missing; the message names the extra to install.

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
    check_no_peft(model, peft)  # a folder's are merged by now
    path = Path(path)
    if isinstance(model, Mapping):
        of_one = {
            "detokenizer": detokenizer,
            "chat_template": chat_template,
            "separate_adapters": separate_adapters,
        }
        check_models(model, signatures, {**of_one, **arguments})
        models = {name: _exportable_of(name, x) for name, x in model.items()}
        whole, named, roles = ModelGroup(models), model, None
    else:
        if isinstance(signatures, Mapping):
            raise ValueError(
                f"signatures by model are for a file of several models, got {dict(signatures)}"
            )
        whole = exportable(model, merge_adapters=not separate_adapters)
        models, named, roles = {ONLY: whole}, {model.name: model}, signatures
    quantized = Quantization(whole, quantization, keep_float, representative_data, keep_int8)
    adapters = None
    if separate_adapters:
        adapters = Placeholders(whole)
        quantized.keep(adapters.kernels)
    if chat_template is not None and (
        tokenizer is None or not isinstance(chat_template, ChatTemplate)
    ):
        raise ValueError(
            "chat_template must be a runtime.ChatTemplate, and needs a tokenizer in the file, "
            f"got {chat_template!r} and tokenizer={tokenizer!r}"
        )
    import_litert("interpreter")
    check_file(path, overwrite)
    if tolerance not in (None, math.inf):
        check_not_negative("tolerance", tolerance)
    if not isinstance(custom_operators, bool | np.bool_):
        raise TypeError(f"custom_operators must be a bool, got {custom_operators!r}")
    warn_if_short(whole, quantization, verify)
    own: Any = {"tokenizer": tokenizer, "images": images, "labels": labels}
    check = quantized.check_request
    if ONLY in models:
        own["detokenizer"] = detokenizer
        members = {ONLY: make_member(whole, roles, arguments, check, **own)}
    else:
        by_model = signatures if isinstance(signatures, Mapping) else None
        members = make_members(models, by_model, arguments, check, **own)
    made = [x for member in members.values() for x in member.signatures]
    quantized.read_data([x for x in made if not x.is_of_text])
    converted = convert_members(
        members,
        quantized,
        passes_of(members.values()),
        custom_operators=custom_operators,
        adapters=adapters,
        chat_template=chat_template,
    )

    def compare(new: Path, folder: Path) -> Verification:
        rows: Any = verify_inputs
        if rows is None and quantized.rows:  # calibration with them, so they are like real ones
            rows = quantized.rows
            if ONLY in models:
                (rows,) = quantized.rows.values()
        with nullcontext() if adapters is None else with_effect(whole):
            adapter = None if adapters is None else save_adapter(whole, folder / "adapter")
            compared = whole if ONLY in models else models
            strategy = arguments.get("strategy")
            found = verify_file(compared, new, rows, tolerance, strategy, adapter)
        if arguments.get("accelerator") == "gpu":
            found.path = str(path)
            found.gpu = check_on_gpu(new)
            if found.gpu.failures:
                raise VerificationError("; ".join(found.gpu.failures), found)
            found.float16 = warn_of(check_in_float16(new))
        return found

    return write_file(
        path,
        overwrite,
        converted,
        verify=compare if verify else None,
        custom_operators=custom_operators,
        dequantized=quantized_models(named),
    )


def _exportable_of(name: str, model: keras.Model) -> keras.Model:
    """`exportable`, of one model of several."""
    try:
        return exportable(model)
    except (TypeError, ValueError) as error:
        raise type(error)(f"model {name!r}: {error}") from error
