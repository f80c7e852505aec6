/**
 * What model.js answers with any files, in headless Chromium, against what Python answers.
 *
 *     MODELS=FOLDER EXPECTED=EXPECTED.json npm run test:files
 *
 * tests/examples/test_web.py makes both. Of each file EXPECTED has `texts` and what it `can`, and of
 * each text its scores in `outputs`, or in `answers` the text, in `pieces` those of greedy search
 * and in `unrepeated` those of the search that takes no token twice. `exact` says that texts are to
 * be Python's; where it is not set, 7 of 10 are.
 */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";

import { start } from "./browser.js";

const { MODELS, EXPECTED } = process.env;
const { exact, files } = JSON.parse(readFileSync(EXPECTED, "utf8"));
const named = (ability) => Object.keys(files).filter((name) => files[name].can.includes(ability));
let browser;
let page;

before(async () => {
  browser = await start(MODELS);
  page = await browser.open("/");
  await page.evaluate(() => {
    globalThis.opened = async (name) => {
      const { loadModel } = await import("/model.js");
      return loadModel(`models/${name}.tflite`);
    };
    /** The most probable token that was not yet chosen. */
    globalThis.unrepeated = () => {
      const seen = new Set();
      return (logits) => {
        let best = -1;
        for (let i = 0; i < logits.length; i++) {
          if (!seen.has(i) && (best < 0 || logits[i] > logits[best])) best = i;
        }
        seen.add(best);
        return best;
      };
    };
    globalThis.collect = async (stream) => {
      const pieces = [];
      for await (const piece of stream) pieces.push(piece);
      return pieces;
    };
  });
});

after(() => browser.close());

function compare(t, found, expected) {
  const same = found.filter((x, i) => JSON.stringify(x) === JSON.stringify(expected[i])).length;
  t.diagnostic(`${same} of ${found.length} are Python's`);
  if (exact) assert.deepEqual(found, expected);
  else assert.ok(same >= 0.7 * found.length);
}

for (const name of Object.keys(files)) {
  test(`${name} can what it says`, async () => {
    const abilities = await page.evaluate(async (name) => (await opened(name)).abilities, name);
    assert.deepEqual(abilities, files[name].can);
  });
}

for (const name of named("predict")) {
  test(`${name}: the scores are those of Python`, async () => {
    const { texts, outputs } = files[name];
    const found = await page.evaluate(
      async ([name, texts]) => {
        const model = await opened(name);
        const results = [];
        for (const text of texts) results.push(await model.predict(text));
        model.delete();
        return results.map((result) =>
          Object.fromEntries(Object.entries(result).map(([key, row]) => [key, [...row]])),
        );
      },
      [name, texts],
    );
    assert.equal(found.length, outputs.length);
    found.forEach((result, i) => {
      assert.deepEqual(Object.keys(result).sort(), Object.keys(outputs[i]).sort());
      for (const [key, row] of Object.entries(outputs[i])) {
        assert.equal(result[key].length, row.length);
        // Scores of order 1, which kernels of other widths sum in another order; int8 also rounds
        // activations, where one step of 127 is the least that may differ.
        const error = Math.max(...row.map((x, j) => Math.abs(x - result[key][j])));
        assert.ok(error < (exact ? 1e-5 : 0.05), `${texts[i]}: ${error}`);
      }
    });
    assert.ok(new Set(found.map((result) => JSON.stringify(result))).size > found.length / 2);
  });
}

for (const name of [...named("generate"), ...named("stream")]) {
  test(`${name}: the texts are those of Python`, async (t) => {
    const { texts, answers } = files[name];
    const found = await page.evaluate(
      async ([name, texts]) => {
        const model = await opened(name);
        const results = [];
        for (const text of texts) results.push((await model.generate(text)).text);
        model.delete();
        return results;
      },
      [name, texts],
    );
    compare(t, found, answers);
  });
}

