/**
 * The page in headless Chromium.
 *
 *     MODELS=FOLDER EXPECTED=EXPECTED.json npm test      # expected.py makes the latter
 *
 * FOLDER holds float32.tflite and int8.tflite, and others that generate the same way. CHROMIUM names the browser if it is
 * not the `chromium` of the path.
 */

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { request as httpRequest } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { generateAll, start } from "./browser.js";

const { MODELS = "../../artifacts/dates", EXPECTED = join(MODELS, "expected.json") } = process.env;
const expected = JSON.parse(readFileSync(EXPECTED, "utf8"));
const int8 = readFileSync(join(MODELS, "int8.tflite"));

const requests = []; // of all pages
const folder = mkdtempSync(join(tmpdir(), "keras_tfm-web-")); // the models, and damaged ones
let browser;

before(async () => {
  for (const name of Object.keys(expected.tokens)) {
    cpSync(join(MODELS, `${name}.tflite`), join(folder, `${name}.tflite`));
  }
  browser = await start(folder, requests);
});

after(async () => {
  await browser.close();
  rmSync(folder, { recursive: true });
});

/** A page whose first model is loaded. */
async function ready(path, options) {
  const page = await browser.open(path, options);
  await page.locator("#facts dd, #problem:not(:empty)").first().waitFor();
  assert.equal(await page.locator("#problem").textContent(), "");
  return page;
}

/** Types a date and waits for what the page says. */
async function read(page, date, language) {
  if (language) await page.getByLabel("Language").selectOption(language);
  await page.getByLabel("Date").fill(date);
  await page.getByRole("button", { name: "Read" }).click();
  return said(page);
}

async function said(page) {
  const words = page.locator(".iso, #problem:not(:empty)");
  await words.waitFor();
  return words.textContent();
}

/** What the page says of a text: the date, or that the answer is none, as of untrained models. */
function wording(answer) {
  const iso = /^\d{4}-\d\d-\d\d$/.test(answer) && new Date(`${answer}T00:00:00Z`);
  const isDate = iso && !Number.isNaN(iso.valueOf()) && iso.toISOString().startsWith(answer);
  return isDate ? answer : `The model answers “${answer}”, which is not a date`;
}

/** The int8 file with its manifest edited, of the same length, and its checksum right again. */
function edited(pattern, replacement) {
  const text = int8.toString("latin1");
  const [, digits] = /"sha256": "([0-9a-f]{64})"/.exec(text);
  const changed = text.replace(pattern, replacement);
  assert.notEqual(changed, text);
  assert.equal(changed.length, text.length);
  const unsigned = changed.replace(digits, "0".repeat(64));
  const digest = createHash("sha256").update(unsigned, "latin1").digest("hex");
  return Buffer.from(changed.replace(digits, digest), "latin1");
}

/** The error of loading a file of these bytes, as "name: message"; "" where there is none. */
async function loadingError(page, bytes) {
  writeFileSync(join(folder, "changed.tflite"), bytes);
  return page.evaluate(async () => {
    const { loadModel } = await import("/model.js");
    return loadModel("models/changed.tflite").then(
      () => "",
      (error) => `${error.name}: ${error.message}`,
    );
  });
}

// Loaded once, for the tests that call only model.js in it.
let loaded;
const plainPage = () => (loaded ??= ready("/"));

for (const name of Object.keys(expected.tokens).filter((key) => key !== "int8")) {
  test(`${name}: tokens are those of Python, from ids that are`, async () => {
    const page = await plainPage();
    const received = await generateAll(page, name, expected.texts);
    assert.deepEqual(received.ids, expected.ids);
    assert.deepEqual(received.tokens, expected.tokens[name]);
    assert.deepEqual(received.answers, expected.answers[name]);
    assert.ok(new Set(received.answers).size > 10); // or equality would say little
  });
}

test("int8 tokens are those of Python but for near-ties", async (t) => {
  const page = await plainPage();
  const { answers } = await generateAll(page, "int8", expected.texts);
  const same = answers.filter((answer, i) => answer === expected.answers.int8[i]).length;
  t.diagnostic(`int8: ${same} of ${answers.length} answers are Python's`);
  // Different kernels round differently; most rows of even an untrained model have no near-tie.
  assert.ok(same >= 0.7 * answers.length);
});

