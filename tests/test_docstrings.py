"""Every example in a docstring runs and gives what it says."""

import doctest
import fnmatch
import importlib.util
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import keras_tfm
from keras_tfm.model_types import MODEL_TYPES

pytestmark = pytest.mark.default  # about texts: no branch shows what it notices
MODULES = ["keras_tfm"]
MODULES += sorted(m.name for m in pkgutil.walk_packages(keras_tfm.__path__, "keras_tfm."))
# Results, which are returned and not made.
RESULTS = {"Benchmark", "Check", "Footprint", "Generated", "Hypothesis", "Inspection"}
RESULTS |= {
    "KerasHubImport",
    "Latency",
    "Model",
    "Page",
    "Reply",
    "Report",
    "Subgraph",
    "Verification",
    "VerificationError",
}
# Examples that need an extra.
NEEDED = {
    "keras_tfm.export.litertlm.export": "litert_lm_builder",
    "keras_tfm.checkpoints.huggingface": "safetensors",
    "keras_tfm.checkpoints.keras_hub.conversion": "keras_hub",
    "keras_tfm.checkpoints.tensors": "safetensors",
    "keras_tfm.checkpoints.tokenizers.tokenizer_files": "tokenizers",
    "keras_tfm.checkpoints.tokenizers.trim_tokenizer": "tokenizers",
    "keras_tfm.checkpoints.trim": "tokenizers",
    "keras_tfm.runtime.tokenizers.constraints": "llguidance",
    "keras_tfm.runtime.model": "tokenizers",
    "keras_tfm.runtime.tasks.session": "tokenizers",
    "keras_tfm.text.word_piece": "tokenizers",
    "keras_tfm.text.sentence_piece": "sentencepiece",
    "keras_tfm.training.generation_scores": "sacrebleu",
    "keras_tfm.training.tensorboard": "tensorboard",
}
# Modules without an example, as patterns, and the reason. A package that only imports needs none.
_FILE = "works on an exported file, which the examples of export_tflite, verify and load make"
_STEP = "its arguments come from a DecodingScope; the examples of the scope and of Generator run it"
_BASE = "a base class; its subclasses have examples"
_TABLE = "the table of a family; load_huggingface's example and tests/checkpoints read it"
_GRIDS = "reads a folder: tests/checkpoints/test_quantized_folders.py writes some"
_HUB = "from_keras_hub has the example; tests/checkpoints/test_from_keras_hub.py runs it"
_TOKENIZER = "one kind of load_tokenizer; tests/checkpoints compares it with transformers"
_KERNEL = "a kernel for one backend; its layer has the example"
_FIT = "runs inside fit; the callback or model that calls it has the example"
REASONS = {
    "keras_tfm.version": "one constant",
    "keras_tfm.checkpoints.tokenizers.byte_pairs": _TOKENIZER,
    "keras_tfm.checkpoints.decoders.decoder_fields": _TABLE,
    **{f"keras_tfm.checkpoints.{x.table.partition(':')[0]}": _TABLE for x in MODEL_TYPES},
    "keras_tfm.checkpoints.family": _TABLE,
    "keras_tfm.checkpoints.heads": _TABLE,
    **{
        f"keras_tfm.checkpoints.keras_hub.{name}": _HUB
        for name in (
            "comparison",
            "decoders",
            "encoder_decoders",
            "encoders",
            "family",
            "heads",
            "source",
            "vision",
        )
    },
    "keras_tfm.checkpoints.peft": "only PEFT writes its files: docs/huggingface.md has the example",
    "keras_tfm.checkpoints.torch_files": "only PyTorch writes its files, which `Tensors` reads",
    "keras_tfm.checkpoints.quantized.compressed_tensors": _GRIDS,
    "keras_tfm.checkpoints.quantized.methods": _GRIDS,
    "keras_tfm.checkpoints.tokenizers.jinja.*": "`load_chat_template` has the example",
    "keras_tfm.checkpoints.tokenizers.gguf_tokenizer": _TOKENIZER,
    "keras_tfm.checkpoints.tokenizers.languages": _TOKENIZER,
    "keras_tfm.checkpoints.tokenizers.marian_pieces": _TOKENIZER,
    "keras_tfm.checkpoints.decoders.rope": _TABLE,
    "keras_tfm.checkpoints.tokenizers.sentence_pieces": _TOKENIZER,
    "keras_tfm.checkpoints.tokenizers.tokenizer_settings": _TOKENIZER,
    "keras_tfm.cli.*": "the command line: docs/api/command_line.md",
    "keras_tfm.distributed.*": _FIT,
    "keras_tfm.runtime.compiled_model": _FILE,
    "keras_tfm.runtime.huge_pages": _FILE,
    "keras_tfm.runtime.inspection.gpu_process": _FILE,
    "keras_tfm.runtime.tasks.session_text": _FILE,
    "keras_tfm.runtime.tasks.speech": _FILE,
    "keras_tfm.export.graph.composites": _FILE,
    "keras_tfm.export.graph.gpu_*": _FILE,
    "keras_tfm.export.graph.schema": "names of classes that flatbuffers generates",
    "keras_tfm.export.graph.graph_editor": _FILE,
    "keras_tfm.export.verification.float_file": _FILE,
    "keras_tfm.export.quantization.four_bits": _FILE,
    "keras_tfm.export.quantization.smoothing": "`calibrate` has the example",
    "keras_tfm.export.signatures.host_caches": _FILE,
    "keras_tfm.export.graph.int8_caches": _FILE,
    "keras_tfm.export.graph.loop_fills": _FILE,
    "keras_tfm.export.graph.loop_outputs": _FILE,
    "keras_tfm.export.litertlm.verification": _FILE,
    "keras_tfm.export.verification.loop_logits": _FILE,
    "keras_tfm.export.signatures.make": _FILE,
    "keras_tfm.export.signatures.stepped": _FILE,
    "keras_tfm.export.signatures.text": _FILE,
    "keras_tfm.export.verification.rows": _FILE,
    "keras_tfm.generation.source_model": "ModelStream has the example",
    "keras_tfm.generation.shared_traces": "changes how graphs are traced, not what they compute",
    "keras_tfm.generation.tokenizers.keras_hub_word_pieces": (
        "tests/checkpoints/test_keras_hub_preprocessing.py compares it with KerasHub"
    ),
    "keras_tfm.generation.tokenizers.texts": (
        "Generator.generate_text and stream_text have the examples"
    ),
    "keras_tfm.generation.tokenizers.tokenizer_forms": (
        "Generator(tokenizer=) and export_tflite have examples"
    ),
    "keras_tfm.layers.decoding.visibility": _STEP,
    "keras_tfm.layers.audio.audio_layer": _BASE,
    "keras_tfm.layers.recurrent.token_mixer": _BASE,
    "keras_tfm.layers.multi_head_attention.base": _BASE,
    "keras_tfm.layers.multi_head_attention.stepped_attention": _STEP,
    "keras_tfm.layers.jax.*": _KERNEL,
    "keras_tfm.layers.tensorflow.*": _KERNEL,
    "keras_tfm.layers.types": "names of types",
    "keras_tfm.layers.torch.*": _KERNEL,
    "keras_tfm.models.encoders.bidirectional_encoder": (
        "bert and its successors call it, with examples"
    ),
    "keras_tfm.models.decoders.causal_decoder": "gpt, llama and others call it, with examples",
    "keras_tfm.models.encoder_decoders.encoder_decoder": (
        "bart and its relatives call it, with examples"
    ),
    "keras_tfm.models.heads.head_base": _BASE,
    "keras_tfm.models.encoder_decoders.shifted_source": (
        "sequence_classifier and question_answering call it"
    ),
    "keras_tfm.runtime.tasks.saved_session": _FILE,
    "keras_tfm.runtime.loaded_file": _FILE,
    "keras_tfm.runtime.inspection.footprint": _FILE,
    "keras_tfm.runtime.decoding.generate": _FILE,
    "keras_tfm.runtime.decoding.host_loop": _FILE,
    "keras_tfm.runtime.inspection.inspection": _FILE,
    "keras_tfm.runtime.inspection.litertlm_process": "runs what docs/litertlm.md shows",
    "keras_tfm.runtime.decoding.steps": _FILE,
    "keras_tfm.runtime.tokenizers.tokenizer": _FILE,
    "keras_tfm.runtime.weight_cache": _FILE,
    "keras_tfm.training.resuming.data_position": _FIT,
    "keras_tfm.training.gradients": _FIT,
    "keras_tfm.training.resuming.training_state": _FIT,
}


