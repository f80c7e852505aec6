"""A SavedModel that takes strings, served over HTTP by plain TensorFlow, without Keras.

    pip install -e ".[examples]"
    python export/saved_model_server.py              # two minutes: trains, exports, tests a server
    python export/saved_model_server.py --serve      # answers on port 8501, as TensorFlow Serving
    curl -d '{"instances": ["Neuseeland"]}' localhost:8501/v1/models/names:predict

To serve your own model, copy this script, and replace the classifier by your model. TensorFlow
Serving can load the folder that it writes (`--model_base_path`). The tokenizer is inside, so
clients send text. The model is that of export/classifier.py: the language that a name is written
in.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

# Set before TensorFlow is imported: log only errors.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

FOLDER = Path("artifacts/export/names/1")  # 1 is the version that TensorFlow Serving expects
ROUTE = "/v1/models/names:predict"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--serve", action="store_true", help="answer until interrupted")
    parser.add_argument("--port", type=int, default=8501)
    parser.add_argument("--smoke", action="store_true", help="a short test run, half a minute")
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.port)
    else:
        export(arguments.smoke)


def export(smoke: bool) -> None:
    sys.path.append(str(Path(__file__).parent))
    import classifier
    import numpy as np

    from keras_tfm.runtime import native_log

    with native_log.remove():
        import keras

        from keras_tfm.export import export_saved_model

        keras.utils.set_random_seed(0)
    train, test = classifier.data.split(classifier.data.names())
    np.random.default_rng(0).shuffle(train)
    texts, classes = classifier.examples_of(train)
    # Uses only TensorFlow's own operators, so the SavedModel runs wherever TensorFlow does.
    tokenizer = keras.layers.TextVectorization(standardize=None, split="character")
    tokenizer.adapt(texts)
    languages = classifier.data.LANGUAGES
    model = classifier.build(
        tokenizer.vocabulary_size(), len(languages), *((16, 1) if smoke else (64, 2))
    )
    model.compile(
        keras.optimizers.Adam(0.002),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    few = 2_000 if smoke else None
    ids = np.asarray(tokenizer(texts), "int32")
    model.fit(ids[:few], classes[:few], batch_size=64, epochs=1 if smoke else 3, verbose=2)
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    export_saved_model(model, FOLDER, ["predict_text"], tokenizer=tokenizer)
    size = sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file())
    print(f"{FOLDER}: {size / 1e6:.2f} MB")

    # Verify: a server in a separate process must give the same answers as Keras in this one.
    questions = [name.text for name in test[:50]]
    expected = model.predict(np.asarray(tokenizer(questions), "int32"), verbose=0)
    command = [sys.executable, __file__, "--serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = server.stdout.readline().split()[-1]
            body = json.dumps({"instances": questions}).encode()
            with urllib.request.urlopen(address + ROUTE, body, timeout=60) as answer:
                found = np.array(json.load(answer)["predictions"])
        finally:
            server.terminate()
    print(
        f"{len(questions)} answers over HTTP, "
        f"largest difference from Keras {np.abs(found - expected).max():.1e}"
    )
    for question, scores in list(zip(questions, found, strict=True))[:3]:
        print(f"{question} -> {languages[scores.argmax()]}")


def serve(port: int) -> None:
    """Answers POST {"instances": [text, ...]} with {"predictions": [[score, ...], ...]}."""
    import tensorflow as tf

    model = tf.saved_model.load(str(FOLDER))
    predict, lock = model.signatures["predict_text"], threading.Lock()
    (name,) = predict.structured_input_signature[1]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                if self.path != ROUTE:
                    raise ValueError(f"expected POST {ROUTE}, got {self.path}")
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                texts = json.loads(body)["instances"]
                if not texts or not all(isinstance(text, str) for text in texts):
                    raise ValueError('expected {"instances": [text, ...]}')
                with lock:
                    scores = predict(**{name: tf.constant(texts)})["output"]
                self.answer(200, {"predictions": scores.numpy().tolist()})
            except (ValueError, KeyError, TypeError) as error:
                self.answer(400, {"error": f"{type(error).__name__}: {error}"})

        def answer(self, code: int, content: dict) -> None:
            body = json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print(f"serving {FOLDER} at http://127.0.0.1:{server.server_port}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()


if __name__ == "__main__":
    main()
