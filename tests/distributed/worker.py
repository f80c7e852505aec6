"""One of several workers: trains, evaluates, predicts, and says what came out.

python worker.py [--whole] [--transformer] [--rounded]
    [--resume FOLDER [--kill-worker N --at-step S [--signal 15]]] [--every-minutes M]

What is resumed is small and has dropout.
"""

import argparse
import os
import time

import small_training  # first: it quietens TensorFlow

from keras_tfm import training

strategy = training.distribution()  # of TF_CONFIG: before anything else of TensorFlow

import keras  # noqa: E402


class Kill(keras.callbacks.Callback):
    def __init__(self, step, signal):
        super().__init__()
        self.left, self.signal = step, signal

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.signal)


class LateClock(keras.callbacks.Callback):
    """Slow steps, and a clock of `Resume` that starts half a second later on worker 1."""

    def on_train_begin(self, logs=None):
        time.sleep(0.5 * strategy.cluster_resolver.task_id)

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.1)


def trained(make, *callbacks, **options):
    inputs, labels = small_training.data()
    keras.utils.clear_session()
    with strategy.scope():
        keras.utils.set_random_seed(1)
        model = small_training.compiled(make(**options))
    inputs = {name: inputs[name] for name in model.input}
    history = model.fit(
        inputs,
        labels,
        batch_size=6,
        epochs=3,
        verbose=0,
        callbacks=callbacks,
        validation_data=(inputs, labels),
    ).history
    return {
        "workers": strategy.num_replicas_in_sync,
        "weights": small_training.weights(model),
        "history": history,
        "evaluation": model.evaluate(inputs, labels, batch_size=6, verbose=0, return_dict=True),
        "predictions": model.predict(inputs, batch_size=6, verbose=0).ravel().tolist(),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--whole", action="store_true", help="without dropout")
    parser.add_argument("--transformer", action="store_true", help="a transformer too")
    parser.add_argument("--rounded", action="store_true", help="with weights of 4 bits, too")
    parser.add_argument("--resume")
    parser.add_argument("--resume-of-each", nargs="+", help="a folder for each worker")
    parser.add_argument("--kill-worker", type=int)
    parser.add_argument("--at-step", type=int)
    parser.add_argument("--signal", type=int, default=9)
    parser.add_argument("--every-minutes", type=float)
    arguments = parser.parse_args()
    resolver = strategy.cluster_resolver
    task = resolver.task_id if resolver else 0

    results = {}
    if arguments.whole:
        results["small"] = trained(small_training.embedding)
    if arguments.transformer:
        results["transformer"] = trained(small_training.model)
    if arguments.rounded:
        results["rounded"] = trained(small_training.rounded)
    if arguments.resume_of_each:
        arguments.resume = arguments.resume_of_each[task]
    if arguments.resume:
        minutes = arguments.every_minutes
        when = {"every_minutes": minutes} if minutes else {"every_steps": 2}
        callbacks = [training.Resume(arguments.resume, **when)]
        if minutes:
            callbacks.insert(0, LateClock())
        if arguments.kill_worker == task:
            callbacks.append(Kill(arguments.at_step, arguments.signal))
        results["resumed"] = trained(small_training.embedding, *callbacks, dropout=0.2)
    if training.is_chief(strategy):
        small_training.say(**results)


if __name__ == "__main__":
    main()
