"""Converts a model's signatures to the bytes of a .tflite file, and describes them."""

import hashlib
import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import tensorflow as tf
from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from keras_tfm import atomic_files
from keras_tfm.export.graph.schema import ModelT
from keras_tfm.export.graph.stand_ins import StandIns, UnplacedError
from keras_tfm.export.quantization.precision import in_float32
from keras_tfm.export.quantization.presets import Quantization
from keras_tfm.export.signatures.signature import Signature, new_traces
from keras_tfm.export.signatures.text import LITERT_OPERATORS
from keras_tfm.generation.interface import interface_of
from keras_tfm.keras_internals import sublayers, with_signbit, without_bincount
from keras_tfm.models.without_storage import allocate
from keras_tfm.runtime import flatbuffer
from keras_tfm.runtime.inspection.inspection import bytes_by_scopes
from keras_tfm.runtime.manifest.storage import import_litert

# Comparisons with the place of an input; if that one is 0, and the other was boolean, they have the
# same result everywhere.
_COMPARED_WITH_0 = {"Less": 1, "GreaterEqual": 1, "Greater": 0, "LessEqual": 0}
# Operations whose result has values of their first input only.
_MOVING = ("ExpandDims", "Identity", "Reshape", "Slice", "Squeeze", "StridedSlice", "Transpose")
# Operations of TensorFlow's graphs that have graphs of their own.
_WITH_FUNCTIONS = ("While", "StatelessWhile", "If", "StatelessIf")
# Dtypes that LiteRT has fewer operators for, as the converter writes them.
_RARE = {
    "bf16": "bfloat16",
    "f16": "float16",
    "f64": "float64",
    "i8": "int8",
    "i16": "int16",
    "i64": "int64",
    "ui8": "uint8",
    "ui16": "uint16",
    "ui32": "uint32",
    "ui64": "uint64",
}
_log = logging.getLogger(__name__)
# While a function of TensorFlow is replaced.
_lock = threading.RLock()


def exportable(model: keras.Model, merge_adapters: bool = True) -> keras.Model:
    """The model in float32; raises unless it is functional and Keras runs on TensorFlow.

    `merge_adapters`: as in `in_float32`.
    """
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            f"export needs Keras's tensorflow backend, got {keras.backend.backend()}: "
            "save the model, and load it with KERAS_BACKEND=tensorflow"
        )
    interface_of(model)  # raises unless the model is functional
    return in_float32(model, merge_adapters)


class ModelGroup(keras.layers.Layer):
    """The models of a file as one object, whose layers and weights are found by name or by value.

    Args:
        models: dict of functional models by name.

    Example:

    >>> import keras
    >>> from keras_tfm.export.graph.conversion import ModelGroup
    >>> x = keras.Input((2,))
    >>> shared = keras.layers.Dense(3)(x)
    >>> one, other = keras.Model(x, shared), keras.Model(x, keras.layers.Dense(5)(shared))
    >>> group = ModelGroup({"one": one, "other": other})
    >>> group.name, len(group.weights)  # two kernels and two biases
    ('one and other', 4)
    """

    def __init__(self, models: Mapping[str, keras.Model]):
        super().__init__(name=" and ".join(models))
        self.models = dict(models)
        self.built = True


def write_saved_model(
    model: keras.Model,
    signatures: Sequence[Signature],
    path: Path,
    default: str | None = None,
    resources: Iterable[object] = (),
    with_gradients: bool = True,
) -> None:
    """Traces the signatures and writes each graph and each weight once.

    `keras.export.ExportArchive` writes both twice, and takes ten times as long.

    Args:
        model: the model. The lookup tables that the signatures read are written, too.
        signatures: list of `Signature`, those to write.
        path: a folder that does not exist yet.
        default: the signature to store as `serve` and `serving_default`, too; None: no default.
        resources: further layers whose lookup tables are written.
        with_gradients: whether the custom gradients of operations are traced and written, too.
    """
    root = tf.Module()
    concrete = {signature.name: signature.traced for signature in signatures}
    # The attributes of a module are saved. Only the variables that the functions read are needed.
    used = [variable for function in concrete.values() for variable in function.variables]
    root.model_variables = list({id(variable): variable for variable in used}.values())
    read = {id(x) for function in concrete.values() for x in function.captured_inputs}
    root.tables = [
        table
        for resource in (model, *resources)
        if isinstance(resource, tf.__internal__.tracking.Trackable)
        for table in tf.train.TrackableView(resource).descendants()
        if isinstance(table, tf.saved_model.experimental.TrackableResource)
        and id(table.resource_handle) in read
    ]
    if default is not None:
        concrete |= dict.fromkeys(("serve", "serving_default"), concrete[default])
    try:
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=with_gradients)
        tf.saved_model.save(root, str(path), signatures=concrete, options=options)
    except AssertionError as error:
        if "untracked" not in str(error):
            raise
        raise ValueError(
            "a tokenizer must be a Keras layer or a tf.Module that holds its tables: "
            f"TensorFlow cannot find a table that it reads ({str(error).splitlines()[0][:200]})"
        ) from error
    except tf.errors.OpError as error:  # of a full disk, for instance
        reason = re.sub(r"^\{\{.*?\}\} | \[Op:\w+\]", "", error.message)
        raise OSError(f"TensorFlow cannot write {path}: {reason}") from error


