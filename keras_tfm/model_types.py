"""The model types of `transformers` that load and save: what is said of each, in one place.

The command line, docs/api/models.md, `checkpoints.load_huggingface` and the tests of every family
read this list. It imports nothing, so that the help of a command needs no TensorFlow.

Example:

>>> from keras_tfm.model_types import MODEL_TYPES, names_of
>>> next(x.title for x in MODEL_TYPES if x.name == "qwen2")
'Qwen2'
>>> names_of("speech")
['hubert', 'moonshine', 'moonshine_streaming', 'wav2vec2', 'whisper']
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

# What a model reads and computes, with the headings of docs/api/models.md.
KINDS = {
    "encoder": "Encoders",
    "decoder": "Decoder-only models (LLMs)",
    "encoder-decoder": "Encoder-decoder models",
    "images": "Images",
    "images and texts": "Images and texts",
    "speech": "Speech",
}


class _Call(str):
    """An argument that is no literal, as one writes it."""

    def __repr__(self) -> str:
        return str(self)


_PAD_0, _PAD_1 = "`pad_token_id`, usually 0", "`pad_token_id`, usually 1"


@dataclass(frozen=True)
class ModelType:
    """A `model_type` of `config.json`.

    Attributes:
        name: str, the `model_type`.
        title: str, the name of the family in texts.
        table: str, "module:NAME" of its `Family` in `keras_tfm.checkpoints`.
        builder: str, the name of the builder in `keras_tfm.models`.
        kind: str, one of `KINDS`.
        padding: str, the id of padding in Markdown; "" of a model without padding of its own.
        vocabularies: dict from the first letters of a size's name to the number of ids of its
            checkpoints; "" stands for every other size of the builder.
        tokenizer: str, the class of `transformers` in a folder whose `tokenizer_config.json` names
            none.
        arguments: dict, the builder's arguments that tell this family from the builder's others.
    """

    name: str
    title: str
    table: str
    builder: str
    kind: str
    padding: str = ""
    vocabularies: Mapping[str, int] = field(default_factory=dict)
    tokenizer: str = ""
    arguments: Mapping[str, object] = field(default_factory=dict)

    @property
    def call(self) -> str:
        """The builder with its arguments, as one writes it: `llama(windows=4096)`."""
        arguments = ", ".join(f"{name}={x!r}" for name, x in self.arguments.items())
        arguments = arguments.replace("'", '"')
        return f"{self.builder}({arguments})" if arguments else self.builder


# Of several types with one builder, a model is saved as the first whose `is_of` it satisfies.
MODEL_TYPES = (
    ModelType(
        "bert", "BERT", "encoders.bert:BERT", "bert", "encoder", padding=_PAD_0,
        vocabularies={"": 30522}, tokenizer="BertTokenizer",
    ),
    ModelType(
        "roberta", "RoBERTa", "encoders.roberta:ROBERTA", "roberta", "encoder", padding=_PAD_1,
        vocabularies={"": 50265, "xlm": 250002}, tokenizer="RobertaTokenizer",
    ),
    ModelType(
        "xlm-roberta", "XLM-R", "encoders.roberta:XLM_ROBERTA", "roberta", "encoder",
        arguments={"multilingual": True}, padding=_PAD_1, tokenizer="XLMRobertaTokenizer",
    ),
    ModelType(
        "camembert", "CamemBERT", "encoders.roberta:CAMEMBERT", "roberta", "encoder",
        arguments={"model_type": "camembert"}, padding=_PAD_1, tokenizer="CamembertTokenizer",
    ),
    ModelType(
        "distilbert", "DistilBERT", "encoders.distilbert:DISTILBERT", "distilbert", "encoder",
        padding=_PAD_0, vocabularies={"": 30522}, tokenizer="BertTokenizer",
    ),
    ModelType(
        "electra", "ELECTRA", "encoders.electra:ELECTRA", "electra", "encoder", padding=_PAD_0,
        vocabularies={"": 30522}, tokenizer="BertTokenizer",
    ),
    ModelType(
        "albert", "ALBERT", "encoders.albert:ALBERT", "albert", "encoder", padding=_PAD_0,
        vocabularies={"": 30000}, tokenizer="AlbertTokenizer",
    ),
    ModelType(
        "deberta-v2", "DeBERTa v2 and v3, mDeBERTa", "encoders.deberta:DEBERTA", "deberta",
        "encoder", padding=_PAD_0, vocabularies={"": 128100},
        tokenizer="DebertaV2Tokenizer",
    ),
    ModelType(
        "mobilebert", "MobileBERT", "encoders.mobilebert:MOBILEBERT", "mobilebert", "encoder",
        padding=_PAD_0, vocabularies={"": 30522}, tokenizer="BertTokenizer",
    ),
    ModelType(
        "modernbert", "ModernBERT, Ettin", "encoders.modernbert:MODERNBERT", "modernbert",
        "encoder", padding="`pad_token_id`, usually 50283", vocabularies={"": 50368},
    ),
    ModelType(
        "mpnet", "MPNet", "encoders.mpnet:MPNET", "mpnet", "encoder", padding=_PAD_1,
        vocabularies={"": 30527}, tokenizer="MPNetTokenizer",
    ),
    ModelType(
        "nomic_bert", "NomicBERT, nomic-embed-text", "encoders.nomic_bert:NOMIC_BERT",
        "nomic_bert", "encoder", padding=_PAD_0, vocabularies={"": 30528},
        tokenizer="BertTokenizer",
    ),
    ModelType(
        "gte", "GTE", "encoders.gte:GTE", "nomic_bert", "encoder",
        arguments={"attention_bias": True, "feed_forward_bias": ["outer"]}, padding=_PAD_1,
        vocabularies={"gte": 250048}, tokenizer="XLMRobertaTokenizer",
    ),
    ModelType(
        "eurobert", "EuroBERT", "encoders.eurobert:EUROBERT", "llama", "encoder",
        arguments={"causal": False, "classifier_activation": "gelu"},
        padding="`pad_token_id`, usually 128001",
    ),
    ModelType(
        "opt", "OPT", "decoders.gpt:OPT", "gpt", "decoder",
        arguments={"position_offset": 2}, tokenizer="GPT2Tokenizer",
    ),
    ModelType(
        "openai-gpt", "GPT", "decoders.gpt:GPT1", "gpt", "decoder",
        arguments={"normalize_first": False}, tokenizer="OpenAIGPTTokenizer",
    ),
    ModelType(
        "gpt_neo", "GPT-Neo", "decoders.gpt_neo:GPT_NEO", "gpt", "decoder",
        arguments={"windows": [None, 256], "attention_bias": ["output"], "scale_scores": False},
        vocabularies={"": 50257}, tokenizer="GPT2Tokenizer",
    ),
    ModelType(
        "phi", "Phi-1, Phi-1.5, Phi-2", "decoders.gpt_neox:PHI", "gpt_neox", "decoder",
        arguments={"parallel": "one_residual", "output_bias": True}, tokenizer="GPT2Tokenizer",
    ),
    ModelType(
        "starcoder2", "StarCoder 2", "decoders.gpt_neox:STARCODER2", "gpt_neox", "decoder",
        arguments={"parallel": False, "num_key_value_heads": 2}, tokenizer="GPT2Tokenizer",
    ),
    ModelType(
        "falcon", "Falcon", "decoders.gpt_neox:FALCON", "gpt_neox", "decoder",
        arguments={
            "parallel": "one_residual", "num_key_value_heads": 1, "attention_bias": False,
            "feed_forward_bias": False,
        },
    ),
    ModelType(
        "bloom", "BLOOM", "decoders.gpt_neox:BLOOM", "gpt_neox", "decoder",
        arguments={"alibi": True, "parallel": False, "embedding_norm": True},
    ),
    ModelType(
        "gptj", "GPT-J", "decoders.gpt_neox:GPTJ", "gpt_neox", "decoder",
        arguments={
            "interleaved": True, "parallel": "one_residual", "attention_bias": False,
            "output_bias": True,
        },
        tokenizer="GPT2Tokenizer",
    ),
    ModelType(
        "codegen", "CodeGen", "decoders.gpt_neox:CODEGEN", "gpt_neox", "decoder",
        arguments={
            "interleaved": True, "parallel": "one_residual", "attention_bias": False,
            "output_bias": True, "model_type": "codegen",
        },
        tokenizer="GPT2Tokenizer",
    ),
    ModelType(
        "stablelm", "StableLM", "decoders.cohere:STABLELM", "gpt_neox", "decoder",
        arguments={
            "gated": True, "activation": "silu", "parallel": False, "attention_bias": False,
            "feed_forward_bias": False,
        },
    ),
    ModelType(
        "nemotron", "Nemotron, Minitron", "decoders.cohere:NEMOTRON", "gpt_neox", "decoder",
        arguments={"parallel": False, "attention_bias": False, "feed_forward_bias": False},
    ),
    ModelType(
        "olmo", "OLMo", "decoders.cohere:OLMO", "gpt_neox", "decoder",
        arguments={
            "gated": True, "activation": "silu", "parallel": False, "attention_bias": False,
            "feed_forward_bias": False, "norm_weights": False,
        },
        tokenizer="GPTNeoXTokenizer",
    ),
    ModelType(
        "gpt_neox", "GPT-NeoX, Pythia", "decoders.gpt_neox:GPT_NEOX", "gpt_neox", "decoder",
        vocabularies={
            "": 50304, "20b": 50432, "pythia-6.9b": 50432, "pythia-12b": 50688, "phi": 51200,
            "starcoder2": 49152, "falcon": 65024, "bloom": 250880, "gpt-j": 50400,
            "codegen": 51200, "stablelm-2": 100352, "minitron": 256000,
        },
        tokenizer="GPTNeoXTokenizer",
    ),
    ModelType(
        "gpt2", "GPT-2", "decoders.gpt:GPT2", "gpt", "decoder",
        vocabularies={"": 50257, "gpt1": 40478, "opt": 50272}, tokenizer="GPT2Tokenizer",
    ),
    ModelType(
        "qwen3_5_text", "Qwen3.5 (text)", "decoders.qwen3_5:QWEN3_5", "qwen3_5", "decoder",
        vocabularies={"": 248320}, tokenizer="Qwen2Tokenizer",
    ),
    ModelType(
        "helium", "Helium", "decoders.ernie4_5:HELIUM", "llama", "decoder",
        arguments={"interleaved": True, "model_type": "helium"},
    ),
    ModelType(
        "arcee", "Arcee (AFM)", "decoders.llama:ARCEE", "llama", "decoder",
        arguments={"gated": False},
    ),
    ModelType(
        "ernie4_5", "ERNIE 4.5 (dense)", "decoders.ernie4_5:ERNIE4_5", "llama", "decoder",
        arguments={"interleaved": True}, tokenizer="LlamaTokenizer",
    ),
    ModelType(
        "hunyuan_v1_dense", "HunYuan (dense)", "decoders.hunyuan:HUNYUAN", "llama", "decoder",
        arguments={"query_key_norm": True, "rotate_first": True},
    ),
    ModelType(
        "ministral3", "Ministral 3 (text)", "decoders.ministral3:MINISTRAL3", "llama", "decoder",
        arguments={"query_beta": 0.1},
    ),
    ModelType(
        "qwen3_moe", "Qwen3-MoE", "decoders.experts:QWEN3_MOE", "llama", "decoder",
        arguments={"experts": _Call("Experts(Routing(...))"), "query_key_norm": True},
        tokenizer="Qwen2Tokenizer",
    ),
    ModelType(
        "qwen2_moe", "Qwen2-MoE", "decoders.experts:QWEN2_MOE", "llama", "decoder",
        arguments={"experts": _Call("Experts(Routing(...), shared_gate=True, ...)")},
        tokenizer="Qwen2Tokenizer",
    ),
    ModelType(
        "mixtral", "Mixtral", "decoders.experts:MIXTRAL", "llama", "decoder",
        arguments={"experts": _Call("Experts(Routing(...))")}, tokenizer="LlamaTokenizer",
    ),
    ModelType(
        "qwen3", "Qwen3, Qwen3-Embedding", "decoders.llama:QWEN3", "llama", "decoder",
        arguments={"query_key_norm": True}, tokenizer="Qwen2Tokenizer",
    ),
    ModelType(
        "qwen2", "Qwen2", "decoders.llama:QWEN2", "llama", "decoder",
        arguments={"attention_bias": ["query", "key", "value"]}, tokenizer="Qwen2Tokenizer",
    ),
    ModelType(
        "ministral", "Ministral", "decoders.llama:MINISTRAL", "llama", "decoder",
        arguments={"windows": [None, 32768]},
    ),
    ModelType(
        "mistral", "Mistral", "decoders.llama:MISTRAL", "llama", "decoder",
        arguments={"windows": 4096},
    ),
    ModelType(
        "llama", "Llama, SmolLM", "decoders.llama:LLAMA", "llama", "decoder",
        vocabularies={
            "": 32000, "smollm2": 49152, "qwen": 151936, "llama3": 128256, "llama-3": 128256,
            "mistral": 32768, "mixtral": 32000, "ernie": 103424, "ministral3": 131072,
            "eurobert": 128256,
        },
        tokenizer="LlamaTokenizer",
    ),
    ModelType(
        "lfm2_moe", "LFM2-MoE (8B-A1B)", "decoders.lfm2:LFM2_MOE", "lfm2", "decoder",
        arguments={"experts": _Call('Experts(Routing(32, 4, "sigmoid"), ...)')},
    ),
    ModelType(
        "lfm3", "LFM3", "decoders.lfm2:LFM3", "lfm2", "decoder",
        arguments={"post_norm": True, "attention_gate": True},
    ),
    ModelType(
        "lfm2", "LFM2, LFM2.5 (text)", "decoders.lfm2:LFM2", "lfm2", "decoder",
        vocabularies={"": 65536, "lfm3": 128000},
    ),
    ModelType(
        "gemma4_text", "Gemma 4 (text)", "decoders.gemma4:GEMMA4", "gemma4", "decoder",
        vocabularies={"": 262144}, tokenizer="GemmaTokenizer",
    ),
    ModelType(
        "gemma3_text", "Gemma 3 (text), EmbeddingGemma", "decoders.gemma:GEMMA3", "gemma",
        "decoder", arguments={"post_norm": True, "query_key_norm": True},
        tokenizer="GemmaTokenizer",
    ),
    ModelType(
        "gemma2", "Gemma 2", "decoders.gemma:GEMMA2", "gemma", "decoder",
        arguments={"post_norm": True}, tokenizer="GemmaTokenizer",
    ),
    ModelType(
        "gemma", "Gemma", "decoders.gemma:GEMMA", "gemma", "decoder",
        vocabularies={"": 256000, "gemma3": 262144, "embeddinggemma": 262144},
        tokenizer="GemmaTokenizer",
    ),
    ModelType(
        "exaone4", "EXAONE 4.0", "decoders.olmo2:EXAONE4", "olmo2", "decoder",
        arguments={"head_norm": True},
    ),
    ModelType(
        "olmo3", "OLMo 3", "decoders.olmo2:OLMO3", "olmo2", "decoder",
        arguments={"windows": [4096, None]}, tokenizer="GPT2Tokenizer",
    ),
    ModelType(
        "olmo2", "OLMo 2", "decoders.olmo2:OLMO2", "olmo2", "decoder",
        vocabularies={"": 100352, "olmo3": 100278, "exaone4": 102400},
        tokenizer="GPT2Tokenizer",
    ),
    ModelType(
        "granitemoe", "Granite 3 MoE", "decoders.granite:GRANITE_MOE", "granite", "decoder",
        arguments={"experts": _Call("Experts(Routing(...))")},
    ),
    ModelType(
        "granite", "Granite", "decoders.granite:GRANITE", "granite", "decoder",
        vocabularies={"": 49159, "3.0": 49155},
    ),
    ModelType(
        "granitemoehybrid", "Granite 4.0 (dense, hybrid, MoE)", "decoders.granite4:GRANITE4",
        "granite4", "decoder", vocabularies={"": 100352},
    ),
    ModelType(
        "falcon_h1", "Falcon-H1", "decoders.granite4:FALCON_H1", "falcon_h1", "decoder",
        vocabularies={"": 32784},
    ),
    ModelType(
        "mamba2", "Mamba-2", "decoders.granite4:MAMBA2", "mamba2", "decoder",
        vocabularies={"": 50288}, tokenizer="GPTNeoXTokenizer",
    ),
    ModelType(
        "modernbert-decoder", "ModernBERT as a decoder, Ettin",
        "encoders.modernbert:MODERNBERT_DECODER", "modernbert_decoder", "decoder",
        vocabularies={"": 50368},
    ),
    ModelType(
        "glm4", "GLM-4-0414", "decoders.phi3:GLM4", "glm", "decoder", arguments={"post_norm": True},
    ),
    ModelType(
        "glm", "GLM-4, GLM-Edge", "decoders.phi3:GLM", "glm", "decoder",
        vocabularies={"": 151552},
    ),
    ModelType(
        "phi3", "Phi-3, Phi-4-mini", "decoders.phi3:PHI3", "phi3", "decoder",
        vocabularies={"": 32064, "4-mini": 200064}, tokenizer="LlamaTokenizer",
    ),
    ModelType(
        "smollm3", "SmolLM3", "decoders.smollm3:SMOLLM3", "smollm3", "decoder",
        vocabularies={"": 128256},
    ),
    ModelType(
        "cohere2", "Cohere 2 (Command R7B)", "decoders.cohere:COHERE2", "cohere", "decoder",
        arguments={"windows": [4096, None], "global_rotary": False}, tokenizer="CohereTokenizer",
    ),
    ModelType(
        "cohere", "Cohere (Command R)", "decoders.cohere:COHERE", "cohere", "decoder",
        vocabularies={"": 256000}, tokenizer="CohereTokenizer",
    ),
    ModelType(
        "umt5", "uMT5", "encoder_decoders.t5:UMT5", "t5", "encoder-decoder",
        arguments={"shared_positions": False}, padding="`pad_token_id` in the source, usually 0",
        tokenizer="T5Tokenizer",
    ),
    ModelType(
        "mt5", "mT5", "encoder_decoders.t5:MT5", "t5", "encoder-decoder",
        arguments={"multilingual": True}, padding="`pad_token_id` in the source, usually 0",
        tokenizer="T5Tokenizer",
    ),
    ModelType(
        "t5", "T5 1.0 and 1.1, MADLAD-400", "encoder_decoders.t5:T5", "t5", "encoder-decoder",
        padding="`pad_token_id` in the source, usually 0",
        vocabularies={"": 32128, "mt5": 250112, "umt5": 256384, "madlad": 256000},
        tokenizer="T5Tokenizer",
    ),
    ModelType(
        "t5gemma", "T5Gemma", "encoder_decoders.t5gemma:T5GEMMA", "t5gemma", "encoder-decoder",
        padding="`pad_token_id` in the source, usually 0", vocabularies={"": 256000},
        tokenizer="GemmaTokenizer",
    ),
    ModelType(
        "t5gemma2", "T5Gemma 2 (text)", "encoder_decoders.t5gemma2:T5GEMMA2", "t5gemma2",
        "encoder-decoder", padding="`pad_token_id` in the source, usually 0",
        vocabularies={"": 262144}, tokenizer="GemmaTokenizer",
    ),
    ModelType(
        "bart", "BART", "encoder_decoders.bart:BART", "bart", "encoder-decoder", padding=_PAD_1,
        vocabularies={"": 50265}, tokenizer="RobertaTokenizer",
    ),
    ModelType(
        "mbart", "mBART, mBART-50", "encoder_decoders.bart:MBART", "mbart", "encoder-decoder",
        padding=_PAD_1, vocabularies={"": 250027}, tokenizer="MBartTokenizer",
    ),
    ModelType(
        "pegasus", "PEGASUS", "encoder_decoders.bart:PEGASUS", "pegasus", "encoder-decoder",
        padding="0, also the start of the target", vocabularies={"": 96103},
        tokenizer="PegasusTokenizer",
    ),
    ModelType(
        "marian", "Marian (OPUS-MT)", "encoder_decoders.bart:MARIAN", "marian", "encoder-decoder",
        padding="`pad_token_id`, usually the last id, also the start of the target",
        vocabularies={"": 58101}, tokenizer="MarianTokenizer",
    ),
    ModelType(
        "m2m_100", "M2M-100, NLLB-200", "encoder_decoders.bart:M2M_100", "m2m_100",
        "encoder-decoder", padding=_PAD_1, vocabularies={"": 128112, "nllb": 256206},
        tokenizer="M2M100Tokenizer",
    ),
    ModelType(
        "whisper", "Whisper", "encoder_decoders.whisper:WHISPER", "whisper", "speech",
        vocabularies={"": 51865, "large-v3": 51866},
    ),
    ModelType(
        "moonshine", "Moonshine", "encoder_decoders.moonshine:MOONSHINE", "moonshine", "speech",
        vocabularies={"": 32768},
    ),
    ModelType(
        "moonshine_streaming", "Moonshine v2",
        "encoder_decoders.moonshine_streaming:MOONSHINE_STREAMING", "moonshine_streaming", "speech",
        vocabularies={"": 32768},
    ),
    ModelType(
        "wav2vec2", "wav2vec 2.0, XLS-R", "encoders.wav2vec2:WAV2VEC2", "wav2vec2", "speech",
    ),
    ModelType(
        "hubert", "HuBERT", "encoders.wav2vec2:HUBERT", "wav2vec2", "speech",
        arguments={"hubert": True},
    ),
    ModelType("vit", "ViT", "vision.vit:VIT", "vit", "images"),
    ModelType(
        "deit", "DeiT", "vision.vit:DEIT", "vit", "images", arguments={"distillation_token": True},
    ),
    ModelType(
        "dinov2", "DINOv2", "vision.dinov2:DINOV2", "vit", "images",
        arguments={"layer_scale": 1.0},
    ),
    ModelType(
        "dinov2_with_registers", "DINOv2 with registers", "vision.dinov2:DINOV2_WITH_REGISTERS",
        "vit", "images", arguments={"layer_scale": 1.0, "num_registers": 4, "antialias": True},
    ),
    ModelType(
        "dinov3_vit", "DINOv3", "vision.dinov3:DINOV3", "vit", "images",
        arguments={
            "layer_scale": 1.0, "num_registers": 4, "max_wavelength": 100.0,
            "attention_bias": ["query", "value"],
        },
    ),
    ModelType(
        "depth_anything", "Depth Anything 1 and 2",
        "vision.depth_anything:DEPTH_ANYTHING", "depth_anything", "images",
    ),
    ModelType("resnet", "ResNet", "vision.resnet:RESNET", "resnet", "images"),
    ModelType("detr", "DETR", "vision.detr:DETR", "detr", "images"),
    ModelType(
        "flava_image_codebook", "FLAVA's codebook", "gallery.flava:FLAVA_CODEBOOK", "dvae_encoder",
        "images",
    ),
    ModelType(
        "imagegpt", "Image GPT", "gallery.image_gpt:IMAGE_GPT", "image_gpt", "images",
        vocabularies={"": 512},
    ),
    ModelType(
        "vision-encoder-decoder", "TrOCR, ViT with GPT-2, BERT or RoBERTa",
        "encoder_decoders.vision_encoder_decoder:VISION_ENCODER_DECODER", "vision_encoder_decoder",
        "images and texts", vocabularies={"": 50265, "small": 64044},
    ),
    ModelType("clip", "CLIP", "vision.clip:CLIP", "clip", "images and texts"),
    ModelType(
        "clip_vision_model", "CLIP (images)", "vision.clip:CLIP_IMAGE", "clip_image",
        "images and texts",
    ),
    ModelType(
        "clip_text_model", "CLIP (texts)", "vision.clip:CLIP_TEXT", "clip_text", "images and texts",
    ),
    ModelType(
        "siglip2", "SigLIP 2 NaFlex", "vision.siglip:SIGLIP2", "siglip", "images and texts",
        padding="`pad_id`, which attention sees", arguments={"image": {"naflex": True}},
    ),
    ModelType(
        "siglip2_vision_model", "SigLIP 2 NaFlex (images)", "vision.siglip:SIGLIP2_IMAGE",
        "siglip_image", "images and texts", arguments={"naflex": True},
    ),
    ModelType(
        "siglip", "SigLIP, SigLIP 2", "vision.siglip:SIGLIP", "siglip", "images and texts",
        padding="`pad_id`, which attention sees",
    ),
    ModelType(
        "siglip_vision_model", "SigLIP (images)", "vision.siglip:SIGLIP_IMAGE", "siglip_image",
        "images and texts",
    ),
    ModelType(
        "siglip_text_model", "SigLIP (texts)", "vision.siglip:SIGLIP_TEXT", "siglip_text",
        "images and texts", padding="`pad_id`, which attention sees",
    ),
    ModelType(
        "idefics3", "Idefics3, SmolVLM", "vision.smolvlm:IDEFICS3", "smolvlm", "images and texts",
        arguments={"idefics3": True}, tokenizer="GPT2Tokenizer",
    ),
    ModelType(
        "smolvlm", "SmolVLM2", "vision.smolvlm:SMOLVLM", "smolvlm", "images and texts",
        vocabularies={"": 49280}, tokenizer="GPT2Tokenizer",
    ),
    ModelType(
        "gemma3", "Gemma 3 with pictures", "vision.gemma3:GEMMA3", "gemma3", "images and texts",
        vocabularies={"": 262208}, tokenizer="GemmaTokenizer",
    ),
    ModelType(
        "lfm2_vl", "LFM2-VL", "vision.lfm2_vl:LFM2_VL", "lfm2_vl", "images and texts",
        vocabularies={"": 65536},
    ),
    ModelType(
        "lxmert", "LXMERT", "gallery.lxmert:LXMERT", "lxmert", "images and texts", padding="0",
        vocabularies={"": 30522},
    ),
)  # fmt: skip


def names_of(*kinds: str) -> list[str]:
    """The names of the model types of some `KINDS`, in alphabetical order."""
    return sorted(x.name for x in MODEL_TYPES if x.kind in kinds)