def test_every_module_is_found():
    for name in (
        "layers.multi_head_attention.attention",
        "generation.loop",
        "export.tflite",
        "runtime.manifest.storage",
    ):
        assert f"keras_tfm.{name}" in MODULES


# Modules whose examples train a model, as their own tests do.
TRAINED = [
    f"keras_tfm.training.{x}"
    for x in ("losses.dino", "generation_scores", "tensorboard", "resuming.resume")
]


# Keras's own saving makes NumPy arrays of variables.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[pytest.mark.slow] * (x in TRAINED)) for x in MODULES]
)
def test_examples(name, capsys):
    backend = re.match(r"keras_tfm\.layers\.(jax|torch)\.", name)
    needed = backend[1] if backend else NEEDED.get(name)
    if needed:
        pytest.importorskip(needed)
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module)
    assert failed == 0, capsys.readouterr().out


def public():
    for package in keras_tfm.__all__:
        module = getattr(keras_tfm, package)
        for name in getattr(module, "__all__", ()):
            if name not in RESULTS:
                yield pytest.param(getattr(module, name), id=f"{package}.{name}")


@pytest.mark.parametrize("target", list(public()))
def test_the_public_api_is_learnt_from_examples(target):
    found = doctest.DocTestFinder().find(target, target.__name__)
    assert any(test.examples for test in found)