def convert(
    model: keras.Model,
    signatures: Sequence[Signature],
    quantization: Quantization,
    custom: bool = False,
) -> ModelT:
    """A .tflite file with `signatures`, as objects, and without a manifest.

    Args:
        model: functional `keras.Model` in float32.
        signatures: list of `Signature`; they share the weights.
        quantization: `Quantization`, the format of the weights.
        custom: bool, whether to allow operators that plain LiteRT lacks.

    Raises:
        ValueError: the graph needs an operator that LiteRT lacks; the error names the layer.
    """
    stand_ins = None
    if quantization.preset != "int8_full":
        stand_ins = StandIns(model, folds_norms=quantization.trained is None)
    else:
        allocate(model)
    while True:
        try:
            converted = _convert(model, signatures, quantization, custom, stand_ins)
            break
        except UnplacedError as error:
            assert stand_ins is not None
            _log.info("converting again, with the values of %s", error)
            stand_ins.remove(error.stand_ins)
    found = {x.customCode.decode() for x in converted.operatorCodes if x.customCode is not None}
    foreign = [] if custom else sorted(found - LITERT_OPERATORS)
    if foreign:  # only with text signatures; without them the converter itself raises
        raise ValueError(f"{model.name} needs operators that LiteRT does not have: {foreign}")
    return converted


def _convert(
    model: keras.Model,
    signatures: Sequence[Signature],
    quantization: Quantization,
    custom: bool,
    stand_ins: StandIns | None,
) -> ModelT:
    """`convert`, of graphs that are traced with `stand_ins`; None: int8_full needs the weights."""
    of_text = any(signature.is_of_text for signature in signatures)
    # The converter keeps the weights of every graph in memory, in 8 bits or 32.
    groups = [[x] for x in signatures] if stand_ins and not of_text else [signatures]
    with atomic_files.temporary_folder() as folder:
        scope = nullcontext() if stand_ins is None else stand_ins.tracing()
        with new_traces(), quantization.tracing(), _for_litert(), scope:
            for number, group in enumerate(groups):
                _log.info("tracing %s", ", ".join(signature.name for signature in group))
                if stand_ins is not None:
                    for signature in group:
                        stand_ins.note_kept(signature.traced)
                write_saved_model(model, group, folder / str(number), with_gradients=False)
                _rewrite(folder / str(number))
            functions = [signature.traced for signature in signatures]
        if quantization.preset == "int8_full":
            _refuse_loops(model, signatures)

        def convert_group(
            number: int, names: list[str], set_up: Callable[[tf.lite.TFLiteConverter], None]
        ) -> ModelT:
            converter = tf.lite.TFLiteConverter.from_saved_model(
                str(folder / str(number)), signature_keys=names
            )
            converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
            converter.allow_custom_ops = custom or of_text
            if custom:
                converter.target_spec.supported_ops.append(tf.lite.OpsSet.SELECT_TF_OPS)
            set_up(converter)
            if stand_ins or quantization.trained is not None:
                # A norm's gamma stays apart from the matrix after it: `fill` folds it, and would
                # move a matrix that was trained with rounding off its grid.
                converter._experimental_disable_fuse_mul_and_fc = True
            if stand_ins is not None:
                # Else the converter reads and writes the file three times more, in Python.
                converter._experimental_use_buffer_offset = True
            if stand_ins:
                # Large constants become FILL, which `fill` removes.
                converter._experimental_unfold_large_splat_constant = True
                converter.canonicalizing_inf_as_min_max_float = False
            result = flatbuffer.read(_run(converter, model))
            if stand_ins:
                _clamp_infinities(result)
            return result

        def run_converter(set_up: Callable[[tf.lite.TFLiteConverter], None]) -> ModelT:
            converted, datas = [], dict[bytes, np.ndarray]()
            for number, group in enumerate(groups):
                names = [signature.name for signature in group]
                _log.info("converting %s", ", ".join(names))
                with _without_loading(folder / str(number), names):
                    converted.append(convert_group(number, names, set_up))
                if stand_ins is not None:
                    _share(converted[-1], datas)
            result = flatbuffer.merge(converted)
            if stand_ins:
                stand_ins.fill(result, functions)
            return result

        return quantization.apply(run_converter)


