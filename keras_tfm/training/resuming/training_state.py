"""Checkpoints of the training state: all variables, and the position in the data."""

import json
import shutil
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from keras_tfm import keras_internals
from keras_tfm.atomic_files import replacement
from keras_tfm.models.quantization.state import quantization_settings
from keras_tfm.training.resuming.callback_states import Json
from keras_tfm.training.strategies import is_chief

# The key, in a checkpoint, of the position and the configuration.
NOTES = "notes/.ATTRIBUTES/py_state"


class TrainingState:
    """The variables of a compiled model in training, saved as checkpoints in a folder.

    Args:
        model: a compiled `keras_tfm.Model`.
        directory: Path, the folder.
        keep: int, number of checkpoints to keep.
        settings: dict of settings that must be equal to resume, besides the model's configuration.
        first_batch: str, checksum of the first batch of the data. None: it is unknown.
    """

    def __init__(
        self,
        model: keras.Model,
        directory: Path,
        keep: int,
        settings: dict[str, Json],
        first_batch: str | None,
    ):
        strategy = model.distribute_strategy
        model.build_for(model.epoch_iterator)
        with strategy.scope():
            seed = keras_internals.global_seed()
        self.strategy = strategy
        self.directory = directory
        self.is_chief = is_chief(strategy)
        self.several_workers = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        # By id: a variable may be in both lists.
        variables = {id(v): v for v in [*model.variables, *model.optimizer.variables, seed]}
        self.metrics = list(model.metrics_variables)
        self.replicas = _local_replicas(strategy)
        self.notes = Notes()
        self.arrays = Arrays()
        self.checkpoint = tf.train.Checkpoint(
            variables=[v.value for v in variables.values()],
            notes=self.notes,
            arrays=self.arrays,
        )
        self.checkpoint.save_counter  # noqa: B018  created now, by every worker
        self.configuration = {
            **_configuration(model),
            "settings": json.loads(json.dumps(settings, default=str)),
            "first batch of the data": first_batch,
        }
        if self.is_chief:
            try:
                directory.mkdir(parents=True, exist_ok=True)
                (directory / ".writable").touch()
                (directory / ".writable").unlink()
            except OSError as error:
                raise OSError(f"checkpoints cannot be written to {directory}: {error}") from error
        self.manager: tf.train.CheckpointManager = None  # the chief's, after `restore`
        self._path: str | None = None  # of the checkpoint that was restored
        self.keep = keep

    def restore(self) -> dict[str, Json] | None:
        """Restores the newest complete checkpoint; returns its `position`, see `save`, or None.

        Its arrays are in `arrays.value` afterwards.
        """
        paths = self._paths()
        whole: list[str] = []
        found: dict[str, Json] | None = None
        for path in reversed(paths):
            try:
                notes = _read_whole(path)
            except Exception as error:  # TensorFlow raises a different type for each kind of damage
                reason = str(error).splitlines()[0]
                print(f"the checkpoint {path} is damaged and is skipped: {reason}", file=sys.stderr)
                continue
            whole.insert(0, path)
            if found is None:
                self._check_configuration(path, notes)
                self._path = path
                self.restore_variables()
                found = notes["position"]
        if paths and found is None:
            raise ValueError(
                f"none of the {len(paths)} checkpoints in {self.directory} can be read, expected "
                "at least one; delete the folder to start again"
            )
        self._agree(found["step"] if found else 0)
        if self.is_chief:
            self._manage(whole)
        return found

    def restore_variables(self) -> None:
        """Restores all variables again, because callbacks may have changed them since."""
        # Earlier versions stored the metrics as variables, too.
        self.checkpoint.restore(self._path).assert_existing_objects_matched()

    def metric_values(self) -> list[np.ndarray]:
        """The values of the metrics' variables on each replica, (replicas, ...).

        A metric is the sum over the replicas, whose parts may differ by rounding after a checkpoint
        that had only the sum. All workers must call this at the same step.
        """
        local = [[x.numpy() for x in self._of_each_replica(v)] for v in self.metrics]
        return [self.gather(np.stack(values)) for values in local]

    def set_metric_values(self, values: list[np.ndarray]) -> None:
        """Sets what `metric_values` returned."""
        for variable, of_all in zip(self.metrics, values, strict=True):
            parts = self._of_each_replica(variable)
            for part, value in zip(parts, of_all[self.replicas], strict=True):
                part.assign(value)

    def _of_each_replica(self, variable: keras.Variable) -> tuple[tf.Variable, ...]:
        """The variables of this worker's replicas, of which a variable consists."""
        return self.strategy.experimental_local_results(variable.value)

    def gather(self, local: np.ndarray) -> np.ndarray:
        """(this worker's replicas, ...) -> (all replicas, ...).

        All workers must call this at the same step.
        """
        if not self.several_workers:
            return local
        parts = iter(local)
        values = self.strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(next(parts)[None])
        )
        return self.strategy.gather(values, axis=0).numpy()

    def save(self, step: int, position: dict[str, Json], arrays: list[np.ndarray]) -> None:
        """Writes a checkpoint atomically: until it is complete, the previous one is the newest.

        Args:
            step: the number of steps so far.
            position: a JSON value.
            arrays: arrays that `position` refers to.
        """
        if not self.is_chief:
            return
        self.notes.value = {"configuration": self.configuration, "position": position}
        self.arrays.value = arrays
        try:
            self.manager.save(checkpoint_number=step)
        except (tf.errors.OpError, OSError) as error:
            raise OSError(
                f"the checkpoint of step {step} could not be written to {self.directory}: "
                f"{str(error).splitlines()[0]}; the newest complete one is "
                f"{self.manager.latest_checkpoint}"
            ) from error

    def _paths(self) -> list[str]:
        """The checkpoints of the folder, oldest first, complete or not."""
        indices = self.directory.glob("ckpt-*.index")
        paths = [str(path.with_suffix("")) for path in indices]
        return sorted(paths, key=lambda path: int(path.rpartition("-")[2]))

    def _manage(self, whole: list[str]) -> None:
        # What a save that was killed left: parts of a checkpoint, and of TensorFlow's list.
        for left in (*self.directory.glob("ckpt-*_temp"), *self.directory.glob("checkpoint.tmp*")):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        for left in self.directory.glob("ckpt-*.data-*"):
            if not left.with_suffix(".index").exists():
                left.unlink()
        # The list may be damaged or out of date: it is written again.
        listing = self.directory / "checkpoint"
        listing.unlink(missing_ok=True)
        if whole:
            lines = [f'all_model_checkpoint_paths: "{Path(path).name}"' for path in whole]
            # The manager never deletes a checkpoint without a timestamp.
            times = [Path(f"{path}.index").stat().st_mtime for path in whole]
            lines += [f"all_model_checkpoint_timestamps: {time}" for time in times]
            lines.append(f'model_checkpoint_path: "{Path(whole[-1]).name}"')
            with replacement(listing) as new:
                new.write_text("\n".join(lines) + "\n")
        self.manager = tf.train.CheckpointManager(
            self.checkpoint, str(self.directory), max_to_keep=self.keep
        )

    def _check_configuration(self, path: str, notes: dict[str, Json]) -> None:
        now = self.configuration
        # Checkpoints of earlier versions have no such entries.
        later = {"quantization": None, **{x: now[x] for x in ("metrics", "weighted_metrics")}}
        saved = {**later, **notes["configuration"]}
        if now["quantization"] == notes["position"].get("quantization"):
            # It may be the same model, whose rounding a callback has changed in that training.
            now["quantization"] = saved["quantization"]
        lines = _differences(saved, now)
        if lines:
            raise ValueError(
                f"the checkpoint {path} has another configuration; use its configuration, or "
                f"another folder: {'; '.join(lines)}"
            )

    def _agree(self, step: int) -> None:
        """Raises unless all workers resume from the same step."""
        if not self.several_workers:
            return
        steps = self.gather(np.full(len(self.replicas), step, "int64"))
        if (steps != step).any():
            raise ValueError(
                f"all workers must see the same folder, {self.directory}: expected step {step} on "
                f"each of them, got {steps.tolist()}"
            )


