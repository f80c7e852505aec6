"""One way from the models of a file to the file: convert, rewrite, describe, write, verify."""

import copy
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import keras
import tensorflow as tf

from keras_tfm import atomic_files
from keras_tfm.export.graph.adapters import Placeholders, clear
from keras_tfm.export.graph.conversion import convert, layer_sizes
from keras_tfm.export.graph.gpu_graph import rewrite_for_gpu
from keras_tfm.export.graph.int8_caches import use_int8_operators
from keras_tfm.export.graph.limited_roots import limit_roots
from keras_tfm.export.graph.loop_outputs import copy_loop_outputs
from keras_tfm.export.graph.schema import ModelT
from keras_tfm.export.member import Member
from keras_tfm.export.quantization.presets import Quantization
from keras_tfm.export.verification.verify import Verification
from keras_tfm.models.identity import describe
from keras_tfm.runtime import flatbuffer
from keras_tfm.runtime.inspection.inspection import Inspection, inspection_fields
from keras_tfm.runtime.manifest.checks import read_graphs
from keras_tfm.runtime.manifest.manifest import (
    ONE_MODEL,
    SEVERAL_MODELS,
    WITH_STATES,
    WITH_STREAMS,
    Identity,
    Manifest,
)
from keras_tfm.runtime.manifest.manifest import Member as FileMember
from keras_tfm.runtime.manifest.records import Json
from keras_tfm.runtime.manifest.storage import import_litert, is_export
from keras_tfm.runtime.tokenizers.chat_template import ChatTemplate
from keras_tfm.version import __version__

_log = logging.getLogger(__name__)

# Rewrites a converted file, as objects.
Pass = Callable[[ModelT], None]
# The name of the model of a file that has only one.
ONLY = ""