def _refuse_loops(model: keras.Model, signatures: Sequence[Signature]) -> None:
    """Raises ValueError if a graph has a loop or a condition, which has functions of its own.

    TensorFlow 2.21's calibrator ends the process with a segmentation fault on one.
    """
    for signature in signatures:
        graph = signature.traced.graph.as_graph_def()
        for node in [*graph.node, *(x for f in graph.library.function for x in f.node_def)]:
            if node.op in _WITH_FUNCTIONS:
                layer = _layer_path(model, node.name) or model.name
                raise ValueError(
                    f"quantization='int8_full' cannot calibrate {node.op} (in {layer}): use 'int8'"
                )


def _share(model: ModelT, datas: dict[bytes, np.ndarray]) -> None:
    """Keeps equal arrays of a file, and of several, once, and no other bytes of the files."""
    waiting = [model]
    while waiting:
        table = waiting.pop()
        for name, value in vars(table).items():
            if isinstance(value, np.ndarray):
                key = hashlib.sha256(np.ascontiguousarray(value).data).digest()
                if key not in datas or datas[key].dtype != value.dtype:
                    datas[key] = value.copy()
                setattr(table, name, datas[key])
            elif isinstance(value, list):
                waiting += [x for x in value if hasattr(x, "__dict__")]
            elif hasattr(value, "__dict__"):
                waiting.append(value)


def _clamp_infinities(model: ModelT) -> None:
    """Makes infinite constants the largest finite numbers, such as those of a mask.

    The converter does so, too, if it is asked to, but it looks at every number, even at those of a
    stand-in, which are all the same: that took most of the time of a conversion.
    """
    types = import_litert("schema_py_generated").TensorType
    dtypes = {types.FLOAT16: "float16", types.FLOAT32: "float32", types.FLOAT64: "float64"}
    tensors = [x for graph in model.subgraphs for x in graph.tensors if x.type in dtypes]
    for buffer, dtype in {x.buffer: dtypes[x.type] for x in tensors}.items():
        data = model.buffers[buffer].data
        values = np.frombuffer(b"" if data is None else data, dtype)
        if np.isinf(values).any():
            limits = np.finfo(dtype)
            model.buffers[buffer].data = values.clip(limits.min, limits.max).view("uint8")


@contextmanager
def _sign_without_bits() -> Iterator[None]:
    """Keras's `signbit`, which its argmax and argmin call, has LiteRT's operators inside."""

    def sign(x: tf.Tensor) -> tf.Tensor:
        # -0 is not less than 0, but its reciprocal is.
        return tf.where(tf.equal(x, 0), 1 / x, x) < 0

    with with_signbit(sign):
        yield


@contextmanager
def _tables_of_constants() -> Iterator[None]:
    """Lookups of integers compare with all keys of the table: LiteRT has no tables of integers."""
    table_class = tf.lookup.StaticHashTable
    lookup = table_class.lookup

    def compare(table: tf.lookup.StaticHashTable, keys: tf.Tensor, name: object = None) -> object:
        if not table.key_dtype.is_integer or not table.value_dtype.is_integer:
            return lookup(table, keys, name)
        with tf.init_scope():
            known, values = (x.numpy() for x in table.export())
        order = np.argsort(known)  # the order of a hash table is arbitrary
        known, values = known[order], values[order]
        # Of a key that is not in the table, the last value is found.
        is_key = tf.equal(tf.expand_dims(keys, -1), known)
        number = tf.reduce_min(tf.where(is_key, np.arange(len(known)), len(known)), axis=-1)
        default = tf.get_static_value(table.default_value)
        return tf.gather(tf.constant([*values, default], table.value_dtype), number)

    table_class.lookup = compare
    try:
        yield
    finally:
        table_class.lookup = lookup


@contextmanager
def _for_litert() -> Iterator[None]:
    """In the context, layers of Keras compute with operators that LiteRT has."""
    with (
        _lock,  # another thread would restore what this one has set
        _sign_without_bits(),
        without_bincount(),
        _tables_of_constants(),
    ):
        yield


