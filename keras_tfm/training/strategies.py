"""Chooses the training devices: `distribution` returns a `tf.distribute` strategy."""

import json
import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import keras

# `tf.distribute.Strategy`, which only `distribution` imports.
Strategy: TypeAlias = Any


# What other backends have.
INSTEAD = {
    "jax": "use keras.distribution.DataParallel, or ModelParallel with training.layout_map",
    "torch": "use torch.nn.parallel.DistributedDataParallel",
}
KINDS = ("auto", "one", "mirrored", "multi_worker", "tpu")


def distribution(kind: str = "auto", devices: Sequence[str] | None = None) -> Strategy:
    """Returns the strategy for training a `keras_tfm.Model`; create the model in its `scope()`.

    `fit` then splits each batch among the replicas: `batch_size` is the size of the whole batch.
    Losses are divided by the count of all replicas, so that the trained weights do not depend on
    the number of replicas (except for dropout, which each replica draws for itself).

    Args:
        kind:
            - "one": one device, the first GPU if there is one.
            - "mirrored": all GPUs of this machine, or all logical CPUs if there is no GPU.
            - "multi_worker": the processes listed in the environment variable TF_CONFIG, usually
              one per machine. Each of them runs the same program. Call this before any other
              TensorFlow function.
            - "tpu": the TPU of this machine, or the one named by TPU_NAME. Not tested: no TPU was
              available.
            - "auto": "multi_worker" if TF_CONFIG lists several workers, else "tpu" if there is one,
              else "mirrored" if there are several GPUs, else "one".
        devices: list of str, the device for "one" or the devices for "mirrored", such as
            `["GPU:0", "GPU:2"]`. Default: as above.

    Returns:
        A `tf.distribute.Strategy`.

    Raises:
        ValueError: the kind is unknown, or a device does not exist.
        RuntimeError: TensorFlow was initialized before the call with "multi_worker", or the backend
            is not TensorFlow.

    Example:

    >>> import keras_tfm
    >>> from keras_tfm import training
    >>> with training.distribution("one").scope():
    ...     model = keras_tfm.models.transformer(11, dim=8, num_layers=1, num_heads=2)
    >>> model.distribute_strategy.num_replicas_in_sync
    1
    """
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise RuntimeError(
            f"tf.distribute needs Keras's TensorFlow backend, got {backend!r}: {INSTEAD[backend]}"
        )
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    import tensorflow as tf

    chosen = _choose() if kind == "auto" else kind
    if devices is not None and chosen not in ("one", "mirrored"):
        raise ValueError(f"devices must be None with kind {chosen!r}, got {list(devices)}")
    if chosen == "multi_worker":
        return _multi_worker()
    if chosen == "tpu":
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(os.environ.get("TPU_NAME", ""))
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    names = _names("GPU") or _names("CPU")
    if devices is not None:
        known = _names("GPU") + _names("CPU")
        missing = [device for device in devices if device not in known]
        if missing or not devices or (chosen == "one" and len(devices) != 1):
            raise ValueError(
                f"devices must be {'one' if chosen == 'one' else 'some'} of {known}, "
                f"got {list(devices)}"
            )
        names = list(devices)
    if chosen == "one":
        # Without `devices`, the default strategy: no overhead, and XLA may compile.
        return (
            tf.distribute.OneDeviceStrategy(names[0]) if devices else tf.distribute.get_strategy()
        )
    # Collectives on CPUs keep the number of replicas of the first strategy of the process.
    reduction = tf.distribute.ReductionToOneDevice() if "CPU" in names[0] else None
    return tf.distribute.MirroredStrategy(names, cross_device_ops=reduction)


def is_chief(strategy: Strategy | None = None) -> bool:
    """Whether this process should write files, such as images and the exported model.

    False only on workers other than the first under `MultiWorkerMirroredStrategy`.

    Args:
        strategy: `tf.distribute.Strategy` of the model. Default: the one whose scope is open.

    Example:

    >>> from keras_tfm import training
    >>> training.is_chief(training.distribution("one"))
    True
    """
    import tensorflow as tf

    resolver = (strategy or tf.distribute.get_strategy()).cluster_resolver
    if resolver is None or not resolver.task_type:
        return True
    if resolver.task_type == "chief":
        return True
    has_chief = "chief" in resolver.cluster_spec().jobs
    return resolver.task_type == "worker" and resolver.task_id == 0 and not has_chief


def _choose() -> str:
    import tensorflow as tf

    if len(_workers()) > 1:
        return "multi_worker"
    if tf.config.list_physical_devices("TPU"):
        return "tpu"
    return "mirrored" if len(tf.config.list_logical_devices("GPU")) > 1 else "one"


def _workers() -> list[str]:
    """The addresses of the workers in TF_CONFIG."""
    text = os.environ.get("TF_CONFIG", "")
    try:
        cluster = json.loads(text or "{}").get("cluster", {})
        return [*cluster.get("chief", []), *cluster.get("worker", [])]
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(
            'TF_CONFIG must be JSON like {"cluster": {"worker": ["host1:2222", "host2:2222"]}, '
            f'"task": {{"type": "worker", "index": 0}}}}, got {text!r}'
        ) from error


def _multi_worker() -> Strategy:
    import tensorflow as tf

    if not _workers():
        raise ValueError(
            "multi_worker needs the environment variable TF_CONFIG, with a different index on each "
            'worker: {"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": '
            f'"worker", "index": 0}}}}, got {os.environ.get("TF_CONFIG")!r}'
        )
    try:
        return tf.distribute.MultiWorkerMirroredStrategy()
    except RuntimeError as error:
        raise RuntimeError(
            'training.distribution("multi_worker") must be called before TensorFlow creates its '
            f"first tensor or layer, got: {str(error).splitlines()[0]}"
        ) from error


def _names(kind: str) -> list[str]:
    import tensorflow as tf

    return [f"{kind}:{n}" for n in range(len(tf.config.list_logical_devices(kind)))]
