"""The model types of `transformers` that load and save: what is said of each, in one place.

The command line, docs/families.md, docs/huggingface.md and `checkpoints.load_huggingface` read this
list. It imports nothing, so that the help of a command needs no TensorFlow.

Example:

>>> from keras_tfm.model_types import MODEL_TYPES, names_of
>>> next(x.title for x in MODEL_TYPES if x.name == "qwen2")
'Qwen2'
>>> names_of("speech")
['whisper']
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

# What a model reads, and in which table of docs/huggingface.md it stands.
KINDS = ("encoder", "decoder", "encoder-decoder", "images", "images and texts", "speech")
_PAD_1 = "`pad_token_id`, usually 1"


@dataclass(frozen=True)
class ModelType:
    """A `model_type` of `config.json`.

    Attributes:
        name: str, the `model_type`.
        title: str, the name of the family in texts.
        table: str, "module:NAME" of its `Family` in `keras_tfm.checkpoints`.
        call: str, the builder of `keras_tfm.models`, with the arguments that make it this family.
        kind: str, one of `KINDS`.
        padding: str, the id of padding in Markdown; "" of a model without padding of its own.
        vocabularies: dict from the first letters of a size's name to the number of ids of its
            checkpoints; "" stands for every other size of the builder.
        tokenizer: str, the class of `transformers` in a folder whose `tokenizer_config.json` names
            none.
    """

    name: str
    title: str
    table: str
    call: str
    kind: str
    padding: str = ""
    vocabularies: Mapping[str, int] = field(default_factory=dict)
    tokenizer: str = ""


# Of several types with one builder, a model is saved as the first whose `is_of` it satisfies.
MODEL_TYPES = (
    ModelType(
        "bert", "BERT", "encoders.bert:BERT", "bert", "encoder", "0", {"": 30522},
        tokenizer="BertTokenizer",
    ),
    ModelType(
        "roberta", "RoBERTa", "encoders.roberta:ROBERTA", "roberta", "encoder", _PAD_1,
        {"": 50265, "xlm": 250002},
        tokenizer="RobertaTokenizer",
    ),
    ModelType(
        "xlm-roberta", "XLM-R", "encoders.roberta:XLM_ROBERTA", "roberta(multilingual=True)",
        "encoder",
        _PAD_1,
        tokenizer="XLMRobertaTokenizer",
    ),
    ModelType(
        "distilbert", "DistilBERT", "encoders.distilbert:DISTILBERT", "distilbert", "encoder", "0",
        {"": 30522},
        tokenizer="BertTokenizer",
    ),
    ModelType(
        "electra", "ELECTRA", "encoders.electra:ELECTRA", "electra", "encoder", "0", {"": 30522},
        tokenizer="BertTokenizer",
    ),
    ModelType(
        "albert", "ALBERT", "encoders.albert:ALBERT", "albert", "encoder", "0", {"": 30000},
        tokenizer="AlbertTokenizer",
    ),
    ModelType(
        "deberta-v2", "DeBERTa v2, v3, mDeBERTa", "encoders.deberta:DEBERTA", "deberta",
        "encoder", "0",
        {"": 128100},
    ),
    ModelType(
        "openai-gpt", "GPT", "decoders.gpt:GPT1", "gpt(normalize_first=False)", "decoder",
        tokenizer="OpenAIGPTTokenizer",
    ),
    ModelType(
        "gpt_neo", "GPT-Neo", "decoders.gpt_neo:GPT_NEO",
        'gpt(windows=..., attention_bias=["output"])', "decoder", "", {"": 50257},
        tokenizer="GPT2Tokenizer",
    ),
    ModelType(
        "gpt2", "GPT-2", "decoders.gpt:GPT2", "gpt", "decoder", "", {"": 50257, "gpt1": 40478},
        tokenizer="GPT2Tokenizer",
    ),
    ModelType(
        "qwen3", "Qwen3", "decoders.llama:QWEN3", "llama(query_key_norm=True)", "decoder",
        tokenizer="Qwen2Tokenizer",
    ),
    ModelType(
        "qwen2", "Qwen2", "decoders.llama:QWEN2", "llama(attention_bias=...)", "decoder",
        tokenizer="Qwen2Tokenizer",
    ),
    ModelType("mistral", "Mistral", "decoders.llama:MISTRAL", "llama(windows=...)", "decoder"),
    ModelType(
        "llama", "Llama, SmolLM", "decoders.llama:LLAMA", "llama", "decoder", "",
        {
            "": 32000, "smollm2": 49152, "qwen": 151936, "llama3": 128256, "llama-3": 128256,
            "mistral": 32768,
        },
        tokenizer="LlamaTokenizer",
    ),
    ModelType(
        "gemma3_text", "Gemma 3, text", "decoders.gemma:GEMMA3",
        "gemma(post_norm=True, query_key_norm=True)", "decoder",
        tokenizer="GemmaTokenizer",
    ),
    ModelType(
        "gemma2", "Gemma 2", "decoders.gemma:GEMMA2", "gemma(post_norm=True)", "decoder",
        tokenizer="GemmaTokenizer",
    ),
    ModelType(
        "gemma", "Gemma", "decoders.gemma:GEMMA", "gemma", "decoder", "", {"": 256000, "gemma3":
        262144},
        tokenizer="GemmaTokenizer",
    ),
    ModelType(
        "olmo2", "OLMo 2", "decoders.olmo2:OLMO2", "olmo2", "decoder", "", {"": 100352},
        tokenizer="GPT2Tokenizer",
    ),
    ModelType(
        "t5", "T5 1.0 and 1.1", "encoder_decoders.t5:T5", "t5", "encoder-decoder",
        "0 in the source", {"": 32128},
        tokenizer="T5Tokenizer",
    ),
    ModelType(
        "bart", "BART", "encoder_decoders.bart:BART", "bart", "encoder-decoder", _PAD_1, {"":
        50265},
        tokenizer="RobertaTokenizer",
    ),
    ModelType(
        "mbart", "mBART, mBART-50", "encoder_decoders.bart:MBART", "mbart", "encoder-decoder",
        _PAD_1, {"": 250027}
    ),
    ModelType(
        "pegasus", "PEGASUS", "encoder_decoders.bart:PEGASUS", "pegasus", "encoder-decoder",
        "0, also the start of the target", {"": 96103},
    ),
    ModelType(
        "marian", "Marian (OPUS-MT)", "encoder_decoders.bart:MARIAN", "marian", "encoder-decoder",
        "`pad_token_id`, usually the last id, also the start of the target", {"": 58101},
        tokenizer="MarianTokenizer",
    ),
    ModelType(
        "whisper", "Whisper", "encoder_decoders.whisper:WHISPER", "whisper", "speech", "",
        {"": 51865, "large-v3": 51866},
    ),
    ModelType("vit", "ViT", "vision.vit:VIT", "vit", "images"),
    ModelType("deit", "DeiT", "vision.vit:DEIT", "vit(distillation_token=True)", "images"),
    ModelType("dinov2", "DINOv2", "vision.dinov2:DINOV2", "vit(layer_scale=1.0)", "images"),
    ModelType(
        "dinov2_with_registers", "DINOv2 with registers", "vision.dinov2:DINOV2_WITH_REGISTERS",
        "vit(layer_scale=1.0, num_registers=4, antialias=True)", "images",
    ),
    ModelType("resnet", "ResNet", "vision.resnet:RESNET", "resnet", "images"),
    ModelType("detr", "DETR", "vision.detr:DETR", "detr", "images"),
    ModelType(
        "flava_image_codebook", "FLAVA's codebook", "gallery.flava:FLAVA_CODEBOOK",
        "dvae_encoder", "images"
    ),
    ModelType(
        "imagegpt", "Image GPT", "gallery.image_gpt:IMAGE_GPT", "image_gpt", "images", "", {"": 512}
    ),
    ModelType("clip", "CLIP", "vision.clip:CLIP", "clip", "images and texts"),
    ModelType(
        "clip_vision_model", "CLIP, images", "vision.clip:CLIP_IMAGE", "clip_image",
        "images and texts"
    ),
    ModelType(
        "clip_text_model", "CLIP, texts", "vision.clip:CLIP_TEXT", "clip_text", "images and texts"
    ),
    ModelType(
        "lxmert", "LXMERT", "gallery.lxmert:LXMERT", "lxmert", "images and texts", "0", {"": 30522}
    ),
)  # fmt: skip


def names_of(*kinds: str) -> list[str]:
    """The names of the model types of some `KINDS`, in alphabetical order."""
    return sorted(x.name for x in MODEL_TYPES if x.kind in kinds)