def _rewrite(path: Path) -> None:
    """Replaces operations of the SavedModel at `path` that the converter refuses by equal ones."""
    file = path / "saved_model.pb"
    saved = SavedModel.FromString(file.read_bytes())
    changed = False
    for function in (x for y in saved.meta_graphs for x in y.graph_def.library.function):
        for rewrite in (_compare_booleans, _add_vectors):
            changed |= rewrite(function)
    if changed:
        file.write_bytes(saved.SerializeToString())


def _compare_booleans(function: FunctionDef) -> bool:
    """Makes x < 0 of a boolean that was cast to a number x < x; True if the function has one.

    Keras's Embedding compares ids with 0. The converter makes the comparison of 0 and 1 a
    ZerosLike or OnesLike of the boolean, which LiteRT's operators refuse.
    """
    nodes = {node.name: node for node in function.node_def}
    changed = False

    def producer(name: str) -> NodeDef | None:
        return nodes.get(name.split(":")[0])  # None: an argument of the function

    for node in function.node_def:
        place = _COMPARED_WITH_0.get(node.op)
        if place is None:
            continue
        zero, other = producer(node.input[place]), producer(node.input[1 - place])
        while other is not None and other.op in _MOVING:
            other = producer(other.input[0])
        if (
            zero is not None
            and zero.op == "Const"
            and not zero.attr["value"].tensor.tensor_shape.dim
            and not tf.make_ndarray(zero.attr["value"].tensor)
            and other is not None
            and other.op == "Cast"
            and other.attr["SrcT"].type == tf.bool.as_datatype_enum
        ):
            node.input[place] = node.input[1 - place]
            changed = True
    return changed


def _add_vectors(function: FunctionDef) -> bool:
    """Makes BiasAdds that LiteRT lacks additions; True if the function has one.

    Keras makes the sum of any tensor and a vector along one of its axes a BiasAdd. LiteRT's is for
    floats, and a vector along the second axis has to be one of four axes.
    """
    changed = False
    for node in [*function.node_def]:
        if node.op != "BiasAdd":
            continue
        vector, dtype = node.input[1], node.attr["T"]
        # Of an attribute that is left out, as "NHWC" may be, the lookup would make an empty one.
        is_last = "data_format" not in node.attr or node.attr["data_format"].s == b"NHWC"
        if is_last and tf.as_dtype(dtype.type).is_floating:
            continue
        if not is_last:
            axes = len(node.attr["_output_shapes"].list.shape[0].dim) - 1
            shape = function.node_def.add(name=f"{node.name}/shape", op="Const")
            shape.attr["dtype"].type = tf.int32.as_datatype_enum
            sizes = tf.make_tensor_proto([-1] + [1] * (axes - 1), tf.int32)
            shape.attr["value"].tensor.CopyFrom(sizes)
            column = function.node_def.add(name=f"{node.name}/column", op="Reshape")
            column.input.extend([vector, f"{shape.name}:output:0"])
            column.attr["T"].CopyFrom(dtype)
            column.attr["Tshape"].type = tf.int32.as_datatype_enum
            vector = f"{column.name}:output:0"
        total = function.node_def.add(name=f"{node.name}/sum", op="AddV2")
        total.input.extend([node.input[0], vector])
        total.attr["T"].CopyFrom(dtype)
        # Its result has the name that its readers know.
        node.op, node.input[:] = "Identity", [f"{total.name}:z:0"]
        node.attr.pop("data_format", None)
        changed = True
    return changed


@contextmanager
def _without_loading(path: Path, signatures: Sequence[str]) -> Iterator[None]:
    """TensorFlow's converter does not load the SavedModel at `path` in Python inside.

    It does so once to look up the names of signatures, which are known, and once for the stack
    traces of operations, which no message of this package shows: a fifth of the time of an export.
    Nor does it run the garbage collector after the second, which takes longer the more objects a
    program holds.
    """
    from tensorflow.core.framework.graph_debug_info_pb2 import GraphDebugInfo
    from tensorflow.lite.python import lite

    loaded = SimpleNamespace(
        signatures=dict.fromkeys(signatures), graph_debug_info=GraphDebugInfo()
    )
    with _lock:
        load, collector = lite._load, lite.gc
        # Another thread may convert a SavedModel of its own.
        lite._load = lambda given, *rest: loaded if given == str(path) else load(given, *rest)
        lite.gc = SimpleNamespace(collect=lambda: 0)
        try:
            yield
        finally:
            lite._load, lite.gc = load, collector


