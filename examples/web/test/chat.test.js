/**
 * A page with a chat, and sessions, in headless Chromium, against what Python's sessions answer.
 *
 *     MODELS=FOLDER EXPECTED=EXPECTED.json npm run test:chat
 *
 * FOLDER holds the files of EXPECTED. tests/examples/test_web.py makes both. Of `chat` EXPECTED has
 * `messages`, `answers` and the `longest` answer in tokens; of each of `files` the ids that are appended in `parts`, the `tokens`
 * that follow, and those `rewound` by 5 and continued; of `sampling` the probabilities. SCREENSHOT is written, if it is set.
 */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";

import { start } from "./browser.js";

const { MODELS, EXPECTED, SCREENSHOT } = process.env;
const { chat, files, sampling } = JSON.parse(readFileSync(EXPECTED, "utf8"));
const requests = [];
let browser;

before(async () => {
  browser = await start(MODELS, requests);
});
after(() => browser.close());

async function opened() {
  const page = await browser.open("/models/page/");
  await page.locator("#facts:not(:empty), #problem:not(:empty)").first().waitFor();
  assert.equal(await page.getByLabel("Temperature").inputValue(), "0.4"); // that of the file
  await page.getByLabel("Temperature").fill("0");
  await page.getByLabel("Longest answer").fill(String(chat.longest));
  return page;
}

async function sent(page, message) {
  await page.getByLabel("Message").fill(message);
  await page.getByRole("button", { name: "Send" }).click();
  await page.locator("#send:disabled").waitFor({ state: "detached" });
}

const shown = (page) =>
  page.locator("#log li p").evaluateAll((items) => items.map((x) => x.textContent));

test("the page answers as Python does, turn by turn", async (t) => {
  const page = await opened();
  for (const message of chat.messages) await sent(page, message);
  assert.equal(await page.locator("#problem").textContent(), "");
  const turns = chat.messages.flatMap((message, i) => [message, chat.answers[i]]);
  assert.deepEqual(await shown(page), turns);
  const notes = await page.locator("#log li:nth-child(even) small").allTextContents();
  for (const note of notes) assert.match(note, /^\d+ tokens, [\d.]+ per second/);
  t.diagnostic(notes.join("; "));
  assert.match(await page.locator("#facts").textContent(), /kB, float32, written by keras_tfm/);
  if (SCREENSHOT) await page.screenshot({ path: SCREENSHOT, fullPage: true });
  await page.getByRole("button", { name: "New conversation" }).click();
  assert.deepEqual(await shown(page), []);
  await sent(page, chat.messages[0]);
  assert.deepEqual(await shown(page), turns.slice(0, 2));
  assert.ok(requests.every((url) => url.startsWith(browser.origin) || !/^https?:/.test(url)));
});

test("an answer is stopped, and the conversation goes on", async () => {
  const page = await opened();
  await page.getByLabel("Message").fill(chat.messages[0]);
  // Pressed as soon as there is a piece of the answer.
  await page.evaluate(() => {
    const log = document.getElementById("log");
    new MutationObserver((_, observer) => {
      const piece = log.querySelector("li:nth-child(2) p")?.textContent;
      if (!piece) return;
      observer.disconnect();
      document.getElementById("stop").click();
    }).observe(log, { childList: true, subtree: true, characterData: true });
  });
  await page.getByRole("button", { name: "Send" }).click();
  await page.locator("#send:disabled").waitFor({ state: "detached" });
  const [, answer] = await shown(page);
  assert.ok(answer.length && answer.length < chat.answers[0].length);
  assert.ok(chat.answers[0].startsWith(answer));
  assert.match(await page.locator("#log small").last().textContent(), /, stopped$/);
  await sent(page, chat.messages[1]);
  assert.equal((await shown(page)).length, 4);
  assert.equal(await page.locator("#problem").textContent(), "");
});

test("a message that is too long is an error, and the conversation goes on", async () => {
  const page = await opened();
  await sent(page, "hello ".repeat(400));
  assert.match(await page.locator("#problem").textContent(), /too long/);
  await sent(page, chat.messages[0]);
  assert.deepEqual(await shown(page), [chat.messages[0], chat.answers[0]]);
});

// Loaded once, for the tests that call only model.js in it.
let loaded;
const plainPage = () => (loaded ??= browser.open("/"));