for (const name of named("stream")) {
  test(`${name}: the pieces are those of Python, of several streams at once too`, async (t) => {
    const { texts, pieces, unrepeated } = files[name];
    const found = await page.evaluate(
      async ([name, texts]) => {
        const model = await opened(name);
        const greedy = texts.map((text) => collect(model.stream(text)));
        const chosen = [];
        for (const text of texts) {
          chosen.push(await collect(model.stream(text, { choose: globalThis.unrepeated() })));
        }
        return { greedy: await Promise.all(greedy), chosen };
      },
      [name, texts],
    );
    compare(t, found.greedy, pieces);
    compare(t, found.chosen, unrepeated);
    assert.ok(new Set(unrepeated.map((list) => list.join(""))).size > 1); // or it would say little
  });
}

test("every tensor is freed, of streams that are left early too", async () => {
  const counts = await page.evaluate(
    async (names) => {
      const litert = await import("@litertjs/core");
      (await opened(names[0])).delete(); // starts LiteRT.js
      const bytes = await (await fetch(`models/${names[0]}.tflite`)).arrayBuffer();
      const compiled = await litert.loadAndCompile(new Uint8Array(bytes), { accelerator: "wasm" });
      // What all signatures of all files inherit from.
      const runner = Object.getPrototypeOf(Object.values(compiled.signatures)[0]);
      const { run } = runner;
      const tensors = new Set();
      runner.run = async function (inputs) {
        const outputs = await run.call(this, inputs);
        for (const x of [inputs, outputs].flatMap(Object.values)) tensors.add(x);
        return outputs;
      };
      const counts = {};
      for (const name of names) {
        const model = await opened(name);
        const text = globalThis.texts[name];
        if (model.abilities.includes("predict")) await model.predict(text);
        if (model.abilities.some((x) => x !== "predict")) await model.generate(text);
        if (model.abilities.includes("stream")) {
          for await (const piece of model.stream(text)) if (piece) break;
          const fails = () => {
            throw new Error("no choice");
          };
          await collect(model.stream(text, { choose: fails })).catch(() => {});
        }
        counts[name] = [tensors.size, [...tensors].filter((x) => !x.deleted).length];
        tensors.clear();
      }
      runner.run = run;
      return counts;
    },
    await page.evaluate(
      (texts) => {
        globalThis.texts = texts;
        return Object.keys(texts);
      },
      Object.fromEntries(Object.entries(files).map(([name, { texts }]) => [name, texts[0]])),
    ),
  );
  for (const [used, left] of Object.values(counts)) {
    assert.ok(used >= 2);
    assert.equal(left, 0);
  }
});

test("what a file cannot do is refused in words", async () => {
  const errors = await page.evaluate(async (files) => {
    const errors = [];
    for (const [name, { can, texts }] of Object.entries(files)) {
      const model = await opened(name);
      for (const ability of ["generate", "stream", "predict"]) {
        const possible = ability === "generate" ? ["generate", "stream"] : [ability];
        if (possible.some((x) => can.includes(x))) continue;
        const answer =
          ability === "stream" ? collect(model.stream(texts[0])) : model[ability](texts[0]);
        errors.push(await answer.then(String, String));
      }
      const long = `${texts[0]} `.repeat(300);
      const call = can.includes("predict") ? "predict" : "generate";
      errors.push(await model[call](long).then(String, String));
      if (can.includes("stream")) {
        for (const token of [-1, 1.5, 1e6, undefined]) {
          const stream = model.stream(texts[0], { choose: () => token });
          errors.push(await collect(stream).then(String, String));
        }
      }
    }
    return errors;
  }, files);
  assert.ok(errors.length > Object.keys(files).length);
  for (const error of errors) {
    assert.match(
      error,
      new RegExp(
        "^ModelError: The file cannot (generate|stream|predict): it has the signatures \\w|" +
          "^ModelError: This page runs models of one padded row of tokens, not of source, target|" +
          "^TextError: The text is too long: it has \\d+ tokens, and the model reads \\d+\\.$|" +
          "^RangeError: choose must return a token, 0 to \\d+: (-1|1\\.5|1000000|undefined)$",
      ),
    );
  }
});
