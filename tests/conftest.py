"""What holds for all tests: the fast tier, and what a skipped test means to CI."""

import functools
import gc
import io
import math
import os
import sys
import tempfile
import typing
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# The fast tier, `python -m pytest -m fast`: pure functions and layers, eager or as a graph, without
# XLA, training, files or processes. Under a minute on two cores.
FAST = [
    "checkpoints/test_rows.py",
    "checkpoints/test_transforms.py",
    "generation/test_filters.py",
    "generation/test_strategy_states.py",
    "generation/test_top_k.py",
    "layers/test_attention.py",
    "layers/test_attention_probe.py",
    "layers/test_feed_forward.py",
    "layers/test_layer_normalization.py",
    "layers/test_leading_axes.py",
    "layers/test_masks.py",
    "layers/test_multi_head_cross_attention.py",
    "layers/test_multi_head_self_attention.py",
    "layers/test_numerics.py",
    "layers/test_position_embedding.py",
    "layers/test_positional_encoding.py",
    "layers/test_projection.py",
    "layers/test_relative_position.py",
    "layers/test_residual.py",
    "layers/test_rotary_embedding.py",
    "layers/test_segment_embedding.py",
    "layers/test_token_embedding.py",
    "layers/test_transformer_encoder_block.py",
    "layers/test_window_and_caps.py",
    "models/test_heads_by_hand.py",
    "test_reference.py",
    "test_structure.py",
    "text/test_batches.py",
    "text/test_bucketed_batches.py",
    "text/test_mask_tokens.py",
    "text/test_packed_batches.py",
    "text/test_pad_ids.py",
    "text/test_rows.py",
    "text/test_teacher_forcing.py",
    "training/test_losses.py",
    "training/test_metrics.py",
    "training/test_perplexity.py",
    "training/test_schedules.py",
    "training/test_weight_decay.py",
]
if sys.version_info < (3, 12):  # which does so itself; TensorFlow asks at each operation
    typing._get_protocol_attrs = functools.cache(typing._get_protocol_attrs)
# XLA without its optimizations: what it compiles here runs only once or twice.
XLA_UNOPTIMIZED = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
SLOW = TESTS / "slow.txt"  # written by .ci/tiers.py
NOT_FAST = ("xla", "fit", "jit", "keras_file")  # in a test's name or its parameters


def pytest_addoption(parser):
    parser.addoption(
        "--fail-on-skip",
        action="store_true",
        help="a skipped test is a failure: for stages of CI that install all that is needed",
    )
    parser.addoption(
        "--optimize",
        action="store_true",
        help="TensorFlow and XLA optimize, as they do for users: for `.ci/full`",
    )
    parser.addoption("--passed-to", metavar="FILE", help="write the tests that passed to FILE")
    parser.addoption("--without", metavar="FILE", help="leave out the tests that are in FILE")


def pytest_configure(config):
    # PyTorch: beside another worker, a second thread of a small product mostly waits for the first.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if not config.option.optimize:
        os.environ.setdefault("XLA_FLAGS", XLA_UNOPTIMIZED)
    if not hasattr(config, "workerinput"):  # the run itself, no worker of it
        config.shared = tempfile.TemporaryDirectory(prefix="keras_tfm_run_")
        os.environ["KERAS_TFM_TESTS"] = config.shared.name
    missing = [name for name in FAST if not (TESTS / name).is_file()]
    if missing:
        raise pytest.UsageError(f"{__file__}: FAST must name files, got {', '.join(missing)}")


def pytest_unconfigure(config):
    if hasattr(config, "shared"):
        config.shared.cleanup()


def pytest_ignore_collect(collection_path, config):
    """With `-m fast` other files are not even imported."""
    if config.option.markexpr == "fast" and collection_path.suffix == ".py":
        return collection_path.relative_to(TESTS).as_posix() not in FAST or None
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    if not config.getoption("anew", None):  # as .ci/tiers.py measures them
        mark_slow(items)
    if config.option.without:
        known = {*Path(config.option.without).read_text().splitlines()}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in known])
        items[:] = [item for item in items if item.nodeid not in known]
    fast = {TESTS / name for name in FAST}
    for item in items:
        slow = item.get_closest_marker("slow") or any(x in item.name for x in NOT_FAST)
        if item.path in fast and not slow:
            item.add_marker("fast")


def mark_slow(items):
    """Puts the tests of `slow.txt` into the slow tier."""
    listed = {*SLOW.read_text().splitlines()}
    for item in items:
        if item.nodeid in listed or item.nodeid.split("[")[0] in listed:
            item.add_marker("slow")


@pytest.hookimpl(tryfirst=True)  # before the fixtures
def pytest_runtest_setup(item):
    """A test draws the same weights and data in every run, alone or after others."""
    if "tensorflow" in sys.modules:
        item.session.clear_kernels = keep_kernels()
        if not item.config.option.optimize:
            spare_graphs()
    if "jax" in sys.modules and not item.config.option.optimize:
        spare_compilations()
    if "keras" in sys.modules:
        sys.modules["keras"].utils.set_random_seed(0)