class Notes(tf.train.experimental.PythonState):
    """A JSON value that is part of a checkpoint."""

    value: Json = None

    def serialize(self) -> str:
        """The value as text."""
        return json.dumps(self.value)

    def deserialize(self, text: str | bytes) -> None:
        """Sets the value from text."""
        self.value = json.loads(text)


class Arrays(tf.train.experimental.PythonState):
    """A list of NumPy arrays that is part of a checkpoint."""

    value: list[np.ndarray] = []  # noqa: RUF012  replaced, never changed in place

    def serialize(self) -> bytes:
        """The arrays as bytes: a line of JSON with their dtypes and shapes, then their content."""
        header = [[x.dtype.name, x.shape] for x in self.value]
        return b"\n".join([json.dumps(header).encode(), b"".join(x.tobytes() for x in self.value)])

    def deserialize(self, content: bytes) -> None:
        """Sets the arrays from bytes."""
        header, _, data = content.partition(b"\n")
        self.value, offset = [], 0
        for name, shape in json.loads(header):
            array = np.ndarray(shape, np.dtype(name), data, offset).copy()
            self.value.append(array)
            offset += array.nbytes


def _local_replicas(strategy: tf.distribute.Strategy) -> list[int]:
    """The numbers of this worker's replicas among those of all workers."""
    numbers = strategy.experimental_distribute_values_from_function(
        lambda context: context.replica_id_in_sync_group
    )
    return [*strategy.experimental_local_results(numbers)]


