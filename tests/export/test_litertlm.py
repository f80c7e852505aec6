"""Files for LiteRT-LM, run by Google's runtime: its greedy text is that of full passes in Keras."""

import dataclasses
import io
import json
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import keras
import numpy as np
import pytest
import small_smolvlm
from families import small_model
from keras_weights import randomize
from small_exports import small
from small_tokenizers import byte_pairs, sentence_pieces, word_pieces
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import WordLevel

from keras_tfm import checkpoints, export, layers, models, runtime
from keras_tfm.export.graph.adapters import adapted_layers
from keras_tfm.export.litertlm import export as litertlm
from keras_tfm.export.litertlm import package as litertlm_package
from keras_tfm.export.litertlm import signatures
from keras_tfm.export.litertlm.lookup import ids_of
from keras_tfm.generation import Beam, Greedy, Sample, generate
from keras_tfm.generation.processors import SuppressTokens
from keras_tfm.runtime import ChatTemplate, flatbuffer
from keras_tfm.runtime.decoding.special_ids import TokenRows
from keras_tfm.runtime.inspection.subprocesses import run_module

pytest.importorskip("litert_lm")
litert_lm_builder = pytest.importorskip("litert_lm_builder")

START, END = 1, 2
MAX_LENGTH = 61
SIZES = {"max_length": MAX_LENGTH, "start_id": START, "end_id": END, "prefill_lengths": [8, 32]}
TRIMMED = ("system", "user", "assistant")
TEMPLATE = ChatTemplate('<s>"u"\n', "\n{%a\\", "</s>\nü:", ("<s>[", "]"), trim=TRIMMED)
TEXT = "hello world, this is text number 1; " * 9


def gpt():
    """Learned positions: the table ends where the last prefill's padding does not."""
    size = byte_pairs().get_vocab_size()
    model = models.gpt(
        size, dim=12, num_layers=2, num_heads=3, intermediate_dim=17, max_length=MAX_LENGTH
    )
    return randomize(model, seed=1)


def llama():
    """Rotary positions, grouped heads, a tied table; large enough for weights in int8."""
    size = byte_pairs().get_vocab_size()
    model = models.llama(
        size, 32, 2, num_heads=4, num_key_value_heads=2, intermediate_dim=64, tie_output=True
    )
    return randomize(model, seed=2)


def composed():
    """By hand: windows, ALiBi, RMS norms, groups of heads, a masked padding id, an input `ids`."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    size = 330
    x = layers.TokenEmbedding(size, 10, mask_zero=True, name="embedding")(ids)
    x = layers.PositionalEncoding()(x)
    for i, (window, position) in enumerate([(5, layers.ALiBi()), (None, layers.RotaryEmbedding())]):
        attention = layers.MultiHeadSelfAttention(
            4, causal=True, num_key_value_heads=2, head_dim=2 + 2 * i, window=window,
            position=position,
        )  # fmt: skip
        x = layers.TransformerDecoderBlock(
            self_attention=attention,
            feed_forward=layers.FeedForward(13),
            residual=layers.Residual(sum_norm=layers.RMSNormalization(epsilon=1e-5)),
            cross_attention=False,
            name=f"block_{i}",
        )(x)
    logits = keras.layers.Dense(size, name="head")(x)
    model = randomize(keras.Model(ids, logits, name="composed"), seed=3)
    bias = model.get_layer("head").bias
    bias.assign(np.where(np.arange(size) < 310, bias, -20.0))  # as trained: no id without a text
    return model


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Models, tokenizers and verified files by name."""
    folder = tmp_path_factory.mktemp("litertlm")
    (folder / "pieces.model").write_bytes(sentence_pieces())
    made = {}
    for name, model, tokenizer, quantization, more in [
        ("gpt", gpt(), byte_pairs(), "float32", {"chat_template": TEMPLATE}),
        ("llama", llama(), byte_pairs(), "int8", {"strategy": Sample(0.5, top_k=7, seed=3)}),
        ("composed", composed(), folder / "pieces.model", "float32", {}),
    ]:
        path = folder / f"{name}.litertlm"
        report = export.export_litertlm(model, path, tokenizer, quantization, **SIZES, **more)
        made[name] = (model, report)
    return made


def greedy(model, ids, count):
    """The tokens after `ids`, by one full pass each, up to the end or `count`."""
    result = []
    while len(result) < count and len(ids) + len(result) < MAX_LENGTH:
        logits = np.asarray(model(np.array([[*ids, *result]], "int32")))[0, -1]
        if np.argmax(logits) == END:
            break
        result.append(int(np.argmax(logits)))
    return result


def part_of(count, tokens_of):
    """The first part of TEXT that has `count` tokens."""
    parts = (TEXT[k:n] for k in range(36) for n in range(k, len(TEXT)))
    return next(part for part in parts if len(tokens_of(part)) == count)


def tokens_of(name):
    """A function of a text to its ids."""
    if name == "composed":
        from sentencepiece import SentencePieceProcessor

        return SentencePieceProcessor(model_proto=sentence_pieces()).encode
    return lambda text: byte_pairs().encode(text).ids


def stock(path, **questions):
    return run_module(
        "testing",
        "keras_tfm.runtime.inspection.litertlm_process",
        str(path),
        given={"prompts": [], "conversations": [], **questions},
    )


@pytest.mark.parametrize("name", ["gpt", pytest.param("composed", marks=pytest.mark.slow)])
def test_stock_runtime_continues_as_full_passes_in_keras(files, name):
    """Prompts of one token, around the lengths of prefills, of several, and near the end."""
    model, report = files[name]
    prompts = []
    for length in (1, 7, 8, 9, 31, 32, 33, 34, 45, MAX_LENGTH - 4, MAX_LENGTH - 2, MAX_LENGTH - 1):
        text = part_of(length - 1, tokens_of(name))
        tokens = greedy(model, [START, *tokens_of(name)(text)], 40)
        prompts.append({"text": text, "tokens": tokens, "count": 40})
    answers = stock(report.path, prompts=prompts)["prompts"]
    assert [x["text"] for x in answers] == [x["expected"][-1] for x in answers]
    assert len({x["text"] for x in answers}) > 6  # the weights make varied texts
    assert len(prompts[-2]["tokens"]) == 2


