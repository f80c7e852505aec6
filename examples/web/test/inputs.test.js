/**
 * What model.js gives a file for texts, pairs of texts and rows of ids, in Node without a browser.
 *
 *     CASES=CASES.json npm run test:inputs
 *
 * tests/examples/test_web_files.py writes the cases: `file`, `text`, `ids` or `embedded`, a text and
 * the name of a prompt, and `given`, what the runtime of Python gives the file for them, by input; or
 * `refused`, why the file does not generate.
 */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { loadBytes, manifestOf } from "./without_browser.js";

for (const { file, text, ids, embedded, refused, given } of JSON.parse(readFileSync(process.env.CASES))) {
  test(`${file.split("/").at(-1)}: ${JSON.stringify(text ?? ids ?? embedded ?? refused)}`, async () => {
    const bytes = new Uint8Array(readFileSync(file));
    const model = await loadBytes(bytes, manifestOf(bytes).signatures);
    if (refused) return assert.rejects(model.generate("two"), { message: new RegExp(refused) });
    if (ids) await model.predictTokens(ids);
    else if (text) await model.predict(text);
    else await model.embedText(embedded.text, { prompt: embedded.prompt ?? undefined });
    assert.deepEqual(globalThis.given, given);
    if (embedded) {
      assert.equal((await model.embedText(embedded.text, { dimensions: 3 })).length, 3);
      for (const dimensions of [0, 9, 1.5, "3"]) {
        const wrong = model.embedText(embedded.text, { dimensions });
        await assert.rejects(wrong, /RangeError: dimensions must be an integer in 1\.\.8: /);
      }
      const other = model.embedText(embedded.text, { prompt: "constructor" });
      await assert.rejects(other, /no prompt "constructor": it has \[query, passage\]/);
    }
  });
}