for (const [name, { parts, tokens, rewound, stopped }] of Object.entries(files)) {
  test(`${name}: a session has the tokens of Python's`, async () => {
    const page = await plainPage();
    const found = await page.evaluate(
      async ([name, parts, count, stop]) => {
        const { loadModel, sampler } = await import("/model.js");
        const model = await loadModel(`models/${name}.tflite`);
        const message = (call) => call.then(() => "no error", (error) => error.message);
        const session = model.session();
        const errors = [await message(session.generate())];
        const halves = model.session();
        for (const part of parts.slice(0, 2)) await halves.append(part);
        const saved = structuredClone(halves.save());
        const restored = model.session({ restore: saved });
        for (const part of parts.slice(2)) await restored.append(part);
        const continued = await restored.generate({ maxTokens: count });
        const begun = model.session({ restore: model.session().save() });
        await begun.append(parts[0]);
        const shorter = Object.fromEntries(Object.entries(begun.save().caches).slice(0, 1));
        for (const restore of [
          null,
          { ...saved, version: 0 },
          { ...saved, sha256: "0" },
          { ...saved, tokens: saved.tokens.slice(0, 3) },
          { ...saved, tokens: [...saved.tokens.slice(1), 1e6] },
          { ...saved, caches: {} },
          { ...saved, caches: { ...saved.caches, ...shorter } }, // of another length than the others
        ]) {
          const refused = async () => model.session({ restore });
          errors.push(await message(refused()));
        }
        for (const part of parts) await session.append(part);
        const fork = session.fork();
        const texts = session.fork();
        const { tokens } = await session.generate({ maxTokens: count });
        session.rewind(5);
        await session.append(parts[0]);
        const { tokens: rewound } = await session.generate({ maxTokens: count });
        errors.push(await message(session.append(Array(1000).fill(3))));
        errors.push(await message(session.append([100000])));
        errors.push(await message(session.generate({ choose: () => -1 })));
        const streamed = [];
        for await (const token of fork.streamTokens({ maxTokens: count })) streamed.push(token);
        const stopped = await texts.generate({ maxTokens: count, stop: [stop] });
        const [first, second] = [fork.append([5]), message(fork.append([6]))];
        await first;
        errors.push(await second);
        const penalized = { temperature: 0, bannedTokens: [tokens[0]], repetitionPenalty: 1.5 };
        const options = { maxTokens: count, choose: sampler(penalized) };
        const other = (await begun.generate(options)).tokens;
        for (const one of [session, fork, texts, halves, restored, begun]) one.delete();
        errors.push(await message(session.append([5])));
        model.delete();
        return { tokens, rewound, streamed, stopped, continued: continued.tokens, other, errors };
      },
      [name, parts, tokens.length, stopped.stop],
    );
    assert.deepEqual(found.tokens, tokens);
    assert.deepEqual(found.streamed, tokens);
    assert.deepEqual(found.rewound, rewound);
    assert.deepEqual(found.continued, tokens);
    assert.ok(found.other.length && !found.other.includes(tokens[0]));
    assert.deepEqual(found.stopped, { text: stopped.text, tokens: stopped.tokens });
    const damaged = Array(4).fill(/damaged/);
    const refused = [/not a session/, /not a session/, /another file/, ...damaged];
    const expected = [/is empty/, ...refused, /1000 tokens, and/, /no token 100000/, /0 to \d+: -1/, /in use/, /in use/];
    assert.equal(found.errors.length, expected.length);
    found.errors.forEach((error, i) => assert.match(error, expected[i]));
  });
}

test("sampling has the distribution of Python's", async () => {
  const page = await plainPage();
  const found = await page.evaluate(async (sampling) => {
    const { probabilities, sampler } = await import("/model.js");
    const computed = sampling.map(({ options, logits, tokens }) =>
      Array.from(probabilities(Float32Array.from(logits), options, tokens)),
    );
    const { options, logits, tokens } = sampling.at(-2);
    const drawn = (seed) => {
      const choose = sampler({ ...options, seed });
      return Array.from({ length: 4000 }, () => choose(Float32Array.from(logits), tokens));
    };
    const wrong = [
      { temperature: -1 },
      { topK: 0.5 },
      { topP: 1.5 },
      { minP: 0 },
      { repetitionPenalty: 0 },
      { bannedTokens: [-1] },
      { seed: -1 },
      { top_k: 5 },
    ].map((one) => {
      try {
        sampler(one);
      } catch (error) {
        return `${error.name}: ${error.message}`;
      }
    });
    return { computed, drawn: drawn(1), again: drawn(1), other: drawn(2), wrong };
  }, sampling);
  sampling.forEach(({ options, probabilities }, i) => {
    const largest = Math.max(...probabilities.map((p, id) => Math.abs(p - found.computed[i][id])));
    assert.ok(largest < 1e-9, `${JSON.stringify(options)}: ${largest}`);
  });
  assert.deepEqual(found.drawn, found.again);
  assert.notDeepEqual(found.drawn, found.other);
  // Chi-square: its 99.99th percentile with 20 degrees of freedom is 52.4; there are at most 19.
  const { probabilities } = sampling.at(-2);
  let chiSquare = 0;
  probabilities.forEach((p, id) => {
    const count = found.drawn.filter((one) => one === id).length;
    if (p) chiSquare += (count - 4000 * p) ** 2 / (4000 * p);
    else assert.equal(count, 0);
  });
  assert.ok(chiSquare < 52.4, `${chiSquare}`);
  const names = ["temperature", "topK", "topP", "minP", "repetitionPenalty", "bannedTokens", "seed", "top_k"];
  found.wrong.forEach((said, i) => assert.match(said, new RegExp(`^RangeError: .*\\b${names[i]}\\b`)));
});
