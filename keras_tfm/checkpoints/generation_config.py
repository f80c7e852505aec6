"""`generation_config.json`: how `generate` of transformers searches or samples by default."""

import contextlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keras_tfm.checkpoints.config import Arguments, Config, Fields
from keras_tfm.checkpoints.huggingface import read_config
from keras_tfm.checkpoints.tokenizers.tokenizer_files import load_tokenizer
from keras_tfm.checkpoints.tokenizers.tokenizer_settings import TokenizerSettings
from keras_tfm.generation import Beam, Contrastive, Greedy, Sample, processors
from keras_tfm.runtime.tokenizers.tokenizer import refusing

# Fields that change the tokens and have no counterpart, and the values that change nothing.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "constraints": (None,),
    "diversity_penalty": (None, 0.0),
    "dola_layers": (None,),
    "encoder_no_repeat_ngram_size": (None, 0),
    "encoder_repetition_penalty": (None, 1.0),
    "epsilon_cutoff": (None, 0.0, 1.0),
    "eta_cutoff": (None, 0.0, 1.0),
    "exponential_decay_length_penalty": (None,),
    "force_words_ids": (None,),
    "guidance_scale": (None, 1.0),
    "num_beam_groups": (None, 1),
    "token_healing": (None, False),
    "top_h": (None,),
    "typical_p": (None, 1.0),
    "watermarking_config": (None,),
}
# What takes the place of other values, unless they are not supported at all.
_INSTEAD = {
    "guidance_scale": "processors.Guidance(scale, prompt) guides, and needs the empty prompt",
}
# Those of them that only sampling reads.
_OF_SAMPLING = ("epsilon_cutoff", "eta_cutoff", "top_h", "typical_p")
# The parts of a `config.json` that may have the fields of `generate`, too.
_DECODERS = ("decoder", "text_config")
# Fields that end a text elsewhere, and change none of its tokens before; and where.
ENDINGS = {
    "max_time": "after some seconds",
    "stop_strings": "at a string; sessions of a file take stop=",
}


def load_generation_config(folder: str | Path, peft: str | Path | None = None) -> Arguments:
    """The arguments with which `generation.generate` does what `generate` of transformers does.

    A checkpoint is published with the search that suits it, such as a beam search that repeats no
    trigram, or sampling at a temperature. transformers follows it unless told otherwise;
    `generation.generate` is greedy until it is given these arguments.

    Args:
        folder: str or Path, a folder saved by `transformers`, or a GGUF file.
        peft: str or Path, the folder of adapters with which the model is loaded. The end token of
            a tokenizer beside them ends a text, too.

    Returns:
        dict, those of `strategy`, `start_id`, `end_id`, `max_length` and `max_new_tokens` that
        `generation_config.json` sets; in an older folder without it, `config.json`; in a GGUF file,
        its keys `general.sampling`. The strategy is always there.

    Raises:
        FileNotFoundError: there is no such folder or file, or it has no configuration.
        ValueError: a value of the wrong type or out of range, or a field that changes the tokens
            and is not supported, such as `typical_p` of sampling; the error names it. `max_time`
            and `stop_strings`, which only end a text earlier, are warnings.

    Example:

    >>> import json, tempfile
    >>> from pathlib import Path
    >>> from keras_tfm.checkpoints import load_generation_config
    >>> fields = {"do_sample": True, "temperature": 0.7, "top_k": 20, "eos_token_id": [7, 9]}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "config.json").write_text("{}")
    ...     _ = Path(folder, "generation_config.json").write_text(json.dumps(fields))
    ...     arguments = load_generation_config(folder)
    >>> arguments["end_id"], arguments["strategy"].temperature, arguments["strategy"].top_k
    ([7, 9], 0.7, 20)
    """
    config = read_generation_config(Path(folder))
    start = config.fields.get("decoder_start_token_id")
    values = {
        "start_id": config.fields.get("bos_token_id") if start is None else start,
        "end_id": end_ids(config.fields.get("eos_token_id"), Path(folder), peft),
        "max_length": config.integer("max_length", None),
        "max_new_tokens": config.integer("max_new_tokens", None),
    }
    arguments = {name: value for name, value in values.items() if value is not None}
    for name, meaning in ENDINGS.items():
        value = config.fields.get(name)
        if value is not None:
            warnings.warn(
                f"{config.file}: {name} {value!r} is not followed: no text ends {meaning}",
                stacklevel=2,
            )
    if "max_new_tokens" in arguments:  # it is the stronger one in transformers
        arguments.pop("max_length", None)
    return {"strategy": strategy_of(config), **arguments}