def _read_whole(path: str) -> dict[str, Json]:
    """The notes of a checkpoint. Reads every tensor, which verifies its checksum."""
    reader = tf.train.load_checkpoint(path)
    for name in reader.get_variable_to_shape_map():
        reader.get_tensor(name)
    return json.loads(reader.get_tensor(NOTES))


def _configuration(model: keras.Model) -> dict[str, Json]:
    """The settings that determine the trained weights, without names.

    Names get new numbers when a notebook cell runs again.
    """
    compiled = model.get_compile_config()
    return {
        "layers": [_without_names(_layer_config(layer)) for layer in model.layers],
        "variables": [[list(v.shape), str(v.dtype)] for v in model.variables],
        **{
            name: _without_names(compiled.get(name))
            for name in (
                "optimizer",
                "loss",
                "loss_weights",
                "metrics",
                "weighted_metrics",
                "gradient_accumulation_steps",
            )
        },
        "quantization": quantization_settings(model),
        "replicas": model.distribute_strategy.num_replicas_in_sync,
    }


def _layer_config(layer: keras.layers.Layer) -> Json:
    if isinstance(layer, keras.Model):
        return [_layer_config(inner) for inner in layer.layers]
    return {"class": type(layer).__name__, **layer.get_config()}


def _without_names(config: Json) -> Json:
    """A configuration as plain values, without names."""
    if isinstance(config, dict):
        return {
            str(key): _without_names(value)
            for key, value in config.items()
            if key not in ("name", "build_config", "registered_name", "module")
        }
    if isinstance(config, (list, tuple)):
        return [_without_names(value) for value in config]
    if isinstance(config, (str, int, float, bool, type(None))):
        return config
    if hasattr(config, "get_config"):
        return {"class": type(config).__name__, **_without_names(config.get_config())}
    return str(config)


def _differences(saved: Json, now: Json, name: str = "") -> list[str]:
    """One line for each difference between two nested values."""
    if isinstance(saved, dict) and isinstance(now, dict):
        keys = [*saved, *(key for key in now if key not in saved)]
        return [
            line
            for key in keys
            for line in _differences(
                saved.get(key, "nothing"), now.get(key, "nothing"), f"{name}.{key}" if name else key
            )
        ]
    if isinstance(saved, list) and isinstance(now, list) and len(saved) == len(now):
        pairs = enumerate(zip(saved, now, strict=True))
        return [line for n, (a, b) in pairs for line in _differences(a, b, f"{name}[{n}]")]
    if isinstance(saved, list) and isinstance(now, list):
        return [f"{name}: {len(saved)} in the checkpoint, {len(now)} now"]
    return [] if saved == now else [f"{name}: {saved!r} in the checkpoint, {now!r} now"]