@pytest.mark.parametrize(
    "family",
    [
        "gemma3_text",
        pytest.param("qwen3", marks=pytest.mark.slow),
        pytest.param("smollm3", marks=pytest.mark.slow),
        pytest.param("gemma4_text", marks=pytest.mark.slow),
        pytest.param("phi3, longrope", marks=pytest.mark.slow),
        pytest.param("granitemoe", marks=pytest.mark.slow),
    ],
)
def test_stock_runtime_generates_the_tokens_of_a_family(family, tmp_path):
    """Windows, norms of heads, blocks without positions, LongRoPE of a part, experts."""
    options = {"vocabulary_size": byte_pairs().get_vocab_size()}
    if family == "phi3, longrope":
        options["rope_scaling"] = layers.LongRoPEScaling(4.0, 16, [1.1, 2.0], [8.0, 3.0])
        options["long_texts"] = True
    model = randomize(small_model(family.partition(",")[0], **options), seed=6)
    for x in model.get_layer("embedding").weights:
        x.assign(0.2 * x)  # with large ones a decoder repeats its last token
    path = tmp_path / "model.litertlm"
    report = export.export_litertlm(model, path, byte_pairs(), **SIZES)
    assert report.verification.checks[-1].top_1 == 1.0
    prompts = []
    for length in (1, 9, 34, MAX_LENGTH - 20):
        text = part_of(length - 1, tokens_of(family))
        tokens = greedy(model, [START, *tokens_of(family)(text)], 12)
        prompts.append({"text": text, "tokens": tokens, "count": 12})
    answers = stock(path, prompts=prompts)["prompts"]
    assert [x["text"] for x in answers] == [x["expected"][-1] for x in answers]
    assert len({token for x in prompts for token in x["tokens"]}) > 6


def test_verification_has_a_row_of_the_stock_runtime(files):
    for name, (_, report) in files.items():
        check = report.verification.checks[-1]
        assert check.signature == "LiteRT-LM" and check.rows >= 5
        if name != "llama":  # float32
            assert check.top_1 == 1.0
        assert "LiteRT-LM " in str(report)
        assert list(report.signatures) == ["prefill_8", "prefill_32", "decode"]
        assert report.bytes == Path(report.path).stat().st_size


def test_int8_is_smaller_and_close_to_the_model(files):
    _, report = files["llama"]
    decode = next(x for x in report.verification.checks if x.signature == "decode")
    assert report.quantization == "int8"
    assert 1e-3 < decode.relative_error < decode.tolerance < 0.5


@pytest.mark.slow
def test_a_model_trained_with_rounding(tmp_path):
    """The stock runtime's tokens are those of Keras, with rounded weights and activations."""
    model = llama()
    models.enable_quantization(model, "int4", activations=True)
    path = tmp_path / "trained.litertlm"
    report = export.export_litertlm(model, path, byte_pairs(), "int4", **SIZES)
    assert max(x.graph_error for x in report.verification.checks[:3]) < 1e-4
    prompts = []
    for length in (7, 20, 34):
        text = part_of(length - 1, tokens_of("llama"))
        tokens = greedy(model, [START, *tokens_of("llama")(text)], 12)
        prompts.append({"text": text, "tokens": tokens, "count": 12})
    answers = stock(path, prompts=prompts)["prompts"]
    assert [x["text"] for x in answers] == [x["expected"][-1] for x in answers]
    with pytest.raises(ValueError, match="is trained with int4 weights, got quantization='int8'"):
        export.export_litertlm(model, path, byte_pairs(), "int8", overwrite=True, **SIZES)


SESSION = """
import json, sys, litert_lm
path, texts, count = json.load(sys.stdin)
greedy = litert_lm.SamplerConfig(top_k=1, top_p=1.0, temperature=1.0)
with litert_lm.Engine(path, litert_lm.Backend.CPU(), cache_dir=":nocache") as engine:
    with engine.create_session(
        apply_prompt_template=False, sampler_config=greedy, max_output_tokens=count
    ) as session:
        answers = []
        for text in texts:
            session.run_prefill([text])
            answers.append(session.run_decode().texts[0])
    print(json.dumps(answers))
"""


