"""Which form a page needs, told from a file's manifest.

>>> from keras_tfm.web.kinds import FORMS
>>> FORMS["search"]
'Search by meaning'
"""

from keras_tfm.runtime.manifest.manifest import (
    AnySignature,
    Decode,
    Encode,
    Generate,
    Manifest,
    Predict,
    Signature,
    Stream,
    of_role,
)

# The forms, each a .html and a .js file of keras_tfm/web/app, with the default title of a page.
FORMS = {
    "chat": "Chat",
    "write": "Write",
    "classify": "Classify a text",
    "search": "Search by meaning",
    "pictures": "Pictures",
    "pairs": "Pictures and words",
    "speech": "Speech to text",
    "live": "Live speech",
}
# The dtypes of the inputs and outputs that LiteRT.js has.
DTYPES = ("float32", "int32", "uint8")


def form_of(manifest: Manifest) -> str:
    """The name of the form for a file, one of `FORMS`.

    Raises:
        ValueError: no form fits the file, or LiteRT.js does not run it.
    """
    for name, signature in manifest.signatures.items():
        for key, x in [*signature.inputs.items(), *signature.outputs.items()]:
            if x.dtype not in DTYPES:
                instead = ': export it with cache="float32"' if manifest.cache == "int8" else ""
                raise ValueError(
                    f"{key} of its signature {name} is {x.dtype}, and LiteRT.js takes "
                    f"{', '.join(DTYPES)}{instead}"
                )
    is_live = _hears_in_pieces(manifest)
    if is_live and manifest.models and _of(manifest, Generate):
        if any(x.tokenizers for x in manifest.models.values()):
            return "live"
        raise ValueError("its decoder has no tokenizer: export it with tokenizer=")
    if is_live and manifest.labels is not None and manifest.labels[:1] == [""]:
        return "live"
    if manifest.models:
        inputs = [x for s in _of(manifest, Predict) for x in s.inputs.values()]
        reads_both = any(x.is_pixels for x in inputs) and any(x.is_ids for x in inputs)
        if reads_both and all(x.images or x.tokenizers for x in manifest.models.values()):
            return "pairs"
        raise _no_form(manifest, f"of the models {list(manifest.models)}")
    form = _form_of_one(manifest)
    writes = bool([*_of(manifest, Generate), *_of(manifest, Decode)])
    if form == "pictures" and not manifest.images:
        raise ValueError("it has no rules for pictures: export it with images=")
    if writes or form not in ("pictures", "speech"):
        if not manifest.tokenizers:
            raise ValueError("it has no tokenizer: export it with tokenizer=")
        for name in manifest.tokenizers.values():
            if not name.endswith(".json"):
                raise ValueError(f"a page reads tokenizer.json, but its tokenizer is {name}")
    return form


def _form_of_one(manifest: Manifest) -> str:
    encoders, predictors = _of(manifest, Encode), _of(manifest, Predict)
    loops, steps = _of(manifest, Generate), _of(manifest, Decode)
    readers: list[Signature] = [*encoders, *loops, *predictors]
    inputs = [x for signature in readers for x in signature.inputs.values()]
    if any(x.is_audio for x in inputs):
        return "speech"
    if any(x.is_pixels for x in inputs):
        outputs = [x.outputs for x in predictors]
        shapes = [x.shape for found in outputs for x in found.values()]
        detects = any({"logits", "boxes"} <= found.keys() for found in outputs)
        if loops or steps or detects or any(len(x) == 2 for x in shapes):
            return "pictures"
        raise _no_form(manifest, f"whose outputs have the shapes {shapes}")
    if steps and not encoders:
        return "chat" if manifest.chat_template else "write"
    if steps or any(x.prompt is None for x in loops):
        return "write"
    if loops:
        raise ValueError(
            "its generate takes prompts, which a page steps: export it with "
            "signatures=['prefill', 'decode']"
        )
    if _hears_in_pieces(manifest):
        raise ValueError("a page of live speech needs labels=, of which the first is the blank, ''")
    if not any(x.is_ids for x in inputs):
        raise _no_form(manifest, f"with the signatures {list(manifest.signatures)}")
    head = manifest.model.head if manifest.model else None
    if head is not None and head.kind == "sentence_embedding":
        return "search"
    shapes = [x.shape for x in predictors[0].outputs.values()]
    if len(shapes) == 1 and len(shapes[0]) == 2:
        return "classify"
    raise _no_form(manifest, f"whose outputs have the shapes {shapes}")


def _hears_in_pieces(manifest: Manifest) -> bool:
    return any(x.is_audio for s in _of(manifest, Stream) for x in s.inputs.values())


def _of(manifest: Manifest, role: type[AnySignature]) -> list[AnySignature]:
    return [*of_role(manifest.signatures, role).values()]


def _no_form(manifest: Manifest, detail: str) -> ValueError:
    family = manifest.model.family if manifest.model else "a model"
    return ValueError(f"there is no form for {family}, {detail}: forms are {', '.join(FORMS)}")
