"""audio.js reads and resamples WAV files as Python does; in Node, without a browser."""

import json
import re
import shutil
import struct
import subprocess

import numpy as np
import pytest
from web_pages import RUNTIME

from keras_tfm.runtime.media.wav import read_wav, resample

pytestmark = pytest.mark.skipif(not shutil.which("node"), reason="needs node")
PARTS = """
    import { readFileSync } from "node:fs";
    const { resample, Resampler } = await import("./audio.js");
    const found = JSON.parse(readFileSync(0, "utf8")).map(([samples, sizes, rate, newRate]) => {
        const resampler = new Resampler(rate, newRate);
        const parts = [];
        let at = 0;
        for (const size of sizes) {
            parts.push(...resampler.append(Float32Array.from(samples.slice(at, at + size))));
            at += size;
        }
        const early = parts.length;
        const whole = [...resample(Float32Array.from(samples), rate, newRate)];
        return { whole, early, parts: [...parts, ...resampler.finish()] };
    });
    console.log(JSON.stringify(found));
"""
PROGRAM = """
    import { readFileSync } from "node:fs";
    const { samplesOf } = await import("./audio.js");
    const found = [];
    for (const [path, rate, longest] of JSON.parse(readFileSync(0, "utf8"))) {
        const blob = new Blob([readFileSync(path)]);
        const read = samplesOf(blob, rate, longest ?? Infinity);
        found.push(await read.then((x) => [...x], String));
    }
    console.log(JSON.stringify(found));
"""


def in_node(cases, program=PROGRAM):
    arguments = ["node", "--input-type=module", "-e", program]
    done = subprocess.run(
        arguments, cwd=RUNTIME, input=json.dumps(cases), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def wav(kind, channels, rate, bits, body, extra=b""):
    """Of PCM (1) or floats (3); `extra`: a chunk before the samples."""
    width = channels * bits // 8
    form = struct.pack("<HHIIHH", kind, channels, rate, rate * width, width, bits)
    chunks = b"fmt " + struct.pack("<I", len(form)) + form + extra
    chunks += b"data" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def noise(bits, kind, count, seed):
    generator = np.random.default_rng(seed)
    if kind == 3:
        return generator.uniform(-1, 1, count).astype(f"<f{bits // 8}").tobytes()
    return generator.integers(0, 256, count * bits // 8).astype("u1").tobytes()


def test_samples_are_those_of_python(tmp_path):
    cases, expected = [], []
    formats = [(1, 8), (1, 16), (1, 24), (1, 32), (3, 32), (3, 64)]
    rates = [(16000, 16000), (44100, 16000), (8000, 16000), (48000, 16000), (11025, 8000), (7, 5)]
    for seed, (kind, bits) in enumerate(formats):
        for channels in (1, 2):
            for rate, new_rate in rates:
                body = noise(bits, kind, channels * (300 + seed), seed)
                extra = b"LIST" + struct.pack("<I", 3) + b"abc\0"  # padded to an even size
                content = wav(kind, channels, rate, bits, body, extra)
                path = tmp_path / f"{kind}_{bits}_{channels}_{rate}_{new_rate}.wav"
                path.write_bytes(content)
                cases.append([str(path), new_rate])
                samples, found = read_wav(content)
                expected.append(resample(samples, found, new_rate))
    for case, found, wanted in zip(cases, in_node(cases), expected, strict=True):
        assert len(found) == len(wanted) > 90
        # Both round a sum of float64 to float32.
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-7, err_msg=str(case))


def test_files_from_pipes_have_samples_to_their_end(tmp_path):
    content = wav(1, 1, 16000, 16, noise(16, 1, 300, 0) + b"\1")
    cases, expected = [], []
    for whole, size in ((2**32 - 1, 2**32 - 1), (0x7FFFF024, 0x7FFFF000), (0, 0), (637, 0)):
        path = tmp_path / f"{whole}_{size}.wav"
        sizes = struct.pack("<I", whole), struct.pack("<I", size)
        path.write_bytes(content[:4] + sizes[0] + content[8:40] + sizes[1] + content[44:])
        cases.append([str(path), 16000])
        expected.append(read_wav(path)[0])
    assert [len(x) for x in expected] == [300, 300, 300, 0] and len(content) == 645
    found = in_node(cases)
    assert found[-1] == "AudioError: The recording has no samples."
    for samples, wanted in zip(found[:-1], expected[:-1], strict=True):
        np.testing.assert_array_equal(np.float32(samples), wanted)


def test_bad_recordings_are_refused_in_words(tmp_path):
    samples = np.zeros(32000, "<i2").tobytes()
    contents = {
        "long": (wav(1, 1, 16000, 16, samples), r"too long: it has 2\.00 seconds, .* most 1\.00\."),
        "empty": (wav(1, 1, 16000, 16, b""), "has no samples"),
        "compressed": (wav(7, 1, 8000, 8, samples), "not 8 bits of format 7"),
        "rate": (wav(1, 1, 20_000_000, 16, samples), "it has 1 channels at 20000000 Hz"),
        "loud": (wav(3, 1, 16000, 32, np.full(9, 9e9, "<f4").tobytes()), "from -1 to 1"),
        "nan": (wav(3, 1, 16000, 32, np.full(9, np.nan, "<f4").tobytes()), "from -1 to 1"),
        "header": (wav(1, 1, 16000, 16, samples)[:40], "damaged: it has no samples"),
        "cut": (wav(1, 1, 16000, 16, samples)[:-7], "damaged: 7 of its 64000 bytes of samples are"),
        "many": (wav(1, 1, 1, 16, samples), r"too long: it has 32000\.00 seconds"),
    }
    cases = []
    for name, (content, _) in contents.items():
        (tmp_path / name).write_bytes(content)
        cases.append([str(tmp_path / name), 16000, 16000])
    for found, (_, message) in zip(in_node(cases), contents.values(), strict=True):
        assert isinstance(found, str) and found.startswith("AudioError: ")
        assert re.search(message, found), found


def test_parts_are_resampled_as_the_whole():
    cases = []
    for rate, new_rate in ((48000, 16000), (44100, 16000), (8000, 16000), (16000, 16000), (7, 5)):
        sizes = [1024, 1, 0, 700, 333]
        samples = np.random.default_rng(rate).uniform(-1, 1, sum(sizes)).astype("float32")
        cases.append([samples.tolist(), sizes, rate, new_rate])
    for case, found in zip(cases, in_node(cases, PARTS), strict=True):
        assert 0.8 * len(found["whole"]) < found["early"] <= len(found["whole"])
        np.testing.assert_allclose(found["parts"], found["whole"], atol=2e-7, err_msg=str(case[2:]))