test("two threads give the same float32 tokens", async () => {
  const page = await ready("/?threads=2");
  assert.equal(await page.evaluate(() => crossOriginIsolated), true);
  assert.match(await page.locator("#facts").textContent(), /2 threads.*isolatedyes/);
  const { tokens } = await generateAll(page, "float32", expected.texts.slice(0, 8), 2);
  assert.deepEqual(tokens, expected.tokens.float32.slice(0, 8));
  await page.context().close();
});

test("questions asked at once are answered each", async () => {
  const page = await plainPage();
  const answers = await page.evaluate(async (texts) => {
    const { loadModel } = await import("/model.js");
    const model = await loadModel("models/float32.tflite");
    return Promise.all(texts.map(async (text) => (await model.generate(text)).text));
  }, expected.texts);
  assert.deepEqual(answers, expected.answers.float32);
});

test("a date, a language and Enter give the date in ISO 8601 and the milliseconds", async () => {
  const page = await ready("/", { viewport: { width: 340, height: 700 } });
  for (let i = 0; i < 10; i++) {
    const [, language, date] = /^\[(\w+)\](.*)$/.exec(expected.texts[i]);
    assert.ok((await read(page, date, language)).startsWith(wording(expected.answers.int8[i])));
    assert.match(await page.locator("main").textContent(), /\d\.\d ms, int8/);
    assert.equal(await page.getByLabel("Language").inputValue(), language);
  }
  const answers = page.locator("#answer");
  assert.equal(await answers.getAttribute("aria-live"), "polite");
  assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= 340);
  await page.getByLabel("Date").focus();
  for (const id of ["language", "int8"]) {
    await page.keyboard.press("Tab");
    assert.equal(
      await page.evaluate(() => document.activeElement.id || document.activeElement.value),
      id,
    );
  }
  await page.keyboard.press("ArrowRight"); // the other weights, which are loaded and answer
  await page.locator("main", { hasText: "ms, float32" }).waitFor();
  assert.ok((await said(page)).startsWith(wording(expected.answers.float32[9])));
  await page.context().close();
});

test("another language answers anew, and examples bring theirs", async () => {
  const page = await ready("/");
  const answers = {};
  for (const language of ["en_GB", "en_US", "en_GB"]) {
    const answer = await read(page, "03/04/26", language);
    answers[language] ??= answer.replace(/\d+\.\d ms/, "");
    assert.equal(answer.replace(/\d+\.\d ms/, ""), answers[language]);
  }
  await page.getByRole("button", { name: "Japanese" }).click();
  await said(page);
  assert.equal(await page.getByLabel("Language").inputValue(), "ja");
  assert.equal(await page.getByLabel("Language").locator("option").count(), 34);
  await page.context().close();
});

test("texts that the model cannot read are refused in words", async () => {
  const page = await ready("/");
  for (const [date, words] of [
    ["   ", /^There is no date to read/],
    ["\u200f", /^There is no text to read/], // which the normalizer takes away
    ["☃", /^The model has never seen “☃”\.$/],
    ["1".repeat(60), /^The text is too long: it has 61 tokens, and the model reads 40\.$/],
  ]) {
    assert.match(await read(page, date, "es"), words);
    assert.equal(await page.getByLabel("Date").getAttribute("aria-invalid"), "true");
  }
  await read(page, "2026-03-03", "es");
  assert.equal(await page.getByLabel("Date").getAttribute("aria-invalid"), null);
  await page.context().close();
});

