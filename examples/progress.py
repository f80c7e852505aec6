"""Lines of progress of the long trainings among the examples."""

import time
from collections.abc import Callable
from typing import Any


def every(count: int) -> Callable[[int, Any], None]:
    """Prints a line each so many batches, for `LambdaCallback(on_train_batch_end=)`.

    Keras's own lines are of an epoch; what stands in these is the mean of the epoch so far.
    """
    start, steps = time.perf_counter(), 0

    def show(_: int, logs: Any) -> None:
        nonlocal steps
        steps += 1
        if steps % count == 0:
            minutes = (time.perf_counter() - start) / 60
            values = ", ".join(f"{name} {value:.3f}" for name, value in logs.items())
            print(f"step {steps:,}: {minutes:.1f} minutes; {values}", flush=True)

    return show
