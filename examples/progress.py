"""Progress lines for the examples with long training."""

import time
from collections.abc import Callable
from typing import Any


def every(count: int) -> Callable[[int, Any], None]:
    """Prints a line every `count` batches, for `LambdaCallback(on_train_batch_end=...)`.

    With `verbose=2` Keras prints one line per epoch only. The values are means over the epoch so
    far.
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
