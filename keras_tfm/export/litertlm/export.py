"""Exports a decoder-only language model to one .litertlm file, for LiteRT-LM."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, Unpack

import keras

from keras_tfm.checkpoints.tokenizers.jinja_template import JinjaTemplate
from keras_tfm.export.checkpoints import accept_checkpoints, check_no_peft
from keras_tfm.export.graph.adapters import Placeholders, save_adapter, with_effect
from keras_tfm.export.graph.composites import mark_rms_norms
from keras_tfm.export.graph.conversion import exportable
from keras_tfm.export.litertlm.adapters import (
    rank_of,
    save_litertlm_adapter,
    with_adapters_as_inputs,
)
from keras_tfm.export.litertlm.embedder import export_embedder, is_embedder
from keras_tfm.export.litertlm.lookup import check_size, convert_lookup
from keras_tfm.export.litertlm.package import (
    Chat,
    Picture,
    chat_of,
    import_builder,
    sampler_of,
    write_package,
)
from keras_tfm.export.litertlm.signatures import (
    ACTIVATIONS,
    convert_drafter,
    draft_count,
    litertlm_signatures,
)
from keras_tfm.export.litertlm.verification import Pictured, check_runtime, verify_litertlm
from keras_tfm.export.litertlm.vision import (
    ENCODER,
    Vision,
    convert_adapter,
    encoder_signature,
    vision_of,
)
from keras_tfm.export.member import Images, Member, image_processors, store_tokenizers
from keras_tfm.export.pipeline import (
    ONLY,
    Converted,
    Report,
    check_file,
    convert_members,
    write_file,
)
from keras_tfm.export.quantization.precision import quantized_models
from keras_tfm.export.quantization.presets import Quantization, warn_if_short
from keras_tfm.export.signatures.make import make_signatures
from keras_tfm.export.signatures.request import Request, check_keywords, without_mask_warnings
from keras_tfm.export.verification.verify import Verification
from keras_tfm.generation.interface import interface_of
from keras_tfm.generation.strategies import Strategy
from keras_tfm.generation.tokenizers.keras_hub import refuse_keras_hub
from keras_tfm.generation.tokenizers.tokenizer_forms import form_of
from keras_tfm.runtime.manifest.manifest import Signature, Stepped
from keras_tfm.runtime.manifest.storage import import_litert
from keras_tfm.runtime.media.image_processor import ImageProcessor
from keras_tfm.runtime.media.tile_processor import IMAGE, TileProcessor
from keras_tfm.runtime.tokenizers.chat_template import ChatTemplate
from keras_tfm.runtime.tokenizers.tokenizer import Tokenizer

_PREFILL_LENGTHS = (32, 128, 512)
# LiteRT-LM's name of the input of ids.
_TOKENS = "tokens"
# Before the names of LiteRT-LM's signatures while the file has those of our runtime, too.
_PREFIX = "litertlm_"


class LiteRTLMArguments(TypedDict, total=False):
    """The arguments of `export_litertlm` that describe generation and weights.

    `max_length` and `end_id` are required of a model that writes; a model of embeddings takes
    `source_length`, `keep_float`, `keep_int8`, `tolerance`, and no other.

    Attributes:
        max_length: int, maximum number of tokens of a conversation: prompts and answers. The caches
            have more columns, for the padding of the shortest prefill. With n draft heads the
            runtime ends at `max_length` - n, since its last step may make as many tokens more.
        start_id: int, id of the token that the runtime puts before the first text. None (default):
            none.
        end_id: int, id of the token that ends an answer, or list of several.
        prefill_lengths: list of int, each below `max_length`: numbers of tokens that are read at
            once. The runtime splits a prompt among them, and pads the last part on the right.
            Default: those of 32, 128 and 512 that are short enough.
        strategy: `generation.Sample` with temperature, top_k, top_p and seed, or `Greedy()`:
            how the runtime chooses tokens, unless the app sets its own sampling. Default: the
            sampling in a folder's `generation_config.json`, otherwise `Greedy()`.
        keep_float, keep_int8: list of str, layers whose weights keep more bits, as in
            `export_tflite`.
        tolerance: float, the largest allowed relative error of the logits, as in `verify`.
        source_length: int or list of int, of a model of embeddings: the numbers of tokens of a
            text, special tokens included, each of which has a signature.
        images: `ImageProcessor` of a model that reads pictures: a `TileProcessor` without
            `num_images` tells the tokens around a picture. Default: none are around it.
        accelerator: str, "cpu". "gpu" is an error, because LiteRT-LM's GPU backend does not run the
            graphs that `export_tflite` writes for a GPU; docs/litertlm.md has what was tried.
        cache: str, "float32". "int8" is an error, because LiteRT-LM passes no scales between steps.
        separate_adapters: bool, whether the file is a base for LoRA adapters of rank 16 or 32
            (`models.enable_lora`), which `save_litertlm_adapter` writes and an app chooses by
            LiteRT-LM's `LoraConfig`. By default the model's adapters are merged into its weights.
        peft: str or Path, of a folder: the LoRA adapters that PEFT saved for it, as in
            `export_tflite`.

    >>> from keras_tfm.export import LiteRTLMArguments
    >>> chat: LiteRTLMArguments = {"max_length": 1024, "start_id": 1, "end_id": [2, 107]}
    """

    max_length: int
    start_id: int | None
    end_id: int | Sequence[int]
    prefill_lengths: Sequence[int] | None
    strategy: Strategy | None
    keep_float: Sequence[str]
    keep_int8: Sequence[str]
    tolerance: float | None
    source_length: int | Sequence[int] | None
    images: Images
    accelerator: str
    cache: str
    separate_adapters: bool
    peft: str | Path | None


@accept_checkpoints(LiteRTLMArguments, is_litertlm=True)
@without_mask_warnings()
def export_litertlm(
    model: keras.Model,
    path: str | Path,
    tokenizer: object = None,
    quantization: str = "float32",
    *,
    chat_template: ChatTemplate | JinjaTemplate | None = None,
    verify: bool = True,
    overwrite: bool = False,
    **generation: Unpack[LiteRTLMArguments],
) -> Report:
    """Writes one .litertlm file, which apps run with LiteRT-LM on Android, iOS and desktops.

    For decoder-only language models: those of `keras_tfm.models`, and any functional model that can
    be generated from. The file holds the model, with the KV cache as arguments; the tokenizer;
    start and end tokens; the chat template; and the default sampling. Encoder-decoder models need
    `export_tflite`.

    The file is verified before it is kept, with Google's own runtime (PyPI `litert-lm-api`): the
    text that it generates greedily must be that of the model, for prompts of one token, around the
    length of the shortest prefill, and near the end of the cache.

    A model with draft heads, of `models.with_draft_heads`, gets a drafter, with which LiteRT-LM
    writes several tokens a step if an app enables speculative decoding: greedily, whatever the
    sampler. Its text must be that without drafts.

    A model of embeddings, ids (B, T) -> vectors (B, D), such as `models.sentence_embedding` makes,
    becomes a file for LiteRT-LM's `EmbeddingEngine`, with a signature for each `source_length`. It
    is verified with texts of one token, around each length, and longer ones, which the engine
    truncates or embeds in parts: vectors must be those of the file's graph, and the model's as far
    as the rounding of the weights allows. The engine adds no prompt such as "query: " to a text.

    A model that reads a picture (B, H, W, 3) and a text with placeholders for its features
    (`layers.ReplacePlaceholders`), such as `models.smolvlm` without `num_images`, becomes a file
    that answers questions about a picture, at most one in a conversation. It needs a
    `chat_template`. The runtime stretches a picture to H x W by itself, whatever `images` says. The
    text that it generates for random pictures of this size must be the model's, too.

    Args:
        model: functional `keras.Model` with one input of ids (B, T) and logits (B, T, V), perhaps
            with draft heads or an input of pixels, or vectors (B, D). A model in mixed precision is
            exported in float32. Or a `CausalLM` of KerasHub, the folder of a preset, or a folder of
            transformers or sentence-transformers: what is left open of `tokenizer`,
            `chat_template`, `images`, lengths, `start_id` and `end_id` is then theirs, as of
            `export_tflite`.
        path: str or Path, the file, which ends in ".litertlm". It is written completely or not at
            all. An earlier export is replaced.
        tokenizer: `tokenizers.Tokenizer`, `sentencepiece.SentencePieceProcessor`, the path of a
            `tokenizer.json` or a SentencePiece model, or a tokenizer of keras-hub. LiteRT-LM adds
            no special tokens but `start_id`.
        quantization: str, "float32", "float16", "int8" or "int4"; see `export_tflite`.
        chat_template: `ChatTemplate`, the text around the messages of a conversation;
            `checkpoints.load_chat_template` reads one. Or `checkpoints.JinjaTemplate`, a program of
            `transformers` as it is, which also writes tools and their calls, thinking and further
            roles; LiteRT-LM's Jinja lacks some of Python's, such as `tojson(indent=)`. A start
            token that it begins with is left out, since the runtime adds it. `next` should begin
            with the text of an end token, which the runtime keeps in the cache.
        verify: bool, whether to verify the file before it is kept. It needs `litert-lm-api`.
        overwrite: bool, whether to replace a file at `path` that is not an earlier export.
        generation: lengths, special tokens, pictures and sampling, documented in
            `LiteRTLMArguments`: `max_length`, `start_id`, `end_id`, `prefill_lengths`, `strategy`,
            `keep_float`, `keep_int8`, `tolerance`, `source_length`, `images`, `accelerator`,
            `cache`, `separate_adapters`, `peft`. `max_length` and `end_id` are required of a model
            that writes.

    Returns:
        A report, as of `export_tflite`. In its verification, the row "LiteRT-LM" compares the text
        of the stock runtime: "top-1" is the share of tokens that are the model's, "max error" the
        largest difference between its logits of the two tokens. With draft heads, the row
        "LiteRT-LM drafts" has the milliseconds per token of speculative decoding.

    Raises:
        ValueError: the model has several inputs or cannot be stepped; an argument is out of range;
            the chat template has Jinja variables; or the tokenizer does not fit the model.
        TypeError: an argument is unknown (the error lists the known ones), or a tokenizer or
            strategy of an unsupported kind.
        VerificationError: the file differs from the model.
        RuntimeError: LiteRT-LM cannot run the file.
        FileExistsError: `path` is a file that is not an earlier export, or a device or a FIFO.
        FileNotFoundError, IsADirectoryError, PermissionError: `path` cannot be written.
        ModuleNotFoundError: LiteRT-LM (the extra `litertlm`) is not installed.

    After an error nothing is written, and an earlier file is unchanged.

    Example, of a model with a tokenizer of letters, without verification:

    >>> import tempfile
    >>> from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    >>> from keras_tfm.export import export_litertlm
    >>> from keras_tfm.models import llama
    >>> ids = {token: i for i, token in enumerate(["<pad>", "<s>", "</s>", *"abcdefgh"])}
    >>> tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<pad>"))
    >>> _ = tokenizer.add_special_tokens(["<pad>", "<s>", "</s>"])
    >>> tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    >>> tokenizer.decoder = decoders.Fuse()
    >>> model = llama(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = export_litertlm(
    ...         model, folder + "/letters.litertlm", tokenizer, max_length=64, start_id=1, end_id=2,
    ...         verify=False,
    ...     )
    >>> list(report.signatures)
    ['prefill_32', 'decode']
    """
    check_keywords(export_litertlm, generation, LiteRTLMArguments)
    check_no_peft(model, generation.get("peft"))  # a folder's are merged by now
    max_length, start_id = generation.get("max_length"), generation.get("start_id")
    accelerator = generation.get("accelerator", "cpu")
    if accelerator != "cpu":
        raise ValueError(
            "accelerator must be 'cpu' for a .litertlm file, whose graphs LiteRT-LM's GPU backend "
            f"refuses, got {accelerator!r}"
        )
    if generation.get("cache", "float32") != "float32":
        raise ValueError(
            "cache must be 'float32' for a .litertlm file, got "
            f"{generation['cache']!r}: LiteRT-LM's runtime keeps keys and values, but no scales; "
            "use export_tflite"
        )
    path = Path(path)
    if path.suffix != ".litertlm":  # LiteRT-LM tells formats by their endings
        raise ValueError(f"path must end in .litertlm, got {path}")
    refuse_keras_hub(model)
    separate = generation.get("separate_adapters", False)
    given, model = model, exportable(model, merge_adapters=not separate)
    embeds = is_embedder(model)
    others = interface_of(model).names
    shapes = [tuple(x.shape) for x in model.outputs]
    if not embeds and len(shapes[0]) != 3:
        raise ValueError(
            f"{model.name} returns {', '.join(map(str, shapes))}: LiteRT-LM runs models that write "
            "text, with logits (B, T, V), and models of embeddings (B, D); use export_tflite"
        )
    vision = None if embeds else vision_of(model)
    if len(others) > 1 and not embeds and vision is None:
        raise ValueError(
            f"{model.name} has the inputs {others}: LiteRT-LM runs decoder-only models and has no "
            "encoder role; use export_tflite, whose files have 'encode' and 'generate'"
        )
    if tokenizer is None:
        raise ValueError("a .litertlm file needs a tokenizer, got None")
    if chat_template is not None and not isinstance(chat_template, ChatTemplate | JinjaTemplate):
        raise TypeError(
            "chat_template must be a runtime.ChatTemplate or a checkpoints.JinjaTemplate, got "
            f"{chat_template!r}"
        )
    processors = image_processors(model, generation.get("images"))
    if vision is not None:
        _check_vision(model, chat_template, separate)
    if quantization == "int8_full":
        raise ValueError(
            "quantization must be float32, float16, int8 or int4 for a .litertlm file, "
            "got 'int8_full'"
        )
    if embeds:
        _check_embedder(model, {**generation, "chat_template": chat_template})
    elif generation.get("source_length") is not None:
        raise ValueError(f"source_length is for a model of embeddings, {model.name} writes text")
    elif max_length is None or generation.get("end_id") is None:
        raise ValueError(
            "a .litertlm file needs max_length and the end_id of answers, got "
            f"max_length={max_length} and end_id={generation.get('end_id')}"
        )
    quantized = Quantization(
        model,
        quantization,
        generation.get("keep_float", ()),
        keep_int8=generation.get("keep_int8", ()),
    )
    adapters = None
    if separate:
        _check_adapters(model, embeds)
        adapters = Placeholders(model)
        quantized.keep(adapters.kernels)
    import_litert("interpreter")
    import_builder("litertlm_builder")
    if verify:
        check_runtime()
    check_file(path, overwrite)
    warn_if_short(model, quantization, verify)
    if embeds:
        return export_embedder(
            model,
            path,
            tokenizer,
            quantized,
            generation.get("source_length"),
            generation.get("tolerance"),
            verify,
            overwrite,
            quantized_models({given.name: given}),
        )
    assert max_length is not None
    request = Request(
        model,
        ["prefill", "decode"] if vision is None else ["encode", "prefill", "decode"],
        max_length=max_length,
        start_id=start_id,
        end_id=generation.get("end_id"),
        prompt_length=_prefill_lengths(generation.get("prefill_lengths"), max_length),
        whole_caches=True,
        target=None if vision is None else vision.target,
    )
    quantized.check_request(request)
    store_tokenizers(request, tokenizer, None)  # raises unless it fits the model
    form = form_of(request.target, tokenizer)
    reader = form.read(f"tokenizer{form.ending}")
    added = reader.encode_prompt("", request.end_ids)
    if added and added != [start_id]:
        raise ValueError(
            f"the tokenizer puts the ids {added} before every text, but LiteRT-LM puts start_id "
            f"alone there, got start_id={start_id}"
        )
    sampler = sampler_of(generation.get("strategy"), model.outputs[0].shape[-1])
    chat: Chat | None = None
    image = "" if vision is None else _image_token(vision, reader)
    if chat_template is not None:
        chat = chat_of(chat_template, reader, start_id, request.end_ids, image)
    pictured = None
    if vision is not None and chat is not None:
        pictured = _text_of_pictures(vision, chat, processors.get(vision.pixels))
        check_size(model.outputs[0].shape[-1])
        _check_picture_length(pictured, reader, request)
    drafts = draft_count(model)
    if drafts:
        check_size(model.outputs[0].shape[-1])
        if max_length < drafts + 2:
            raise ValueError(
                f"max_length must be at least {drafts + 2} with {drafts} draft heads, whose drafts "
                f"may follow the last token, got {max_length}"
            )
    signatures = litertlm_signatures(request, vision)
    own, names = [], {}
    if vision is not None:
        # The file is verified by those of our runtime, with the same weights.
        names = {_PREFIX + x.name: x.name for x in signatures}
        signatures = [replace(x, name=_PREFIX + x.name) for x in signatures]
        own = make_signatures(request) if verify else []
        signatures += [*own, encoder_signature(vision)]
    member = Member(model, request, signatures)
    converted = convert_members({ONLY: member}, quantized, [mark_rms_norms], adapters=adapters)
    if vision is None:
        packed = with_adapters_as_inputs(_with_tokens(converted, request.target))
    else:
        packed = converted.with_signatures([*names]).with_names(names)

    def package(model_path: Path) -> Path:
        new = model_path.with_name("new.litertlm")
        models = {"PREFILL_DECODE": model_path}
        if drafts:
            models["EMBEDDER"] = model_path.with_name("lookup.tflite")
            models["EMBEDDER"].write_bytes(convert_lookup(drafts))
            models["MTP_DRAFTER"] = model_path.with_name("drafter.tflite")
            models["MTP_DRAFTER"].write_bytes(convert_drafter(request))
        if vision is not None:
            for kind, content in (
                ("EMBEDDER", convert_lookup(vision.width)),
                ("VISION_ADAPTER", convert_adapter(vision)),
            ):
                models[kind] = model_path.with_name(f"{kind}.tflite")
                models[kind].write_bytes(content)
            models["VISION_ENCODER"] = model_path.with_name("encoder.tflite")
            converted.with_signatures([ENCODER]).save(models["VISION_ENCODER"])
        write_package(
            new,
            models,
            form,
            max_length=max_length - drafts,
            start_id=start_id,
            end_ids=request.end_ids,
            sampler=sampler,
            chat=chat,
            picture=None if pictured is None else pictured.picture,
        )
        return new

    def compare(new: Path, folder: Path) -> Verification:
        # With the model's names of inputs, as `verify` expects them.
        model_path = folder / "verified.tflite"
        verified = converted.with_signatures([x.name for x in own]) if own else converted
        _without_drafts(verified).save(model_path)
        drafting = None
        if drafts:
            drafting = folder / "drafting.tflite"
            verified.save(drafting)
        tolerance = generation.get("tolerance")
        if adapters is None:
            return verify_litertlm(
                model,
                new,
                model_path,
                request,
                reader,
                chat,
                tolerance,
                pictured=pictured,
                drafting=drafting,
            )
        with with_effect(model):
            adapter = save_adapter(model, folder / "adapter.npz")
            lora = save_litertlm_adapter(model, folder / "adapter.tflite")
            return verify_litertlm(
                model, new, model_path, request, reader, chat, tolerance, (adapter, lora)
            )

    return write_file(
        path,
        overwrite,
        packed,
        package=package,
        verify=compare if verify else None,
        dequantized=quantized_models({given.name: given}),
    )


def _check_embedder(model: keras.Model, given: Mapping[str, object]) -> None:
    """Raises if an argument is for models that write text, or the lengths are missing."""
    of_writers = (
        "max_length",
        "start_id",
        "end_id",
        "prefill_lengths",
        "strategy",
        "chat_template",
    )
    others = [name for name in of_writers if given.get(name) is not None]
    if others:
        raise ValueError(
            f"{model.name} returns vectors: {', '.join(others)} are for models that write text"
        )
    is_open = interface_of(model).inputs[interface_of(model).names[0]].is_open
    if given.get("source_length") is None and is_open:
        raise ValueError(
            "a .litertlm file of embeddings needs source_length, the lengths of texts in tokens, "
            "got None"
        )


def _check_adapters(model: keras.Model, embeds: bool) -> None:
    """Raises ValueError unless a model's adapters may be files of their own."""
    rank_of(model)
    if embeds or len(model.outputs) > 1:
        kind = "embeddings" if embeds else "draft heads"
        raise ValueError(
            f"separate_adapters is for models that write text without draft heads, {model.name} "
            f"has {kind}: LiteRT-LM passes no adapter to them"
        )


def _check_vision(model: keras.Model, chat_template: object, separate: bool) -> None:
    """Raises ValueError if an argument does not fit a model that reads pictures."""
    if chat_template is None:
        raise ValueError(
            f"{model.name} reads pictures: a .litertlm file needs a chat_template then, which "
            "writes conversations with them, got None"
        )
    unsupported = None
    if separate:
        unsupported = "separate adapters: merge the adapters"
    elif len(model.outputs) > 1:
        unsupported = f"draft heads: export {model.name} without"
    if unsupported:
        raise ValueError(f"a .litertlm file that reads pictures has no {unsupported}")


def _image_token(vision: Vision, reader: Tokenizer) -> str:
    """The text of the token in whose place a picture's features are.

    Raises:
        ValueError: the tokenizer does not read it as that token.
    """
    token = reader.token(vision.token_id)
    if not token or reader.encode_more(token) != [vision.token_id]:
        raise ValueError(
            f"the tokenizer must read the token of a picture, id {vision.token_id}, as one token, "
            f"got {token!r}" + (f" as {reader.encode_more(token)}" if token else "")
        )
    return token


def _text_of_pictures(vision: Vision, chat: Chat, processor: ImageProcessor | None) -> Pictured:
    """How a picture stands in a prompt."""
    prefix, suffix = "", ""
    if isinstance(processor, TileProcessor):
        if chat.image != IMAGE:
            raise ValueError(
                f"images is a TileProcessor, whose pictures are {IMAGE}, but the tokenizer's token "
                f"{vision.token_id} is {chat.image!r}"
            )
        prefix, _, suffix = processor.place((0, 0), 1).partition(IMAGE)
    return Pictured(vision, Picture(vision.size, prefix, suffix), chat)


def _check_picture_length(pictured: Pictured, reader: Tokenizer, request: Request) -> None:
    """Raises ValueError unless a question about a picture is shorter than a conversation."""
    parts = [{"type": "image"}, {"type": "text", "text": "a"}]
    ids = pictured.ids([{"role": "user", "content": parts}], reader, request)
    assert request.max_length is not None
    if len(ids) >= request.max_length:
        raise ValueError(
            f"max_length must be more than {len(ids)}, the tokens of a picture "
            f"({pictured.vision.features} features) and the chat template, got {request.max_length}"
        )


def _prefill_lengths(lengths: Sequence[int] | None, max_length: int) -> Sequence[int]:
    """The prefill lengths, by default those that are shorter than `max_length`."""
    if lengths is None:
        return [n for n in _PREFILL_LENGTHS if n < max_length] or [max(1, max_length - 1)]
    if len(lengths) == 0 or max(lengths) >= max_length:
        raise ValueError(
            f"prefill_lengths must be less than max_length ({max_length}), got {list(lengths)}"
        )
    return lengths


def _without_drafts(converted: Converted) -> Converted:
    """The file as one without draft heads, for our runtime."""
    names = [name for name in converted.manifest.signatures if name != "verify"]
    result = converted.with_signatures(names)
    kept = result.model.signatureDefs = [copy.copy(x) for x in result.model.signatureDefs]
    for signature in kept:
        signature.outputs = [x for x in signature.outputs if x.name != ACTIVATIONS.encode()]
    known = {
        name: replace(x, outputs={key: y for key, y in x.outputs.items() if key != ACTIVATIONS})
        for name, x in result.manifest.signatures.items()
    }
    return replace(result, manifest=replace(result.manifest, signatures=known))


def _with_tokens(converted: Converted, target: str) -> Converted:
    """The file with LiteRT-LM's name of the stepped input."""
    signatures: dict[str, Signature] = {}
    for name, x in converted.manifest.signatures.items():
        inputs = {_TOKENS if key == target else key: y for key, y in x.inputs.items()}
        x = replace(x, inputs=inputs)
        signatures[name] = replace(x, target=_TOKENS) if isinstance(x, Stepped) else x
    names = {
        name: {new: _TOKENS for new, old in own.items() if old == target}
        for name, own in converted.names.items()
    }
    return replace(
        converted, manifest=replace(converted.manifest, signatures=signatures), names=names
    )