@functools.cache
def keep_kernels():
    """Lets TensorFlow reuse the kernels of eager operations; returns the function that clears them.

    A new seed clears them, for the sake of stateful random operations, which nothing here uses, and
    each variable has a kernel of its own for the sake of its name in messages, 1 ms and 40 KB: a
    third of the time of the tests of layers and models.
    """
    from tensorflow.python.eager import context
    from tensorflow.python.ops import gen_resource_variable_ops as operations

    clear, make = context.pywrap_tfe.TFE_ContextClearCaches, operations.var_handle_op

    def var_handle_op(*args, **options):
        if context.executing_eagerly():
            options.pop("debug_name", None)
        return make(*args, **options)

    context.pywrap_tfe.TFE_ContextClearCaches = lambda handle: None
    operations.var_handle_op = var_handle_op

    def clear_kernels():
        handle = context.context()._context_handle
        if handle is not None:  # before the first operation there is none
            clear(handle)

    return clear_kernels


@functools.cache
def spare_graphs():
    """Leaves out what TensorFlow does to a graph or a dataset that runs only once or twice.

    Optimizing a graph, and storing the Python stack of each of its operations for messages:
    together a quarter of the time of the tests of generation. Tuning a dataset: the end of one that
    a training left waits for the tuning thread, which may sleep for half a minute.
    """
    import tensorflow as tf
    from tensorflow.python.data.ops import dataset_ops
    from tensorflow.python.util import tf_stack

    options = tf.data.Options()
    options.autotune.enabled = False
    dataset_ops.DatasetV2._apply_debug_options = lambda self: self.with_options(options)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    here = tf_stack.extract_stack()
    tf_stack.extract_stack = lambda stacklevel=1: here


@functools.cache
def spare_compilations():
    """Leaves out a part of what JAX does to run each operation of each shape for the first time.

    Random numbers compile for the longest, and each weight of another shape draws its own: here all
    are the first of those of one shape. And MLIR, from which XLA compiles, loads all its dialects
    for each operation: here once.
    """
    import jax
    from jax._src.interpreters import mlir

    mlir.make_ir_context = functools.cache(mlir.make_ir_context)
    for name in ("normal", "truncated_normal", "uniform"):
        setattr(jax.random, name, in_one_shape(getattr(jax.random, name)))


def in_one_shape(draw):
    """A function of `jax.random` that compiles once for all small shapes, except in a `jit`."""
    import jax
    import numpy as np

    @functools.wraps(draw)
    def drawn(key, *args, shape=None, **options):
        if args or shape is None or any(map(np.ndim, options.values())):
            return draw(key, *args, **({} if shape is None else {"shape": shape}), **options)
        size = math.prod(shape)
        many = draw(key, shape=(2 ** max(12, (size - 1).bit_length()),), **options)
        if isinstance(many, jax.core.Tracer):
            return draw(key, shape=shape, **options)
        return jax.numpy.asarray(np.asarray(many)[:size].reshape(shape))

    return drawn


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs `keras-tfm` in this process: its exit code, standard output and standard error."""
    monkeypatch.setenv("COLUMNS", "1000")

    def command(*arguments, lines=None):
        """`lines`: standard input; None: that of the test."""
        from keras_tfm import cli

        if lines is not None:
            content = "".join(f"{line}\n" for line in lines).encode()
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        monkeypatch.setattr(sys, "argv", ["keras-tfm", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        output = capsys.readouterr()
        return ended.value.code or 0, output.out, output.err

    return command


# Garbage: TensorFlow's converter begins a collection of all objects at each export, and Keras's
# `clear_session` one at each call; late in a run each took a second or more. So what stays of the
# tests so far is left out of later collections.
TESTS_BETWEEN = 50
# Kernels of eager operations are kept for so many.
TESTS_WITH_KERNELS = 500


def pytest_sessionstart(session):
    gc.disable()  # nothing of what is imported is garbage
    session.since_frozen = session.since_cleared = 0
    session.clear_kernels = None


def pytest_collection_finish():
    gc.freeze()
    gc.set_threshold(200_000, 20, 50)
    gc.enable()


@pytest.hookimpl(trylast=True)  # after the fixtures
def pytest_runtest_teardown(item, nextitem):
    session = item.session
    session.since_frozen += 1
    ends = nextitem is None or nextitem.path != item.path
    if ends or session.since_frozen >= TESTS_BETWEEN:
        gc.collect()
        gc.freeze()
        session.since_frozen = 0
    session.since_cleared += 1
    if session.clear_kernels and session.since_cleared >= TESTS_WITH_KERNELS:
        session.clear_kernels()
        session.since_cleared = 0


def pytest_sessionfinish(session, exitstatus):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not reporter:  # a worker
        return
    if session.config.option.passed_to:
        passed = [report.nodeid for report in reporter.stats.get("passed", [])]
        Path(session.config.option.passed_to).write_text("".join(f"{x}\n" for x in passed))
    if session.config.option.fail_on_skip and reporter.stats.get("skipped"):
        session.exitstatus = 1
        reporter.write_line("skipped tests fail this run: --fail-on-skip")