def _run(converter: tf.lite.TFLiteConverter, model: keras.Model) -> bytes:
    """The converted file; an error names what LiteRT lacks, and the layers of the model."""
    try:
        return bytes(converter.convert())
    except Exception as error:  # several types; the message has the whole graph
        failure = error
    lacking = _lacking(str(failure), model)
    if lacking:
        raise ValueError(
            f"{model.name} cannot be converted: LiteRT has no {', '.join(lacking)}"
        ) from None
    reason = _reason(failure, model)
    raise ValueError(f"{model.name} cannot be converted: {reason}") from failure


def _lacking(text: str, model: keras.Model) -> list[str]:
    """The unsupported operators, their layers, and dtypes that few operators have.

    All are read from a converter's error.
    """
    operands = re.findall(r"^\s*(\w+\.\w+)\(tensor<(?:[\d?]+x)*(\w+)>", text, re.MULTILINE)
    rare = {operator: f" of {_RARE[x]}" for operator, x in operands if x in _RARE}
    found = re.findall(
        r'error: (?:loc\(callsite\(fused\["\w*:", "([^"@]*)/[^"/]*"\].*?)?'
        r"'(\w+\.\w+)' op is neither a custom op nor a flex op",
        text,
    )
    return list(
        dict.fromkeys(
            f"{operator}{rare.get(operator, '')}"
            + (f" (in {_layer_path(model, scope) or model.name})" if scope else "")
            for scope, operator in found
        )
    )


def _reason(error: Exception, model: keras.Model) -> str:
    """The line of a converter's error that gives the cause, without the graph, and the layer."""
    text = str(error)
    failed = re.findall(r"(failed to legalize operation '[\w.]+'.*)", text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines if not failed else ():
        invalid = re.search(r": ('\w+\.\w+' op .*)", line)
        if invalid is not None:
            scope = re.search(r'fused\["\w*:", "([^"@]*)/[^"/]*"\]', line)
            layer = _layer_path(model, scope[1]) if scope else ""
            return f"{invalid[1][:300]} (in {layer or model.name})"
    return (failed or lines or [type(error).__name__])[0][:300]


def _layer_path(model: keras.Model, scope: str) -> str:
    """The path of the layer whose scope in the graph is `scope`.

    A full pass has the model's name as the outermost scope, a step does not. A scope also lists
    layers that call the layer but do not own it. Keras opens the scope of a layer twice, to build
    and to call it, so that TensorFlow adds a number to the name: `dense_1` is the second scope of
    `dense`, and the operations of a layer named `dense_1` are in `dense_1_2`.
    """
    paths: list[list[str]] = [(layer.path or layer.name).split("/") for layer in sublayers(model)]
    known = {path[-1] for path in paths}
    parts = scope.split("/")
    if model.name in (parts[0], re.sub(r"_\d+$", "", parts[0])):
        parts = parts[1:]
    unnumbered = [re.sub(r"_\d+$", "", x) for x in parts]
    names = [x if x in known else part for x, part in zip(unnumbered, parts, strict=True)]

    def is_in_scope(path: list[str]) -> bool:
        rest = iter(names)
        return all(name in rest for name in path)

    deepest = max((path for path in paths if is_in_scope(path)), key=len, default=[])
    return "/".join(deepest)


def layer_sizes(content: bytes, model: keras.Model) -> dict[str, int]:
    """The bytes of each layer's weights, by path; "" for constants of no layer.

    Of several models, paths begin with the name of the first model that has the layer.
    """
    sizes: dict[str, int] = {}
    models = model.models if isinstance(model, ModelGroup) else {"": model}
    for scopes, size in bytes_by_scopes(content).items():
        # The innermost layer: of a projection and the residual that was fused with it, the former.
        paths = [
            f"{name}/{path}" if name and path else path
            for name, one in models.items()
            for x in scopes[::-1]
            if len(models) == 1 or one.name == re.sub(r"_\d+$", "", x.split("/")[0])
            for path in [_layer_path(one, re.sub(r"^(while(_\d+)?/)+", "", x))]
        ]
        path = max(paths, key=lambda x: x.count("/") if x else -1, default="")
        sizes[path] = sizes.get(path, 0) + size
    layers = [*models] if len(models) > 1 else [layer.name for layer in model.layers]
    order = {name: i for i, name in enumerate(layers)}
    return dict(sorted(sizes.items(), key=lambda x: (order.get(x[0].split("/")[0], len(order)), x)))
