"""Which devices train: one call that gives the `tf.distribute` strategy."""

import json
import os
from collections.abc import Sequence
from typing import Any

import keras

KINDS = ("auto", "one", "mirrored", "multi_worker", "tpu")


def distribution(kind: str = "auto", devices: Sequence[str] | None = None) -> Any:
    """The strategy under which a `keras_tfm.Model` trains; make the model in its `scope()`.

    `fit` then splits each batch among the replicas: `batch_size` is the size of the whole batch.
    Losses are divided by what all replicas count, so that one, two and four of them give equal
    weights (dropout aside, which each draws for itself).

    Args:
        kind:
            - "one": one device, the first GPU where there is one.
            - "mirrored": every GPU of this machine; without any, every logical CPU.
            - "multi_worker": this process and those that the environment variable TF_CONFIG
              names, one on each machine; every one of them runs the same program. Call this
              before anything else of TensorFlow.
            - "tpu": the TPU of this machine, or the one that TPU_NAME names. Never run by us: no
              TPU was at hand.
            - "auto": "multi_worker" where TF_CONFIG names several workers, else "tpu" where there
              is one, else "mirrored" where there are several GPUs, else "one".
        devices: for "one" a device, for "mirrored" several: `["GPU:0", "GPU:2"]`.

    Returns:
        A `tf.distribute.Strategy`.

    Raises:
        ValueError: for another kind, or devices that are not there.
        RuntimeError: where TensorFlow began before its workers were named.

    Example:

    >>> import keras_tfm
    >>> from keras_tfm import training
    >>> with training.distribution("one").scope():
    ...     model = keras_tfm.models.transformer(11, dim=8, num_layers=1, num_heads=2)
    >>> model.distribute_strategy.num_replicas_in_sync
    1
    """
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            f"tf.distribute needs Keras's TensorFlow backend, got {keras.backend.backend()!r}"
        )
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    import tensorflow as tf

    chosen = _chosen() if kind == "auto" else kind
    if devices is not None and chosen not in ("one", "mirrored"):
        raise ValueError(f"devices are chosen by {chosen!r} itself, got {list(devices)}")
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
        # Without a wish, what TensorFlow does anyway: nothing to pay, and XLA may compile.
        return (
            tf.distribute.OneDeviceStrategy(names[0]) if devices else tf.distribute.get_strategy()
        )
    # Collectives on CPUs remember the number of replicas of the process's first strategy.
    reduction = tf.distribute.ReductionToOneDevice() if "CPU" in names[0] else None
    return tf.distribute.MirroredStrategy(names, cross_device_ops=reduction)


def is_chief(strategy: Any = None) -> bool:
    """Whether this process is the one that writes: files, pictures, the exported model.

    True everywhere but on the workers of `MultiWorkerMirroredStrategy` from the second on.

    Args:
        strategy: the model's; by default the one of the scope.

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


def _chosen() -> str:
    import tensorflow as tf

    if len(_workers()) > 1:
        return "multi_worker"
    if tf.config.list_physical_devices("TPU"):
        return "tpu"
    return "mirrored" if len(tf.config.list_logical_devices("GPU")) > 1 else "one"


def _workers() -> list[str]:
    """The addresses that TF_CONFIG names."""
    text = os.environ.get("TF_CONFIG", "")
    try:
        cluster = json.loads(text or "{}").get("cluster", {})
        return [*cluster.get("chief", []), *cluster.get("worker", [])]
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(
            'TF_CONFIG must be JSON like {"cluster": {"worker": ["host1:2222", "host2:2222"]}, '
            f'"task": {{"type": "worker", "index": 0}}}}, got {text!r}'
        ) from error


def _multi_worker() -> Any:
    import tensorflow as tf

    if not _workers():
        raise ValueError(
            "several workers are named by the environment variable TF_CONFIG, which is not set: "
            '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", '
            '"index": 0}}, with its own index on each; examples/multi_worker starts some here'
        )
    try:
        return tf.distribute.MultiWorkerMirroredStrategy()
    except RuntimeError as error:
        raise RuntimeError(
            "the workers must be named before TensorFlow begins: call "
            'training.distribution("multi_worker") before anything that makes a tensor or a layer'
        ) from error


def _names(kind: str) -> list[str]:
    import tensorflow as tf

    return [f"{kind}:{n}" for n in range(len(tf.config.list_logical_devices(kind)))]
