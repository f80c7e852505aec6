"""Python's answers with the same files, which page.test.js compares with the browser's.

    python examples/web/test/expected.py FOLDER OUTPUT.json [DATES]

FOLDER holds float32.tflite and int8.tflite of examples/dates.py, and similar files. They are asked
DATES dates (default 150), and a third as many dates in held-out formats.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
import dates_data as data

from keras_tfm import runtime

# Variants that people type and Babel does not write: other digits, spaces, dashes, capitals.
TYPED = (
    ("  3 de   marzo de 2026 ", "es"),
    ("٣ مارس ٢٠٢٦", "ar_EG"),
    ("३ मार्च २०२६", "hi"),
    ("ΤΡΊΤΗ, 3 ΜΑΡΤΊΟΥ 2026", "el"),
    ("3 KASIM 2026", "tr"),
    ("3 NİSAN 2026", "tr"),
    ("\N{FULLWIDTH DIGIT THREE} March \N{FULLWIDTH DIGIT TWO}026", "en_GB"),
    ("2026\N{EN DASH}03\N{NON-BREAKING HYPHEN}03", "any"),
    ("3\N{NO-BREAK SPACE}mars\N{NARROW NO-BREAK SPACE}2026", "fr"),
    ("\N{RIGHT-TO-LEFT MARK}3 במרץ 2026", "he"),
    ("1er fe\N{COMBINING ACUTE ACCENT}vrier 2026", "fr"),
    ("3 березня 2026", "uk"),
    ("2026年3月3日", "ja"),
)


def main() -> None:
    folder, output = map(Path, sys.argv[1:3])
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 150
    tokenizer = data.source_tokenizer()
    examples = [*data.test_dates(count), *data.test_formats(count // 3)]
    questions = [(example.text, example.tag) for example in examples] + list(TYPED)
    texts = [data.question(text, tag) for text, tag in questions]
    rows = [tokenizer.encode(text).ids for text in texts]
    result = {"texts": texts, "ids": rows, "tokens": {}, "answers": {}}
    for path in sorted(folder.glob("*.tflite")):
        name, model = path.stem, runtime.load(path)
        model.generate(rows[0])
        tokens, seconds = [], []
        for row in rows:
            start = time.perf_counter()
            tokens.append(model.generate(row).tokens)
            seconds.append(time.perf_counter() - start)
        # The best hypothesis of a beam search.
        tokens = np.concatenate(tokens) if tokens[0].ndim == 2 else np.concatenate(tokens)[:, 0]
        result["tokens"][name] = [row.tolist() for row in tokens]
        answers = model.generate_text(texts)
        best = [x if isinstance(x, str) else x[0].text for x in answers]
        result["answers"][name] = best
        steps = np.count_nonzero(tokens) - len(tokens)  # the start token is given
        right = np.mean([a == e.iso for a, e in zip(best, examples, strict=False)])
        print(
            f"Python   {name:8} {1e3 * np.median(seconds):6.2f} ms an answer, "
            f"{steps / sum(seconds):6.0f} tokens/s, {right:.1%} right"
        )
    output.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