@dataclass
class Report(Inspection):
    """The content of a file and its error against the model; `print` it, or take `asdict()`.

    Attributes:
        dequantized: list of str, the names of models that Keras's `quantize` had rounded: the file
            stores their rounded weights in its own format.
        verification: `Verification`, each signature against the model; None if the file was not
            verified.
        notes: list of str, of a model of KerasHub: what was changed or left out, see
            `checkpoints.from_keras_hub`.
    """

    dequantized: list[str] = field(default_factory=list)
    verification: Verification | None = None
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Size, signatures, graphs, and the comparison with the model."""
        lines = super().lines()
        lines += [
            f"  {name} was quantized by Keras: its rounded weights are stored in "
            f"{self.quantization}"
            for name in self.dequantized
        ]
        lines += [f"  {note}" for note in self.notes]
        return lines if self.verification is None else [*lines, str(self.verification)]


@dataclass(frozen=True)
class Converted:
    """A converted file, and what is written to its metadata.

    Attributes:
        model: the file as objects, without metadata.
        manifest: the manifest.
        entries: the bytes of tokenizers, by metadata entry.
        names: for each signature, the name of each parameter's input. TensorFlow's parameters must
            be identifiers; in the file each input gets its own name back.
    """

    model: ModelT
    manifest: Manifest
    entries: dict[str, bytes]
    names: dict[str, dict[str, str]]

    def with_signatures(self, names: Collection[str]) -> "Converted":
        """The file with these signatures and their weights alone.

        The graphs of the others are empty.
        """
        model = copy.copy(self.model)
        model.subgraphs = [*model.subgraphs]
        kept = []
        for signature in model.signatureDefs:
            if signature.signatureKey.decode() in names:
                kept.append(signature)
                continue
            number = signature.subgraphIndex  # other graphs may be referred to by their numbers
            graph = model.subgraphs[number] = copy.copy(model.subgraphs[number])
            graph.tensors = [graph.tensors[x] for x in graph.inputs]
            graph.inputs = graph.outputs = list(range(len(graph.tensors)))
            graph.operators = []
        model.signatureDefs = kept
        used = {0, *(x.buffer for graph in model.subgraphs for x in graph.tensors)}
        used |= {x.buffer for x in model.metadata or []}
        model.buffers = [
            x if number in used else model.buffers[0] for number, x in enumerate(model.buffers)
        ]
        known = {name: self.manifest.signatures[name] for name in names}
        own = {name: self.names[name] for name in names}
        manifest = replace(self.manifest, signatures=known)
        return replace(self, model=model, manifest=manifest, names=own)

    def with_names(self, names: Mapping[str, str]) -> "Converted":
        """The file with other names of signatures, by their names before."""
        model = copy.copy(self.model)
        model.signatureDefs = [copy.copy(x) for x in model.signatureDefs]
        for signature in model.signatureDefs:
            name = signature.signatureKey.decode()
            signature.signatureKey = names.get(name, name).encode()
        known = {names.get(name, name): x for name, x in self.manifest.signatures.items()}
        own = {names.get(name, name): x for name, x in self.names.items()}
        manifest = replace(self.manifest, signatures=known)
        return replace(self, model=model, manifest=manifest, names=own)

    def save(self, path: Path) -> None:
        """Writes the file with its metadata."""
        flatbuffer.save(path, self.model, self.manifest, self.entries, self.names)


def passes_of(members: Iterable[Member]) -> list[Pass]:
    """What the arguments of a .tflite file ask for, in order."""
    requests = [member.request for member in members]
    passes: list[Pass] = []
    if any(request.accelerator == "gpu" for request in requests):
        passes.append(rewrite_for_gpu)
    if any(request.cache == "int8" for request in requests):
        passes.append(use_int8_operators)
    return passes


def convert_members(
    members: Mapping[str, Member],
    quantization: Quantization,
    passes: Iterable[Pass],
    *,
    custom_operators: bool = False,
    adapters: Placeholders | None = None,
    chat_template: ChatTemplate | None = None,
) -> Converted:
    """Converts the models of a file, and describes them in a manifest.

    Args:
        members: the models by name; the only one is `ONLY`.
        quantization: the format of the weights, of these models.
        passes: rewrite the converted file, in this order.
        custom_operators: bool, whether to allow operators that plain LiteRT lacks.
        adapters: `Placeholders` of a file for separate adapters.
        chat_template: `ChatTemplate` of the file.
    """
    signatures = [signature for member in members.values() for signature in member.signatures]
    caches = {member.request.cache for member in members.values()}
    with ExitStack() as stack:
        if adapters is not None:
            stack.enter_context(adapters.tracing())
        if quantization.trained is not None:
            stack.enter_context(quantization.trained.tracing("int8" in caches))
        model = convert(quantization.model, signatures, quantization, custom_operators)
    for rewrite in (*passes, limit_roots, copy_loop_outputs):
        rewrite(model)
    schema, tables = import_litert("schema_py_generated"), flatbuffer.tables(model)
    graphs = read_graphs(schema, schema.Model.GetRootAsModel(tables, 0))
    places = None if adapters is None else adapters.find(model)
    if places is not None:
        clear(model, places)
    models, entries, options = _describe(members)
    own = models.get(ONLY, FileMember(model=None))
    manifest = Manifest(
        keras_tfm=__version__,
        format=WITH_STREAMS
        if any(x.role == "stream" for x in signatures)
        else WITH_STATES
        if any("states" in x.settings for x in signatures)
        else ONE_MODEL
        if ONLY in models
        else SEVERAL_MODELS,
        keras=keras.__version__,
        tensorflow=tf.__version__,
        quantization=quantization.preset,
        cache="int8" if "int8" in caches else "float32",
        # Those of texts need operators that LiteRT lacks.
        signatures={
            x.name: x.manifest(graphs[x.name].outputs) for x in signatures if not x.is_of_text
        },
        layers=layer_sizes(tables, quantization.model),
        model=own.model,
        models={name: x for name, x in models.items() if name != ONLY},
        tokenizers=own.tokenizers,
        tokenizer_options=options,
        images=own.images,
        labels=own.labels,
        chat_template=chat_template,
        adapters=places,
    )
    names = {x.name: {new: old for old, new in x.parameters.items()} for x in signatures}
    return Converted(model, manifest, entries, names)


def _describe(
    members: Mapping[str, Member],
) -> tuple[dict[str, FileMember], dict[str, bytes], dict[str, Json]]:
    """The manifest's entries of the models; the tokenizers' bytes and options by metadata entry.

    A tokenizer that several models have is stored once.
    """
    contents: dict[str, bytes] = {}
    options: dict[str, Json] = {}
    models = {}
    for name, member in members.items():
        own, renamed = member.tokenizers.options, dict[str, str]()
        for entry, content in member.tokenizers.entries.items():
            known = [
                key
                for key, x in contents.items()
                if x == content and options.get(key) == own.get(entry)
            ]
            new = known[0] if known else entry if entry not in contents else f"{name}_{entry}"
            renamed[entry] = new
            contents[new] = content
            if entry in own:
                options[new] = own[entry]
        identity = describe(member.model)
        models[name] = FileMember(
            model=None if identity is None else Identity.from_json(identity),
            images=member.images,
            labels=member.labels,
            tokenizers={key: renamed[x] for key, x in member.tokenizers.names.items()},
        )
    return models, contents, options


def check_file(path: Path, overwrite: bool) -> None:
    """Raises unless a .tflite or .litertlm file may be written to `path`.

    `path` may be an earlier export, an empty file (`tempfile` creates those), or missing.
    `overwrite` allows any other file, but never a folder, a device, a FIFO or a socket.

    >>> from pathlib import Path
    >>> from keras_tfm.export.pipeline import check_file
    >>> check_file(Path("/"), overwrite=True)
    Traceback (most recent call last):
    IsADirectoryError: cannot write /: it is a folder
    """
    atomic_files.check_target(path)
    if not path.exists():
        return
    if not (overwrite or path.stat().st_size == 0 or is_export(path)):
        raise FileExistsError(
            f"cannot write {path}: it exists and is not an export of keras_tfm; "
            "overwrite=True replaces it"
        )


def write_file(
    path: Path,
    overwrite: bool,
    converted: Converted,
    *,
    package: Callable[[Path], Path] | None = None,
    verify: Callable[[Path, Path], Verification] | None,
    custom_operators: bool = False,
    dequantized: Iterable[str] = (),
) -> Report:
    """Writes a file completely or not at all, and returns its report.

    Args:
        path: where to write it.
        overwrite: bool, whether to replace a file that is not an earlier export.
        converted: `Converted`, the .tflite file.
        package: function of the path of that file, in a temporary folder; it writes a file with
            this one in it to the same folder, and returns its path. None: the .tflite file itself.
        verify: function of the new file's path and the folder that compares the file with its
            model, and raises if it differs. None: the file is not verified.
        custom_operators: bool, whether the file may have operators that LiteRT lacks; a file with
            such operators is not verified.
        dequantized: the names of models that Keras had rounded.
    """
    with atomic_files.temporary_folder(atomic_files.real(path).parent) as folder:
        inside = folder / "model.tflite"
        _log.info("writing")
        converted.save(inside)
        _log.info("counting operators")
        fields = inspection_fields(path, inside, converted.manifest)
        report = Report(**fields, dequantized=[*dequantized])
        new = inside if package is None else package(inside)
        report.bytes = new.stat().st_size
        if verify is not None and not (custom_operators and report.custom_operators):
            report.verification = verify(new, folder)
            report.verification.path = str(path)
        check_file(path, overwrite)  # again: it may have changed during the verification
        atomic_files.replace(new, path)
    return report