def test_a_session_continues_from_any_position(files):
    """Later prefills begin anywhere; the last one is padded beyond the longest conversation."""
    model, report = files["gpt"]
    texts = [part_of(14, tokens_of("gpt")), part_of(16, tokens_of("gpt")), "world, this is"]
    ids, expected = [START], []
    for text in texts:
        ids += tokens_of("gpt")(text)
        tokens = greedy(model, ids, 6)
        assert len(tokens) == 6
        ids += tokens
        expected.append(byte_pairs().decode(tokens, skip_special_tokens=False))
    assert MAX_LENGTH - 8 < len(ids) <= MAX_LENGTH
    done = subprocess.run(
        [sys.executable, "-c", SESSION],
        input=json.dumps([str(report.path), texts, 6]),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == expected


def test_template_is_that_of_chat_prompts(files):
    """With special characters, a start token that is left out, and a system message."""
    _, report = files["gpt"]
    turns = [("user", "Hi {{ there }}"), ("assistant", "Hello."), ("user", "Bye")]
    messages = [{"role": role, "content": content} for role, content in turns]
    system = {"role": "system", "content": "S"}
    found = stock(report.path, conversations=[messages[:1], messages, [system, *messages[:1]]])
    assert found["conversations"] == [
        '"u"\nHi {{ there }}\n{%a\\',
        '"u"\nHi {{ there }}\n{%a\\Hello.</s>\nü:Bye\n{%a\\',
        "[S]Hi {{ there }}\n{%a\\",
    ]


_CONVERSATIONS = """
import json, sys, litert_lm
path, conversations = sys.argv[1], json.load(sys.stdin)
litert_lm.set_min_log_severity(litert_lm.LogSeverity.ERROR)
found = []
with litert_lm.Engine(path, litert_lm.Backend.CPU(), cache_dir=":nocache") as engine:
    for messages in conversations:
        with engine.create_conversation(
            messages=messages[:-1], max_output_tokens=2
        ) as conversation:
            try:
                conversation.send_message(messages[-1])
                conversation.send_message("And now?")
                found.append("answered twice")
            except RuntimeError:
                found.append("refused")
print(json.dumps(found))
"""


def test_the_stock_runtime_refuses_what_the_template_cannot_write(files):
    """And takes several turns in one conversation."""
    _, report = files["gpt"]
    said = {"role": "user", "content": "Hi"}
    answer = {"role": "assistant", "content": "Hello."}
    parts = [{"type": "text", "text": "a"}]
    right = [[said], [said, answer, said], [{**said, "content": parts}]]
    wrong = [
        *(
            [{"role": role, "content": "x"}, said]
            for role in ("developer", "tool", "User", "model")
        ),
        [said, answer, {"role": "tool", "content": "42"}],
        [said, said],
        [{**said, "content": [*parts, {"type": "image", "path": "/x.png"}]}],
        [said, {**answer, "content": None, "tool_calls": [{"function": {"name": "f"}}]}, said],
        [said, {**answer, "content": None}, said],
    ]
    done = subprocess.run(
        [sys.executable, "-c", _CONVERSATIONS, report.path],
        input=json.dumps([*right, *wrong]),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == ["answered twice"] * len(right) + ["refused"] * len(wrong)


@pytest.fixture(scope="module")
def drafted(tmp_path_factory):
    """A model with three draft heads, and its verified file."""
    model = models.gpt(
        byte_pairs().get_vocab_size(), dim=12, num_layers=2, num_heads=3, intermediate_dim=17,
        max_length=MAX_LENGTH,
    )  # fmt: skip
    model = randomize(models.with_draft_heads(model, 3), seed=1)
    path = tmp_path_factory.mktemp("drafted") / "drafted.litertlm"
    return model, export.export_litertlm(model, path, byte_pairs(), **SIZES)


_SPECULATIVE = """
import json, sys, litert_lm
path, texts, count = json.load(sys.stdin)
greedy = litert_lm.SamplerConfig(top_k=1, top_p=1.0, temperature=1.0)
assert litert_lm.ModelInfo(path).llm.has_speculative_decoding_support()
with litert_lm.Engine(path, litert_lm.Backend.CPU(), cache_dir=":nocache") as engine:
    answers = []
    for text in texts:
        with engine.create_session(
            apply_prompt_template=False,
            sampler_config=greedy,
            max_output_tokens=count,
            enable_speculative_decoding=True,
        ) as session:
            session.run_prefill([text])
            answers.append(session.run_decode().texts[0])
    print(json.dumps(answers))
"""


def drafted_greedily(model, ids, count):
    """The tokens of speculative decoding, and the numbers of right and of all drafts."""

    def outputs(row):
        logits, heads = model(np.array([row], "int32"))
        return np.argmax(logits[0], -1), np.argmax(heads[0], -1)

    tokens, heads = outputs(ids)
    result, drafts, right, all_drafts = [int(tokens[-1])], heads[-1].tolist(), 0, 0
    while len(result) < count:
        row = [*ids, *result, *drafts]
        tokens, heads = outputs(row)
        chosen = tokens[-len(drafts) - 1 :].tolist()
        kept = next((i for i, x in enumerate(drafts) if x != chosen[i]), len(drafts))
        right, all_drafts = right + kept, all_drafts + len(drafts)
        result += chosen[: kept + 1]
        drafts = heads[len(row) - len(drafts) - 1 + kept].tolist()
    return result, right, all_drafts


def test_the_stock_runtime_takes_the_drafts_of_the_heads(drafted):
    """Its text and the share of right drafts, which it logs, are those of full passes in Keras."""
    model, report = drafted
    assert list(report.signatures) == ["prefill_8", "prefill_32", "decode", "verify"]
    assert [x.signature for x in report.verification.checks[-2:]] == [
        "LiteRT-LM",
        "LiteRT-LM drafts",
    ]
    texts = [part_of(length, tokens_of("gpt")) for length in (1, 7, 8, 19, 33)]
    expected = [drafted_greedily(model, [START, *tokens_of("gpt")(x)], 20) for x in texts]
    assert all(END not in tokens for tokens, *_ in expected)
    done = subprocess.run(
        [sys.executable, "-c", _SPECULATIVE],
        input=json.dumps([str(report.path), texts, 20]),
        capture_output=True,
        text=True,
        check=True,
    )
    decode = partial(byte_pairs().decode, skip_special_tokens=False)
    assert json.loads(done.stdout) == [decode(tokens) for tokens, *_ in expected]
    right, drafts = np.sum([rest for _, *rest in expected], axis=0)
    assert 0.05 < right / drafts < 0.95
    rate = float(re.search("MTP Drafter - Success rate: ([0-9.e-]+)", done.stderr)[1])
    assert rate == pytest.approx(right / drafts, rel=1e-4)


PAD = 0


def padded_llama(seed, drafts=0):
    """A model that often writes its padding id, which it masks at the ends of rows."""
    size = byte_pairs().get_vocab_size()
    model = models.llama(size, 24, 2, num_heads=4, intermediate_dim=40, pad_id=PAD)
    model = models.with_draft_heads(model, drafts) if drafts else model
    randomize(model, seed)
    (kernel,) = [x for x in model.weights if x.path.endswith("output/kernel")]
    kernel.assign(np.where(np.arange(size) == PAD, 3.0, 1.0) * np.array(kernel))
    return model


@pytest.mark.parametrize(("seed", "drafts"), [(3, 0), (1, 2)])
def test_the_padding_id_is_a_token_in_a_session(seed, drafts, tmp_path):
    """Generated, in a prompt, at its end, and as a draft; the tokens are those of Keras."""
    model = padded_llama(seed, drafts)
    path = tmp_path / "model.litertlm"
    report = export.export_litertlm(model, path, byte_pairs(), **SIZES)
    names = [x.signature for x in report.verification.checks]
    assert names[:4] == ["prefill_8", "prefill_32", "decode", "padding id"]
    assert ("verify" in names) == bool(drafts)
    assert report.verification.checks[-1].top_1 == 1.0
    count, prompts = 20, []
    text = part_of(8, tokens_of("llama"))
    for prompt in (text, f"{text}<pad>", f"<pad>{text}<pad><pad>{text}", "<pad>"):
        ids = [START, *tokens_of("llama")(prompt)]
        rows = TokenRows([ids])
        found = generate(model, rows, max_new_tokens=count, end_id=END).tokens[0, len(ids) :]
        tokens = found[: found.tolist().index(END) if END in found else None].tolist()
        prompts.append({"text": prompt, "tokens": tokens, "count": count})
    answers = stock(path, prompts=prompts, drafts=drafts)["prompts"]
    for x in answers:
        assert x["text"] == x["expected"][-1]
        if drafts:
            assert x["drafted"].startswith(x["expected"][count - drafts])
    written = [x["tokens"][:-1] for x in prompts]
    assert sum(PAD in tokens for tokens in written) > 2
    assert len({token for tokens in written for token in tokens}) > 6
    if drafts:
        _, heads = model(np.array([x["tokens"] for x in prompts if len(x["tokens"]) == count]))
        assert 0.02 < np.mean(np.argmax(heads, axis=-1) == PAD) < 0.98


@pytest.mark.parametrize(
    ("part", "match"), [("read", "padding id: expected"), ("ids_of", "verify: expected")]
)
def test_a_file_that_reads_the_padding_id_wrongly_is_not_kept(part, match, tmp_path, monkeypatch):
    """In a step of one token, and among drafts."""
    model = padded_llama(1, drafts=2)

    def wrong(ids):
        return keras.ops.where(ids == PAD, 5, ids)

    if part == "read":
        read = signatures._Caches.read

        def changed(self, given):
            ids, context = read(self, given)
            return wrong(ids), context

        monkeypatch.setattr(signatures._Caches, "read", changed)
    else:
        monkeypatch.setattr(signatures, "ids_of", lambda vectors: wrong(ids_of(vectors)))
    path = tmp_path / "model.litertlm"
    with pytest.raises(export.VerificationError, match=match):
        export.export_litertlm(model, path, byte_pairs(), **SIZES)
    assert not list(tmp_path.iterdir())


_ADAPTED = """
import json, sys, litert_lm
path, adapters, text, count = json.load(sys.stdin)
greedy = litert_lm.SamplerConfig(top_k=1, top_p=1.0, temperature=1.0)
with litert_lm.Engine(path, litert_lm.Backend.CPU(), cache_dir=":nocache") as engine:
    answers = []
    for adapter in adapters:
        with engine.create_session(
            apply_prompt_template=False,
            sampler_config=greedy,
            max_output_tokens=count,
            lora_config=adapter and litert_lm.LoraConfig(lora_path=adapter),
        ) as session:
            session.run_prefill([text])
            answers.append(session.run_decode().texts[0])
    print(json.dumps(answers))
"""


def test_adapters_have_an_effect_in_the_stock_runtime(tmp_path):
    """One base, two adapters in files of their own, one of zeros: the tokens of Keras with each."""
    model = llama()
    assert models.enable_lora(model, rank=16) == 8  # of attention and of feed-forward layers
    layers_ = adapted_layers(model).values()
    report = export.export_litertlm(
        model, tmp_path / "base.litertlm", byte_pairs(), **SIZES, separate_adapters=True
    )
    assert report.verification.checks[-1].top_1 == 1.0
    assert not any(np.any(x.lora_kernel_b) for x in layers_)  # as before the verification
    text, paths, expected = part_of(9, tokens_of("llama")), [], []
    ids = [START, *tokens_of("llama")(text)]
    for seed in (1, 2, 0):
        random = np.random.default_rng(seed)
        for layer in layers_:
            for kernel in (layer.lora_kernel_a, layer.lora_kernel_b):
                kernel.assign(random.normal(size=kernel.shape, scale=0.3 if seed else 0.0))
        tokens = greedy(model, ids, 12)
        expected.append(byte_pairs().decode(tokens, skip_special_tokens=False))
        path = tmp_path / f"adapter_{seed}.tflite"
        paths.append(str(export.save_litertlm_adapter(model, path)))
    assert len(set(expected)) == 3
    done = subprocess.run(
        [sys.executable, "-c", _ADAPTED],
        input=json.dumps([str(report.path), [None, *paths, paths[0], None], text, 12]),
        capture_output=True,
        text=True,
        check=True,
    )
    # Without an adapter LiteRT-LM keeps that of the session before.
    assert json.loads(done.stdout) == [expected[2], *expected, expected[0], expected[0]]


def test_adapters_of_peft_are_merged_and_end_a_text(tmp_path):
    """The tokens are those of the adapted model, up to the end token of the adapters' tokenizer."""
    folders = Path(__file__).parents[1] / "parity/peft"
    base, peft = folders / "llama/base", shutil.copytree(folders / "llama/adapter", tmp_path / "a")
    shutil.copy(folders / "embedder/base/tokenizer.json", peft)
    start, ids = 12, [12, 4, 5, 6]
    adapted = checkpoints.load_huggingface(base, peft=peft)
    tokens, others = (greedy(x, ids, 12) for x in (adapted, checkpoints.load_huggingface(base)))
    assert tokens[:2] != others[:2]
    reader = checkpoints.load_tokenizer(peft)
    end = tokens[2]
    assert end not in tokens[:2]
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": reader.id_to_token(end)}
    (peft / "tokenizer_config.json").write_text(json.dumps(settings))
    report = export.export_litertlm(
        base, tmp_path / "x.litertlm", peft=peft, max_length=24, start_id=start, verify=False
    )
    assert f"end_id=[{end}, 2]" in "".join(report.notes)
    answer = stock(report.path, prompts=[{"text": "w2 w3 w4", "tokens": tokens, "count": 12}])
    assert answer["prompts"][0]["text"] == reader.decode(tokens[: tokens.index(end)])


def test_adapters_that_the_stock_runtime_lacks_are_refused_in_one_line(tmp_path):
    model = gpt()
    kept = {"separate_adapters": True, "path": tmp_path / "base.litertlm"}
    refused(ValueError, "gpt has no adapters: call models.enable_lora", model=model, **kept)
    models.enable_lora(model, rank=3)
    refused(ValueError, r"adapters of rank 16 or 32, got 3: call", model=model, **kept)
    with pytest.raises(ValueError, match="rank 16 or 32, got 3"):
        export.save_litertlm_adapter(model, tmp_path / "a.tflite")
    with pytest.raises(ValueError, match=r"must end in \.tflite, got .*a\.npz"):
        export.save_litertlm_adapter(model, tmp_path / "a.npz")
    model = gpt()
    models.enable_lora(model, rank=16)
    drafts = models.with_draft_heads(model, 2)
    refused(ValueError, "without draft heads, gpt has draft heads", model=drafts, **kept)
    assert not list(tmp_path.iterdir())


IMAGE, SIDE, FEATURES = "<image>", small_smolvlm.SIDE, small_smolvlm.FEATURES
# A whole picture, not tiles.
WHOLE = dataclasses.replace(small_smolvlm.PROCESSOR, num_images=None)
PICTURED = small_smolvlm.TEMPLATE._replace(gap="")


def smolvlm(**options):
    """Of one image in a row."""
    reader = small_smolvlm.tokenizer()
    tower = {"dim": 10, "num_layers": 1, "num_heads": 5, "intermediate_dim": 7}
    model = models.smolvlm(
        reader.get_vocab_size(), dim=16, num_layers=2, num_heads=4, num_key_value_heads=2,
        intermediate_dim=11, rope_theta=99.0, image_id=reader.token_to_id(IMAGE),
        image_size=SIDE, patch_size=5, scale_factor=2, image=tower, **options,
    )  # fmt: skip
    return randomize(model, seed=5)


def picture_options(**more):
    end_id = small_smolvlm.tokenizer().token_to_id(small_smolvlm.END)
    options = {"max_length": 100, "prefill_lengths": [8, 32], "end_id": end_id, "images": WHOLE}
    return {"tokenizer": small_smolvlm.tokenizer(), "chat_template": PICTURED, **options, **more}


@pytest.fixture(scope="module")
def seeing(tmp_path_factory):
    """A model that reads a picture, and its verified file."""
    model, path = smolvlm(), tmp_path_factory.mktemp("seeing") / "seeing.litertlm"
    return model, export.export_litertlm(model, path, **picture_options())


def answer_to(model, pixels, text, count, after=(), place=None, reader=None, end=small_smolvlm.END):
    """The ids of a prompt with a picture in it, and the greedy tokens after it in Keras."""
    reader = reader or small_smolvlm.tokenizer()
    if place is None:
        around = "<fake_token_around_image>"
        place = f"{around}<global-img>{IMAGE * FEATURES}{around}"
    ids = [*after, *reader.encode(text.replace(IMAGE, place)).ids]
    target = next(name for name in model.input if name != "pixels")
    tokens = []
    while len(tokens) < count:
        row = np.array([[*ids, *tokens]], "int32")
        logits = np.asarray(model({"pixels": pixels[None], target: row}))[0, -1]
        if np.argmax(logits) == reader.token_to_id(end):
            break
        tokens.append(int(np.argmax(logits)))
    return ids, tokens


def as_the_runtime(picture, height, width):
    """A picture of another size as LiteRT-LM stretches it: Catmull-Rom, in linear light."""

    def weights(old, new):
        scale = max(1.0, old / new)  # filters are widened where a picture shrinks
        centres = (np.arange(new)[:, None] + 0.5) * old / new
        x = np.abs((np.arange(-4 * old, 5 * old) + 0.5 - centres) / scale)
        inner, outer = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
        values = np.where(x < 1, inner, np.where(x < 2, outer, 0.0))
        result = np.zeros((new, old))
        for place, column in zip(range(-4 * old, 5 * old), values.T, strict=True):
            result[:, min(max(place, 0), old - 1)] += column
        return result / result.sum(1, keepdims=True)

    x = picture / 255.0
    x = np.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4)
    rows, columns = weights(len(x), height), weights(x.shape[1], width)
    x = np.clip(np.einsum("ai,bj,ijc->abc", rows, columns, x), 0, 1)
    x = np.where(x <= 0.0031308, 12.92 * x, 1.055 * x ** (1 / 2.4) - 0.055)
    return np.round(255 * x).astype("uint8")


_PICTURES = """
import json, sys, litert_lm
path, sees, count, conversations = json.load(sys.stdin)
cpu = litert_lm.Backend.CPU()
greedy = litert_lm.SamplerConfig(top_k=1, top_p=1.0, temperature=1.0)
seeing = {"vision_backend": cpu} if sees else {}
answers = []
with litert_lm.Engine(path, cpu, cache_dir=":nocache", **seeing) as engine:
    for turns in conversations:
        with engine.create_conversation(
            max_output_tokens=count, sampler_config=greedy
        ) as conversation:
            for message, tokens in turns:
                try:
                    parts = conversation.send_message(message)["content"]
                except RuntimeError:
                    answers.append(["refused", ""])
                    break
                wanted = engine.detokenize(tokens) if tokens else ""
                text = "".join(x["text"] for x in parts)
                answers.append([text.partition("\\0")[0], wanted])  # where `detokenize` ends
print(json.dumps(answers))
"""


def asked(path, conversations, count, sees=True):
    """The stock runtime's answers, and the texts of the tokens beside the messages."""
    done = subprocess.run(
        [sys.executable, "-c", _PICTURES],
        input=json.dumps([str(path), sees, count, conversations]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def message(*parts):
    texts = [x if isinstance(x, dict) else {"type": "text", "text": x} for x in parts]
    return {"role": "user", "content": texts}


def saved(folder, picture):
    from PIL import Image

    path = folder / f"{len(list(folder.iterdir()))}.png"
    Image.fromarray(picture).save(path)
    return {"type": "image", "path": str(path)}


def pictures_of(sizes):
    random = np.random.default_rng(3)
    return [random.integers(0, 256, (*size, 3), "uint8") for size in sizes]


def test_the_stock_runtime_answers_about_pictures(seeing, tmp_path):
    """Of the model's size and of others, first and later; and texts without any."""
    model, report = seeing
    assert [x.signature for x in report.verification.checks[-2:]] == [
        "LiteRT-LM",
        "LiteRT-LM pictures",
    ]
    assert [x.top_1 for x in report.verification.checks[-2:]] == [1.0, 1.0]
    end, count, conversations = small_smolvlm.END, 5, []
    for picture in pictures_of([(SIDE, SIDE), (90, 41), (13, 70)]):
        pixels = as_the_runtime(picture, SIDE, SIDE) if len(picture) != SIDE else picture
        image = saved(tmp_path, picture)
        ids, tokens = answer_to(model, pixels, f"User:{IMAGE}Why?{end}\nAssistant:", count)
        conversations.append([[message(image, "Why?"), tokens]])
        if len(picture) == SIDE:  # an answer that was cut off has no end token
            follows = f"\nUser: And now?{end}\nAssistant:"
            _, later = answer_to(model, pixels, follows, count, [*ids, *tokens])
            conversations[-1].append([message("And now?"), later])
    ids, tokens = answer_to(model, pixels, f"User:When?{end}\nAssistant:", count)
    follows = f"\nUser: And {IMAGE}?{end}\nAssistant:"
    _, later = answer_to(model, pixels, follows, count, [*ids, *tokens])
    conversations.append([[message("When?"), tokens], [message("And ", image, "?"), later]])
    answers = asked(report.path, conversations, count)
    assert [text for text, _ in answers] == [wanted for _, wanted in answers]
    assert len({text for text, _ in answers}) > 4
    ((text, wanted),) = asked(report.path, [conversations[-1][:1]], count, sees=False)
    assert text == wanted


def test_the_stock_runtime_refuses_what_the_model_cannot_read(seeing, tmp_path):
    """And never drops a picture."""
    image = saved(tmp_path, *pictures_of([(SIDE, SIDE)]))
    wrong = [
        [message(image, image, "Why?")],
        [message("Why?"), message(image), message(image)],
        [message("Why <image>?")],
        [message({"type": "image", "path": "/none.png"}, "Why?")],
        [message({"type": "audio", "path": "/none.wav"}, "Why?")],
    ]
    path = seeing[1].path
    answers = asked(path, [[[x, []] for x in turns] for turns in wrong], 3)
    assert [text == "refused" for text, _ in answers] == [True, False, False, *[True] * 4]
    assert asked(path, [[[message(image), []]]], 3, sees=False) == [["refused", ""]]


@pytest.mark.slow
def test_pictures_with_rounded_weights(tmp_path):
    path = tmp_path / "x.litertlm"
    report = export.export_litertlm(smolvlm(), path, quantization="int8", **picture_options())
    row = report.verification.checks[-1]
    assert row.signature == "LiteRT-LM pictures" and row.rows == 4
    assert row.relative_error < row.tolerance < 0.3


@pytest.mark.slow
def test_a_folder_that_reads_pictures(tmp_path):
    """Its Jinja program, whose prompts are those of transformers with and without a picture."""
    reader, end = small_smolvlm.tokenizer(), small_smolvlm.END
    folder = tmp_path / "folder"
    folder.mkdir()
    checkpoints.save_huggingface(
        small_smolvlm.model(), folder, reader.token_to_id(end),
        image_processor=small_smolvlm.PROCESSOR,
    )  # fmt: skip
    reader.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(small_smolvlm.PROGRAM)
    path = tmp_path / "x.litertlm"
    report = export.export_litertlm(folder, path, prefill_lengths=[16])
    assert "its rule for pictures" in report.notes[-1]
    transformers = pytest.importorskip("transformers")
    live = transformers.AutoTokenizer.from_pretrained(folder)
    image, model = (
        saved(tmp_path, *pictures_of([(SIDE, SIDE)])),
        checkpoints.load_huggingface(folder),
    )
    (pixels,), conversations = pictures_of([(SIDE, SIDE)]), []
    for parts in ([image, "Why?"], ["Why ", image, "?"], ["Why?"]):
        one = message(*parts)
        prompt = live.apply_chat_template([one], tokenize=False, add_generation_prompt=True)
        _, tokens = answer_to(model, pixels, prompt, 6)
        conversations.append([[one, tokens]])
    answers = asked(path, conversations, 6)
    assert [text for text, _ in answers] == [wanted for _, wanted in answers]
    assert answers[0] != answers[2]


def photographed():
    """By hand: a picture of 8 x 12 pixels as six features, and inputs of other names."""
    reader = photo_tokenizer()
    pixels, ids = (
        keras.Input((8, 12, 3), name="pixels"),
        keras.Input((None,), dtype="int32", name="ids"),
    )
    x = layers.ImageNormalization([0.4, 0.5, 0.6], [0.2, 0.3, 0.25])(pixels)
    x = keras.layers.Conv2D(7, 4, 4, activation="gelu")(x)
    features = keras.layers.Dense(10)(keras.layers.Reshape((6, 7))(x))
    x = layers.TokenEmbedding(reader.get_vocab_size(), 10, name="embedding")(ids)
    x = layers.ReplacePlaceholders(reader.token_to_id("[IMG|1]"))(x, ids, features)
    for i in range(2):
        attention = layers.MultiHeadSelfAttention(
            5, causal=True, head_dim=2, position=layers.RotaryEmbedding()
        )
        x = layers.TransformerDecoderBlock(
            self_attention=attention, feed_forward=layers.FeedForward(13), cross_attention=False,
            name=f"block_{i}",
        )(x)  # fmt: skip
    logits = keras.layers.Dense(reader.get_vocab_size(), name="head")(x)
    return randomize(keras.Model({"ids": ids, "pixels": pixels}, logits, name="photo"), seed=8)


def photo_tokenizer():
    """Whose token of a picture has characters that mean something in regular expressions."""
    reader = Tokenizer.from_str(byte_pairs().to_str())
    reader.add_special_tokens(["[IMG|1]"])
    return reader


PHOTO_PROGRAM = (
    "{{ '<s>' }}{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}model:{% endif %}"
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["template", "program"])
def test_a_composed_model_that_reads_pictures(kind, tmp_path):
    """A start token, a picture where the user puts it, and a program that writes texts."""
    template = TEMPLATE if kind == "template" else checkpoints.JinjaTemplate(PHOTO_PROGRAM)
    model, reader, path = photographed(), photo_tokenizer(), tmp_path / "x.litertlm"
    report = export.export_litertlm(
        model, path, reader, chat_template=template, images=runtime.ImageProcessor((8, 12)), **SIZES
    )
    assert report.verification.checks[-1].top_1 == 1.0
    conversations = []
    for place, pixels in enumerate(pictures_of([(8, 12)] * 4)):
        parts = ["Why", " not?"]
        parts.insert(place % 3, saved(tmp_path, pixels))
        texts = [x if isinstance(x, str) else "[IMG|1]" for x in parts]
        # The strings trim each text, the program none.
        content = message(*texts)["content"] if kind == "template" else "".join(texts)
        prompt = template.prompt([{"role": "user", "content": content}])
        prompt = prompt.removeprefix("<s>").replace("[IMG|1]", "[IMG|1]" * 6)
        _, tokens = answer_to(model, pixels, prompt, 6, [START], reader=reader, end="</s>")
        conversations.append([[message(*parts), tokens]])
    answers = asked(path, conversations, 6)
    assert [text for text, _ in answers] == [wanted for _, wanted in answers]
    assert len({text for text, _ in answers}) > 1


def test_models_of_pictures_that_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = smolvlm()

    def refuse(match, model=model, **more):
        refused(ValueError, match, model=model, start_id=None, **picture_options(**more))

    refuse("smolvlm reads pictures: .* needs a chat_template .*got None", chat_template=None)
    refuse("reads 5 images of each row, such as tiles", model=small_smolvlm.model(), images=None)
    refuse(r"images for 'pixels' must have the shape \(30, 30, 3\)", images=small_smolvlm.PROCESSOR)
    refuse(
        "read the token of a picture, id 301, as one token, got ''",
        tokenizer=byte_pairs(),
        end_id=2,
    )
    short = {"max_length": 24, "prefill_lengths": [8]}
    refuse(r"max_length must be more than \d+, .*\(9 features\).*got 24", **short)
    twice = PICTURED._replace(next="<end_of_utterance>\nUser:<image>")
    refuse("chat_template may have <image> once, before the user's first text", chat_template=twice)
    deaf = checkpoints.JinjaTemplate("{% for m in messages %}{{ m.content[-1].text }}{% endfor %}")
    refuse("does not write a picture as <image>", chat_template=deaf)
    drafts = models.with_draft_heads(model, 2)
    refuse("that reads pictures has no draft heads: export smolvlm.* without", model=drafts)
    grey = smolvlm(image_mean=[0.5], image_std=[0.5])
    refuse(r"as RGB pixels \(B, H, W, 3\).*\(None, 30, 30, 1\)", model=grey, images=None)
    ids, features = keras.Input((None,), dtype="int32"), keras.Input((6, 10))
    x = layers.ReplacePlaceholders(9)(layers.TokenEmbedding(308, 10)(ids), ids, features)
    other = keras.Model([ids, features], keras.layers.Dense(308)(x), name="other")
    refuse("other has the inputs .* with one other input, of pixels", model=other, images=None)
    assert not list(tmp_path.iterdir())


def test_replaces_earlier_exports_only(files, tmp_path):
    model, report = files["gpt"]
    path = tmp_path / "model.litertlm"
    path.write_text("a text")
    with pytest.raises(FileExistsError, match="is not an export of keras_tfm"):
        export.export_litertlm(model, path, byte_pairs(), **SIZES, verify=False)
    path.write_bytes(Path(report.path).read_bytes())
    export.export_litertlm(model, path, byte_pairs(), **SIZES, verify=False)
    assert [x.name for x in tmp_path.iterdir()] == ["model.litertlm"]


def test_a_file_that_differs_is_not_kept(files, tmp_path, monkeypatch):
    """Only the stock runtime runs the packed file; here its weights are others."""
    model, _ = files["gpt"]
    write = litertlm.write_package

    def changed(path, sections, *arguments, **options):
        model_path = sections["PREFILL_DECODE"]
        content = flatbuffer.read(model_path.read_bytes())
        for buffer, values in flatbuffer.float_weights(content).items():
            flatbuffer.store_float(content, buffer, values[::-1].copy())
        model_path.write_bytes(flatbuffer.write(content))
        write(path, sections, *arguments, **options)

    monkeypatch.setattr(litertlm, "write_package", changed)
    path = tmp_path / "model.litertlm"
    with pytest.raises(export.VerificationError, match="LiteRT-LM continues a prompt of 1 tokens"):
        export.export_litertlm(model, path, byte_pairs(), **SIZES)
    assert not list(tmp_path.iterdir())


def test_a_file_that_the_runtime_refuses_is_not_kept(files, tmp_path, monkeypatch):
    model, _ = files["gpt"]

    def broken(path, *_, **__):
        path.write_bytes(b"LITERTLM" + bytes(100))

    monkeypatch.setattr(litertlm, "write_package", broken)
    with pytest.raises(RuntimeError, match="running LiteRT-LM in a separate process failed"):
        export.export_litertlm(model, tmp_path / "model.litertlm", byte_pairs(), **SIZES)
    assert not list(tmp_path.iterdir())


def test_a_tokenizer_with_a_start_token_of_its_own_needs_start_id(files, tmp_path):
    """LiteRT-LM's tokenizers add no special tokens, so the ids would differ."""
    from tokenizers import Tokenizer, processors

    model, _ = files["gpt"]
    tokenizer = Tokenizer.from_str(byte_pairs().to_str())
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", START)]
    )
    refused(
        ValueError, r"puts the ids \[1\] before every text.*start_id=None", model=model,
        tokenizer=tokenizer, start_id=None, path=tmp_path / "model.litertlm",
    )  # fmt: skip


def refused(error, match, model=None, **arguments):
    given = {"tokenizer": byte_pairs(), "path": "model.litertlm", **SIZES, **arguments}
    with pytest.raises(error, match=match) as raised:
        export.export_litertlm(model or gpt(), **given, verify=False)
    assert "\n" not in str(raised.value)


def test_bad_input_is_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(ValueError, "has no encoder role; use export_tflite", model=small())
    refused(ValueError, r"needs a tokenizer, got None", tokenizer=None)
    refused(ValueError, r"must end in \.litertlm, got model\.tflite", path="model.tflite")
    refused(ValueError, r"must be less than max_length \(61\), got \[61\]", prefill_lengths=[61])
    refused(ValueError, "needs max_length and the end_id of answers", end_id=None)
    refused(TypeError, "has no argument 'chat'; it has model, path, tokenizer", chat=None)
    refused(ValueError, "float32, float16, int8 or int4", quantization="int8_full")
    refused(ValueError, "accelerator must be 'cpu'.*got 'gpu'", accelerator="gpu")
    refused(ValueError, "cache must be 'float32'.*use export_tflite", cache="int8")
    refused(TypeError, "must be a runtime.ChatTemplate", chat_template="{{ messages }}")
    template = ChatTemplate("{{ bos_token }}", "", "")
    refused(
        ValueError, r"chat_template.first has the variable {{ bos_token }}", chat_template=template
    )
    ids = keras.Input((None,), dtype="int32")
    two = keras.Model(ids, [x := gpt()(ids), keras.layers.Reshape((-1, 30, 10))(x)])
    refused(ValueError, r"must be drafts \(B, T, n, 300\).*got \(None, None, 30, 10\)", model=two)
    refused(TypeError, "must be generation.Greedy or Sample", strategy=Beam(2))
    refused(ValueError, r"got min_p=0\.1", strategy=Sample(min_p=0.1))
    refused(ValueError, "no processors", strategy=Greedy(processors=[SuppressTokens([3])]))
    refused(ValueError, "max_length", max_length=MAX_LENGTH + 1)  # longer than the table
    refused(ValueError, "not in the tokenizer", tokenizer=word_pieces(), end_id=299)
    assert not list(tmp_path.iterdir())


def test_command_line(files, tmp_path, run):
    files["gpt"][0].save(tmp_path / "gpt.keras")
    byte_pairs().save(str(tmp_path / "tokenizer.json"))
    command = ["export", tmp_path / "gpt.keras", tmp_path / "gpt.litertlm", "--format", "litertlm"]
    sizes = ["--max-length", MAX_LENGTH, "--start", START, "--prompt-lengths", "8,32"]
    code, out, _ = run(*command, *sizes, "--end", END, "--tokenizer", tmp_path / "tokenizer.json")
    assert code == 0 and "LiteRT-LM " in out and (tmp_path / "gpt.litertlm").is_file()
    code, _, err = run("inspect", tmp_path / "gpt.litertlm")
    assert code == 1 and "which LiteRT-LM runs" in err
    code, _, err = run(*command, *sizes)
    assert code == 2 and "--format litertlm needs it" in err
    code, _, err = run(*command, *sizes, "--end", END, "--beam", 2)
    assert code == 2 and "is not for --format litertlm" in err
    code, _, err = run(*command, "--max-length", 9, "--end", END, "--prompt-lengths", 9,
                       "--tokenizer", tmp_path / "tokenizer.json")  # fmt: skip
    assert code == 1 and "--prompt-lengths must be less than --max-length (9)" in err
    code, _, err = run(*command, *sizes, "--end", END, "--images", "8x12", "--force",
                       "--tokenizer", tmp_path / "tokenizer.json")  # fmt: skip
    assert code == 1 and "gpt has no input of pixels" in err


def test_the_command_takes_the_rule_for_pictures(tmp_path, run):
    photographed().save(tmp_path / "photo.keras")
    photo_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text(PHOTO_PROGRAM)
    path = tmp_path / "photo.litertlm"
    command = ["export", tmp_path / "photo.keras", path, "--max-length", MAX_LENGTH, "--end", END,
               "--start", START, "--tokenizer", tmp_path / "tokenizer.json",
               "--chat-template", tmp_path, "--no-verify"]  # fmt: skip
    code, _, err = run(*command, "--images", "12x8")
    assert code == 1 and "--images for 'pixels' must have the shape (8, 12, 3)" in err
    assert not path.exists()
    code, _, err = run(*command, "--images", "8x12")
    assert code == 0, err
    peeked = io.StringIO()
    litert_lm_builder.peek_litertlm_file(str(path), None, peeked)
    assert all(f"tf_lite_vision_{name}" in peeked.getvalue() for name in ("encoder", "adapter"))


@pytest.mark.parametrize("package", ["litert_lm_builder", "litert_lm"])
def test_missing_extra(files, tmp_path, monkeypatch, package):
    model, _ = files["gpt"]
    for name in [*sys.modules]:
        if name.split(".")[0] == package:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    with pytest.raises(
        ModuleNotFoundError, match=r"pip install .*litert-lm-builder.*extra .litertlm"
    ):
        export.export_litertlm(model, tmp_path / "model.litertlm", byte_pairs(), **SIZES)


def test_our_runtime_names_the_other(files):
    with pytest.raises(ValueError, match=r"LiteRT-LM runs: pip install .*litert-lm-api"):
        runtime.load(files["gpt"][1].path)


def test_default_prefill_lengths_are_shorter_than_max_length(tmp_path):
    sizes = {**SIZES, "prefill_lengths": None}
    report = export.export_litertlm(
        gpt(), tmp_path / "model.litertlm", byte_pairs(), **sizes, verify=False
    )
    assert list(report.signatures) == ["prefill_32", "decode"]
    # 61 tokens and 31 of padding, rounded up to a multiple of 32.
    assert report.signatures["decode"]["inputs"]["kv_cache_k_0"]["shape"] == [1, 3, 96, 4]


@pytest.mark.parametrize(
    ("sizes", "names"),
    [
        ({"prefill_lengths": [1, 7]}, ["prefill_1", "prefill_7", "decode"]),
        pytest.param({"prefill_lengths": [1]}, ["prefill_1", "decode"], marks=pytest.mark.slow),
        ({"max_length": 2, "prefill_lengths": None, "start_id": None}, ["prefill_1", "decode"]),
    ],
)
def test_a_prefill_of_one_token(files, sizes, names, tmp_path):
    model, path = files["gpt"][0], tmp_path / "model.litertlm"
    sizes = {**SIZES, **sizes}
    report = export.export_litertlm(model, path, byte_pairs(), **sizes)
    assert list(report.signatures) == names
    prompts = []
    for length in (1, 7, 10):
        text = part_of(length, tokens_of("gpt"))
        start = [] if sizes["start_id"] is None else [START]
        ids, count = [*start, *tokens_of("gpt")(text)], min(9, sizes["max_length"] - 1)
        if len(ids) < sizes["max_length"]:
            prompts.append({"text": text, "tokens": greedy(model, ids, count), "count": count})
    answers = stock(path, prompts=prompts)["prompts"]
    assert [x["text"] for x in answers] == [x["expected"][-1] for x in answers]
    assert prompts and all(x["tokens"] for x in prompts)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (None, (1, 1.0, 1.0, None)),
        (Greedy(), (1, 1.0, 1.0, None)),
        (Sample(), (300, 1.0, 1.0, None)),
        (Sample(0.5, top_k=9, top_p=0.8, seed=4), (9, 0.8, 0.5, 4)),
    ],
)
def test_sampler(strategy, expected):
    assert litertlm_package.sampler_of(strategy, 300) == expected


def test_the_model_of_the_example_of_names(tmp_path):
    """Characters as tokens, two tags before them, padding that is masked, no start token."""
    names = pytest.importorskip("names")
    vocabulary = names.Vocabulary(names.split(names.names())[0])
    tags = [f"<{tag}>" for tag in vocabulary.tags]
    tokens = ["<pad>", "<end>", *tags, *vocabulary.ids]
    assert len(tokens) == len(vocabulary.tokens)
    tokenizer = Tokenizer(WordLevel({token: i for i, token in enumerate(tokens)}, "<pad>"))
    tokenizer.add_special_tokens(["<pad>", "<end>"])
    tokenizer.add_tokens(tags)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    assert tokenizer.encode("<de><city>Neu").ids == vocabulary.prompt("de", "city", "Neu")
    model = randomize(names.language_model(len(tokens), **names.SMOKE), seed=4)
    report = export.export_litertlm(
        model,
        tmp_path / "names.litertlm",
        tokenizer,
        max_length=names.LONGEST + 3,
        end_id=names.END,
        prefill_lengths=[4, 16],
    )
    check = report.verification.checks[-1]
    assert (check.signature, check.top_1) == ("LiteRT-LM", 1.0)