def end_ids(value: object, base: Path, peft: str | Path | None) -> Any:
    """The end tokens of a base model, `eos_token_id`, and before them that of its adapters.

    A fine-tuned model may end its answers with a token of its chat template. PEFT saves no
    `generation_config.json`, but the tokenizer beside the adapters has it as its end token; the
    trainer of transformers puts it into the list in the same way. Where only the settings of a
    tokenizer are beside the adapters, the end token has the id of the base's tokenizer.
    """
    if peft is None:
        return value
    if not Path(peft).is_dir():
        raise FileNotFoundError(f"peft must be a folder of adapters, got {str(peft)!r}")
    settings = TokenizerSettings(Path(peft))
    text = settings.special_tokens(settings.tokenizer_class).get("eos_token")
    if text is None:
        return value
    end = None
    for folder in (Path(peft), base):
        with contextlib.suppress(FileNotFoundError):
            end = load_tokenizer(folder).token_to_id(text)
            break
    known = value if isinstance(value, list) else [] if value is None else [value]
    return value if end is None or end in known else [end, *known]


def read_generation_config(folder: Path) -> Config:
    """The fields of `generation_config.json`, or of `config.json` in a folder without it.

    In that file those of the decoder count where the model has none, as in transformers.
    """
    config = read_config(folder)
    fields = config.generation_fields
    if fields is None:
        return Config.of(config.file, with_decoder(config.fields))
    return Config.of(config.file.with_name("generation_config.json"), fields)


def with_decoder(fields: Fields) -> Fields:
    """The fields of a `config.json`, and those that only its part for the decoder has.

    >>> from keras_tfm.checkpoints.generation_config import with_decoder
    >>> with_decoder({"eos_token_id": 3, "decoder": {"eos_token_id": 5, "num_beams": 4}})
    {'eos_token_id': 3, 'num_beams': 4}
    """
    parts = [fields[name] for name in _DECODERS if isinstance(fields.get(name), dict)]
    given = {name: x for name, x in fields.items() if x is not None and name not in _DECODERS}
    return {**(parts[0] if parts else {}), **given}


def strategy_of(config: Config) -> Greedy | Beam | Contrastive | Sample:
    """The strategy that the fields of a `generation_config.json` describe.

    Raises:
        ValueError: see `load_generation_config`.
    """
    samples = config.flag("do_sample", False)
    for name, neutral in _UNSUPPORTED.items():
        value = config.fields.get(name)
        if value not in neutral and (samples or name not in _OF_SAMPLING):
            reason = _INSTEAD.get(name, "other values are not supported")
            config.refuse(name, value, f"{neutral[-1]!r}: {reason}")
    beams = config.integer("num_beams", 1)
    hypotheses = config.integer("num_return_sequences", 1)
    if samples and beams > 1:
        config.refuse("num_beams", beams, "1 with do_sample=True")
    if not samples and hypotheses > beams:
        config.refuse("num_return_sequences", hypotheses, f"at most num_beams ({beams})")
    made: Callable[..., Greedy | Beam | Contrastive | Sample] = Greedy
    given: Arguments = {"processors": processors_of(config)}
    top_k, alpha = config.integer("top_k", 50, minimum=0), config.number("penalty_alpha", 0.0)
    if samples:
        made, top_p = Sample, config.number("top_p", 1.0)
        given["temperature"] = config.number("temperature", 1.0)
        given["top_k"], given["top_p"] = top_k or None, top_p if top_p < 1 else None
        given["min_p"], given["hypotheses"] = config.number("min_p", None), hypotheses
    elif beams > 1:
        made = Beam
        given["size"], given["hypotheses"] = beams, hypotheses
        if config.flag("renormalize_logits", False):  # other strategies do so anyway
            given["processors"].append(processors.LogitNormalization())
        for name in ("length_penalty", "early_stopping"):
            if config.fields.get(name) is not None:
                given[name] = config.fields[name]
    elif alpha > 0 and top_k > 1:
        made, given["top_k"], given["alpha"] = Contrastive, top_k, alpha
    with refusing(f"{config.file} cannot be used"):
        return made(**given)


def processors_of(config: Config) -> list[processors.Processor]:
    """The logits processors of the fields, in the order of transformers."""
    forced = config.fields.get("forced_bos_token_id")
    makers: dict[str, Callable[[Any], processors.Processor]] = {
        "sequence_bias": processors.SequenceBias,
        "repetition_penalty": processors.RepetitionPenalty,
        "no_repeat_ngram_size": processors.NoRepeatNGram,
        "bad_words_ids": processors.NoBadWords,
        "min_length": processors.MinLength,
        "min_new_tokens": processors.MinNewTokens,
        "forced_bos_token_id": processors.ForcedBOS,
        "forced_eos_token_id": processors.ForcedEOS,
        "suppress_tokens": processors.SuppressTokens,
        # The token after a forced one is the first that is chosen.
        "begin_suppress_tokens": lambda ids: processors.SuppressTokensAtBegin(
            ids, 0 if forced is None else 1
        ),
    }
    neutral = dict.fromkeys(("no_repeat_ngram_size", "min_length", "min_new_tokens"), 0.0)
    neutral["repetition_penalty"] = 1.0
    made = []
    for name, maker in makers.items():
        value = config.fields.get(name)
        if value is not None and value != [] and value != neutral.get(name):
            with refusing(f"{config.file}: {name} {value!r} cannot be used"):
                made.append(maker(value))
    return made
