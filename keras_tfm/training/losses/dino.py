"""Self-distillation without labels: DINO (arXiv:2104.14294)."""

from collections.abc import Callable
from typing import Any, TypeAlias

import keras
from keras import ops

from keras_tfm.arguments import check_integer, check_positive, check_rate
from keras_tfm.distributed.replicas import gather_rows
from keras_tfm.layers.types import Arguments, Config, Tensor
from keras_tfm.models import Model
from keras_tfm.models.with_dtype import read_statistics
from keras_tfm.training.losses.token_losses import Tensors

# A number, or a `keras.optimizers.schedules.LearningRateSchedule`.
Schedule: TypeAlias = float | Callable[[Tensor], Tensor]


@keras.saving.register_keras_serializable("keras_tfm")
class DINO(Model):
    """Trains a model of pictures without labels, by `fit` on pictures alone.

    A student and a teacher of the same architecture see different crops of a picture. The student
    learns to predict the teacher's distribution over K prototypes,

    loss = - mean of sum_k P_k(x) log Q_k(x'), P = softmax((g_t(x) - c) / t_t),
    Q = softmax(g_s(x') / t_s),

    over all pairs of a global crop x of the teacher and another crop x' of the student: "Emerging
    Properties in Self-Supervised Vision Transformers" (arXiv:2104.14294). The teacher's weights are
    an exponential moving average of the student's, and c, the centre, one of the teacher's outputs,
    which prevents that all pictures get the same prototype. The teacher is the better one of the
    two: `dino.backbone` is its backbone, the model to use after training.

    Args:
        backbone: functional model from pixels (B, H, W, C) to features (B, T, D), whose first token
            is used, or to a vector (B, D). It must take both sizes of crops, as
            `models.vit(image_size=None, ...)` does. It becomes the student's.
        global_crop: layer from pictures to large random crops, such as a `keras.Sequential` of
            `layers.RandomResizedCrop(scale=(0.4, 1))` and Keras's random layers. It is called twice
            for a batch.
        local_crop: layer from pictures to small crops, for the student alone.
        num_local_crops: int, number of local crops.
        num_prototypes: int (K), width of the output; 65,536 in the paper.
        hidden_dim: int, width of the two hidden layers of the head.
        bottleneck_dim: int, width of the normalised vector before the prototypes.
        student_temperature: float, t_s.
        teacher_temperature: float, t_t, or a `LearningRateSchedule` of it.
        teacher_momentum: float, momentum of the teacher's average, or a schedule; in the paper from
            0.996 to 1 along a cosine.
        center_momentum: float, momentum of the centre's average.
        centering: str, "mean", the paper's, or "sinkhorn_knopp", DINOv2's (arXiv:2304.07193):
            instead of a centre, three iterations of the Sinkhorn-Knopp algorithm make the teacher's
            distributions of a batch use all prototypes alike, so not all pictures get the same
            target. `teacher_temperature` must be low, such as 0.01, for targets that differ.
        head_batch_norm: bool, whether the hidden layers of the head are batch-normalised. With it
            fewer steps suffice: the vectors of an untrained backbone are nearly parallel, and then
            the targets of different pictures hardly differ.
        frozen_steps: int, number of steps in which the prototypes do not learn; in the paper those
            of the first epoch.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or a backbone with another kind of output.

    Called on pictures, the model returns the features (B, D) of the teacher's backbone. On the
    TensorFlow backend, `fit` runs under every strategy of `keras_tfm.training.distribution`, with
    the mean of the replicas' centres.

    Example:

    >>> import keras, numpy as np
    >>> from keras_tfm import layers, models, training
    >>> sizes = {"dim": 12, "num_layers": 1, "num_heads": 3, "intermediate_dim": 16}
    >>> backbone = models.vit(None, 4, position_size=16, **sizes)
    >>> dino = training.DINO(
    ...     backbone, layers.RandomResizedCrop(16, (0.4, 1.0)),
    ...     layers.RandomResizedCrop(8, (0.1, 0.4)), num_local_crops=2, num_prototypes=20,
    ...     hidden_dim=16, bottleneck_dim=8,
    ... )
    >>> dino.compile(keras.optimizers.AdamW(1e-3))
    >>> history = dino.fit(np.zeros((4, 24, 24, 3), "uint8"), batch_size=2, verbose=0)
    >>> dino.predict(np.zeros((3, 16, 16, 3), "uint8"), verbose=0).shape
    (3, 12)
    """

    def __init__(
        self,
        backbone: keras.Model,
        global_crop: keras.layers.Layer,
        local_crop: keras.layers.Layer | None = None,
        num_local_crops: int = 6,
        num_prototypes: int = 4096,
        hidden_dim: int = 2048,
        bottleneck_dim: int = 256,
        student_temperature: float = 0.1,
        teacher_temperature: Schedule = 0.04,
        teacher_momentum: Schedule = 0.996,
        center_momentum: float = 0.9,
        frozen_steps: int = 0,
        centering: str = "mean",
        head_batch_norm: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if centering not in ("mean", "sinkhorn_knopp"):
            raise ValueError(f"centering must be 'mean' or 'sinkhorn_knopp', got {centering!r}")
        check_integer("num_local_crops", num_local_crops, minimum=0)
        check_integer("frozen_steps", frozen_steps, minimum=0)
        check_positive("student_temperature", student_temperature)
        check_rate("center_momentum", center_momentum)
        if not callable(teacher_temperature):
            check_positive("teacher_temperature", teacher_temperature)
        if not callable(teacher_momentum):
            check_rate("teacher_momentum", teacher_momentum)
        if (local_crop is None) != (num_local_crops == 0):
            raise ValueError(
                f"local_crop and num_local_crops go together, got {local_crop!r} and "
                f"{num_local_crops}"
            )
        self.num_local_crops = num_local_crops
        self.num_prototypes = num_prototypes
        self.hidden_dim = hidden_dim
        self.bottleneck_dim = bottleneck_dim
        self.student_temperature = student_temperature
        self.teacher_temperature = teacher_temperature
        self.teacher_momentum = teacher_momentum
        self.center_momentum = center_momentum
        self.frozen_steps = frozen_steps
        self.centering = centering
        self.head_batch_norm = head_batch_norm
        self.global_crop = global_crop
        self.local_crop: keras.layers.Layer = local_crop
        self.student_backbone = backbone
        self.backbone = keras.models.clone_model(backbone)
        self.student = self._network(self.student_backbone, "student")
        self.teacher = self._network(self.backbone, "teacher")
        self.teacher.trainable = False
        self.prototypes = self.add_weight(
            name="prototypes",
            shape=(bottleneck_dim, num_prototypes),
            initializer=keras.initializers.TruncatedNormal(stddev=0.02),
        )
        still: Arguments = {"initializer": "zeros", "trainable": False}
        self.teacher_prototypes = self.add_weight(
            name="teacher_prototypes", shape=self.prototypes.shape, **still
        )
        self.center = self.add_weight(
            name="center", shape=(num_prototypes,), aggregation="mean", **still
        )
        self.step = self.add_weight(
            name="step", shape=(), dtype="int32", aggregation="only_first_replica", **still
        )
        self.teacher.set_weights(self.student.get_weights())
        read_statistics(self.teacher)
        # A copy: JAX would share the buffer.
        self.teacher_prototypes.assign(ops.convert_to_numpy(self.prototypes))
        self.built = True

    def compile(self, *args: Any, gradient_accumulation_steps: int = 1, **kwargs: Any) -> None:
        """`keras.Model.compile`; the loss is DINO's own."""
        if kwargs.get("loss") is not None or len(args) > 1:
            raise ValueError("DINO has a loss of its own: compile(optimizer) without a loss")
        if gradient_accumulation_steps != 1:
            raise ValueError(
                "gradient_accumulation_steps must be 1 for DINO, whose teacher changes with each "
                f"batch, got {gradient_accumulation_steps}"
            )
        super().compile(*args, **kwargs)

    def call(self, pixels: Tensor, training: bool | None = None) -> Tensors:
        """(B, H, W, C) -> (B, D), or in training the outputs of student and teacher."""
        if not training:
            return _features(self.backbone(pixels, training=False))
        crops = [self.global_crop(pixels, training=True) for _ in range(2)]
        self._average_weights()
        targets = self._targets(crops)
        crops += [self.local_crop(pixels, training=True) for _ in range(self.num_local_crops)]
        # One call for all crops of a size: the same rows, in fewer and larger products.
        groups = [crops[:2], crops[2:]] if self.num_local_crops else [crops]
        learned = ops.convert_to_tensor(self.prototypes)
        if self.frozen_steps:
            still = ops.stop_gradient(learned)
            learned = ops.where(self.step < self.frozen_steps, still, learned)
        outputs = []
        for group in groups:
            y = self._logits(self.student(ops.concatenate(group), training=True), learned)
            outputs += ops.split(y, len(group))
        self.step.assign_add(1)
        return {"student": outputs, "teacher": targets}

    def compute_loss(
        self,
        x: Tensor = None,
        y: Tensor = None,
        y_pred: Tensors = None,
        sample_weight: Tensor = None,
        training: bool = True,
    ) -> Tensor:
        """The mean cross entropy of all pairs of crops."""
        if not isinstance(y_pred, dict):
            raise ValueError("DINO has no loss outside training: leave out validation data")
        terms = []
        for i, target in enumerate(y_pred["teacher"]):
            for j, output in enumerate(y_pred["student"]):
                if i != j:
                    log_q = ops.log_softmax(output / self.student_temperature, axis=-1)
                    terms.append(-ops.mean(ops.sum(target * log_q, axis=-1)))
        return sum(terms) / len(terms)

    def _targets(self, crops: list[Tensor]) -> list[Tensor]:
        """The teacher's distributions (B, K) for the global crops; moves the centre."""
        y = self.teacher(ops.concatenate(crops), training=False)
        y = ops.stop_gradient(self._logits(y, self.teacher_prototypes))
        temperature = ops.cast(_at(self.teacher_temperature, self.step), "float32")
        if self.centering == "sinkhorn_knopp":
            return list(ops.split(_sinkhorn_knopp(y / temperature), 2))
        p = ops.softmax((y - self.center) / temperature, axis=-1)
        momentum = self.center_momentum
        mean = self.weigh_mean(ops.mean(y, axis=0))  # `center` is a mean over the replicas
        self.center.assign(momentum * self.center + (1 - momentum) * mean)
        return list(ops.split(p, 2))

    def _average_weights(self) -> None:
        """Moves the teacher towards the student, whose last step was made since."""
        momentum = ops.cast(_at(self.teacher_momentum, self.step), "float32")
        slow = [*self.teacher.weights, self.teacher_prototypes]
        fast = [*self.student.weights, self.prototypes]
        for mine, new in zip(slow, fast, strict=True):
            if "float" in mine.dtype:  # seeds of random generators are integers
                mine.assign(momentum * mine + (1.0 - momentum) * ops.stop_gradient(new))

    def _logits(self, x: Tensor, prototypes: Tensor) -> Tensor:
        """Products with vectors of length 1: (B, N) -> (B, K), float32."""
        kernel = ops.cast(prototypes, "float32")
        kernel = kernel / ops.norm(kernel, axis=0, keepdims=True)
        return ops.matmul(ops.cast(x, "float32"), kernel)

    def _network(self, backbone: keras.Model, name: str) -> keras.Model:
        """A backbone with a head, from pixels to vectors of length 1."""
        pixels = keras.Input(backbone.input.shape[1:], name="pixels")
        x = _features(backbone(pixels))
        dims = (self.hidden_dim, self.hidden_dim, self.bottleneck_dim)
        for i, dim in enumerate(dims):
            normal = keras.initializers.TruncatedNormal(stddev=0.02)
            x = keras.layers.Dense(dim, kernel_initializer=normal, name=f"head_{i}")(x)
            if i == 2:
                break
            if self.head_batch_norm:  # PyTorch's defaults; the rows of all replicas
                norm = {"momentum": 0.9, "epsilon": 1e-5, "name": f"head_norm_{i}"}
                norm["synchronized"] = keras.backend.backend() == "tensorflow"
                x = keras.layers.BatchNormalization(**norm)(x)
            x = keras.layers.Activation("gelu", name=f"head_activation_{i}")(x)
        x = keras.layers.UnitNormalization(dtype="float32", name="normalize")(x)
        return keras.Model(pixels, x, name=name)

    def get_config(self) -> Config:
        """The constructor's arguments."""
        parts = {
            "backbone": self.student_backbone,
            "global_crop": self.global_crop,
            "local_crop": self.local_crop,
            "teacher_temperature": self.teacher_temperature,
            "teacher_momentum": self.teacher_momentum,
        }
        names = (
            *("num_local_crops", "num_prototypes", "hidden_dim", "bottleneck_dim"),
            *("student_temperature", "center_momentum", "frozen_steps"),
            *("centering", "head_batch_norm"),
        )
        return {
            "name": self.name,
            **{name: keras.saving.serialize_keras_object(part) for name, part in parts.items()},
            **{name: getattr(self, name) for name in names},
        }

    @classmethod
    def from_config(cls, config: Config, custom_objects: Arguments | None = None) -> "DINO":
        """The model of a configuration."""
        restored = {
            name: keras.saving.deserialize_keras_object(value, custom_objects)
            if isinstance(value, dict)
            else value
            for name, value in config.items()
        }
        return cls(**restored)


def _features(y: Tensors) -> Tensor:
    """The vector (B, D) of a backbone's output: the first token's features."""
    y = y["features"] if isinstance(y, dict) else y
    if len(y.shape) not in (2, 3):
        raise ValueError(
            f"expected a backbone with features (B, T, D) or a vector (B, D), got {tuple(y.shape)}"
        )
    return y[:, 0] if len(y.shape) == 3 else y


def _sinkhorn_knopp(logits: Tensor, iterations: int = 3) -> Tensor:
    """Distributions (B, K) in which each prototype has the same share of the batch.

    The rows of all replicas count as one batch. In logarithms: exp(1 / temperature) may overflow.
    """
    x, before = gather_rows(logits)
    for _ in range(iterations):
        x = x - ops.logsumexp(x, axis=0, keepdims=True)
        x = x - ops.logsumexp(x, axis=1, keepdims=True)
    rows = ops.shape(logits)[0]
    return ops.exp(ops.slice(x, (before, 0), (rows, logits.shape[1])))


def _at(value: Schedule, step: Tensor) -> Tensor:
    """The value of a number or a schedule at a step."""
    return value(step) if callable(value) else value