test("damaged, foreign and missing files are refused in words", async () => {
  const page = await plainPage();
  const flipped = Buffer.from(int8); // where the file can still be read, whatever its layout
  flipped[int8.indexOf('"tensorflow": "') + 15] ^= 1;
  for (const [bytes, words] of [
    [int8, /^$/],
    [flipped, /^ModelError: The file is damaged: its checksum does not match its content\.$/],
    [int8.subarray(0, int8.length - 1000), /^ModelError: The file is damaged/],
    [Buffer.alloc(0), /^ModelError: This is not a \.tflite file\.$/],
    [Buffer.from("<!doctype html>"), /^ModelError: This is not a \.tflite file\.$/],
    [
      Buffer.from(int8.toString("latin1").replaceAll("keras_tfm\0", "keras_tfn\0"), "latin1"),
      /no keras_tfm manifest/,
    ],
    [
      edited('"dtype": "int32"}}', '"dtype": "bool" }}'),
      /does not describe it: signatures\.generate\.outputs\.tokens: /,
    ],
    [
      edited('"tokenizers": {"source"', '"tokenizers": {"sourcx"'),
      /no tokenizer for its source\.$/,
    ],
    [edited('"tokenizers"', '"tokenizerz"'), /no tokenizer for its source\.$/],
    [edited('"format": 1', '"format": 9'), /in format 9, and this page reads formats up to 4: /],
    [edited('"format": 1', '"formaz": 1'), /format must be a positive integer\.$/],
    [edited('"max_length"', '"max_lengtt"'), /signatures\.generate\.max_length is missing\.$/],
    [edited('"kind": "input"', '"kinf": "input"'), /inputs\.source\.kind is missing\.$/],
    [edited('"signatures": {"gen', '"signatures": {"gem'), /has no signature gemerate, which/],
    [
      edited(/("source": {"shape": \[1, \d)(\d)/, (_, start, end) => start + ((Number(end) + 1) % 10)),
      /The manifest's inputs of generate are not those of the file\.$/,
    ],
  ]) {
    assert.match(await loadingError(page, bytes), words);
  }

  for (const [bytes, words] of [
    [flipped, /checksum does not match/],
    [null, /^The server has no file int8\.tflite\.$/],
  ]) {
    if (bytes) writeFileSync(join(folder, "int8.tflite"), bytes);
    else rmSync(join(folder, "int8.tflite"));
    const damaged = await browser.open("/");
    assert.match(await said(damaged), words);
    writeFileSync(join(folder, "int8.tflite"), int8); // mended: the next question loads it
    assert.ok((await read(damaged, "2026-03-03")).length);
    await damaged.context().close();
  }
});

test("packages that are not installed are told", async () => {
  const page = await browser.open("/style.css");
  await page.route("**/tokenizers.min.mjs", (route) => route.abort());
  await page.goto(browser.origin);
  assert.match(await said(page), /^This page's packages did not load; "npm ci" installs them\./);
  await page.context().close();
});

test("no flipped byte goes through", async () => {
  const page = await plainPage();
  let state = 1; // random, and the same every time
  for (let i = 0; i < 24; i++) {
    state = (state * 48271) % 2147483647;
    const bytes = Buffer.from(int8);
    // Half of them in the last part, where offsets and the manifest are as likely as weights.
    bytes[i % 2 ? state % bytes.length : state % 4096] ^= 1 << (state % 8);
    assert.match(await loadingError(page, bytes), /^ModelError: /);
  }
});

test("the server keeps to its folders", async () => {
  const { port } = new URL(browser.origin);
  const get = (path, method = "GET") =>
    new Promise((resolve, reject) => {
      const options = { port, host: "127.0.0.1", path, method };
      httpRequest(options, (answer) => resolve(answer.resume()))
        .on("error", reject)
        .end();
    });
  for (const path of [
    "/../pyproject.toml",
    "/..%2f..%2fpyproject.toml",
    "/models/../../../etc/passwd",
  ]) {
    assert.equal((await get(path)).statusCode, 404);
  }
  for (const path of [
    "/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "/%",
    "/test",
    "/models/",
    "//etc/passwd",
  ]) {
    assert.equal((await get(path)).statusCode, 404);
  }
  assert.equal((await get("/", "POST")).statusCode, 405);
  const wasm = await get("/node_modules/@litertjs/core/wasm/litert_wasm_internal.wasm");
  assert.equal(wasm.headers["content-type"], "application/wasm");
  assert.equal(wasm.headers["cross-origin-embedder-policy"], "require-corp");
});

test("nothing leaves the origin, and the page's own policy refuses it", async () => {
  const page = await ready("/");
  const refused = await page.evaluate(async () => {
    const violation = new Promise((resolve) => {
      document.addEventListener("securitypolicyviolation", (event) =>
        resolve(event.violatedDirective),
      );
    });
    const failed = await fetch("http://localhost:9/").then(
      () => false,
      () => true,
    );
    return failed && (await violation);
  });
  assert.equal(refused, "connect-src");
  await page.context().close();
  const asked = requests.filter((url) => url !== "http://localhost:9/"); // the one above
  assert.ok(asked.length > 50);
  const elsewhere = asked.filter((url) => !url.startsWith(`${browser.origin}/`));
  assert.deepEqual(
    elsewhere.filter((url) => !/^(data:,|blob:http:\/\/127\.0\.0\.1)/.test(url)),
    [],
  );
});