def test_each_module_has_an_example_or_a_reason():
    without = set()
    for name in MODULES:
        spec = importlib.util.find_spec(name)  # not imported: other backends may be missing
        is_package = spec.submodule_search_locations is not None
        if not is_package and ">>>" not in Path(spec.origin).read_text():
            without.add(name)
    explained = {
        name for name in without if any(fnmatch.fnmatch(name, pattern) for pattern in REASONS)
    }
    assert without - explained == set()
    # Some tables have an example.
    others = [p for p, reason in REASONS.items() if reason != _TABLE]
    unused = [p for p in others if not any(fnmatch.fnmatch(name, p) for name in without)]
    assert unused == []


# The form of Keras: `num_heads: int, number of attention heads (H).` The type or shape comes first,
# or a reference to where the argument is documented.
TYPES = (
    r"int|float|bool|boolean|integers?|str|bytes|list|dict|tuple|set|iterable|function|callable|"
    r"array|tensor|symbolic|int32|layer|Keras layer|model|tokenizer|path|Path|dtype|shape|slice|"
    r"initializer|activation|object|built|functional|as in|see|likewise|the other arguments|"
    r"arguments of|`max_length`|lengths, special tokens"
)
ENTRY = re.compile(r"^ {4}((?:\*\*|\*)?\w.*?): (.*(?:\n {8}.*)*)", re.M)
SECTION = re.compile(r"^(?:Args|Call arguments|Attributes):\n((?:(?: {4}.*)?\n)+)", re.M)


def documented():
    """Public objects and their public methods, with their docstrings."""
    for package in keras_tfm.__all__:
        module = getattr(keras_tfm, package)
        for name in getattr(module, "__all__", ()):
            target = getattr(module, name)
            yield f"{package}.{name}", inspect.getdoc(target) or ""
            for key, member in vars(target).items() if inspect.isclass(target) else ():
                if callable(member) and (key == "__call__" or not key.startswith("_")):
                    yield f"{package}.{name}.{key}", inspect.getdoc(member) or ""


def test_arguments_begin_with_their_type_as_in_keras():
    count, wrong = 0, []
    for name, docstring in documented():
        for section in SECTION.findall(docstring + "\n"):
            for argument, text in ENTRY.findall(section):
                count += 1
                if not re.match(rf"(?:{TYPES})\b|\(|`", text):
                    wrong.append(f"{name}: {argument}: {text}")
    assert count > 400
    assert wrong == []
