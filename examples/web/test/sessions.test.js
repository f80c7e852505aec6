/**
 * The texts of sessions in Node, without a browser: tokens are given, and no kernel runs.
 *
 *     MODEL=FILE.tflite EXPECTED=EXPECTED.json npm run test:sessions
 *
 * tests/examples/test_web_files.py exports the file, a language model. EXPECTED has `tokenizers`: of
 * each its `json` and, by text, the `ids`; and `start`, a tokenizer that adds a start token, with the
 * ids of `prompts`.
 */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { fileWith, loadBytes, manifestOf } from "./without_browser.js";

const bytes = new Uint8Array(readFileSync(process.env.MODEL));
const { tokenizers, start } = JSON.parse(readFileSync(process.env.EXPECTED, "utf8"));
const manifest = manifestOf(bytes);
const [entry] = Object.values(manifest.tokenizers);
const { end_id: end } = Object.values(manifest.signatures).find(({ role }) => role === "decode");

const load = (json) =>
  loadBytes(fileWith(bytes, manifest, { [entry]: json }), manifest.signatures);

/** Chooses the ids of a text and the end, over several calls. */
function scripted(ids) {
  let count = 0;
  return () => ids[count++] ?? end;
}

async function begun(model) {
  const session = model.session();
  await session.append([5, 6]);
  return session;
}

/** The text of calls of `step` tokens, until a call has fewer. */
async function joined(model, session, choose, step, between = async (x) => x) {
  let text = "";
  for (;;) {
    const before = session.tokens.length;
    text += (await session.generate({ maxTokens: step, choose })).text;
    if (session.tokens.length - before < step) return text;
    session = await between(session);
  }
}

for (const [kind, { json, texts }] of Object.entries(tokenizers)) {
  test(`${kind}: calls that end within a character join to the whole`, async () => {
    const model = await load(json);
    for (const [text, ids] of Object.entries(texts)) {
      for (const step of [1, 2, 3, 7]) {
        const plain = await joined(model, await begun(model), scripted(ids), step);
        assert.equal(plain, text);
        const fork = async (session) => session.fork();
        assert.equal(await joined(model, await begun(model), scripted(ids), step, fork), text);
        const restored = async (session) =>
          model.session({ restore: structuredClone(session.save()) });
        assert.equal(await joined(model, await begun(model), scripted(ids), step, restored), text);
      }
    }
  });

  test(`${kind}: streams that are left lose nothing, nor what may begin a stop string`, async () => {
    const model = await load(json);
    for (const [text, ids] of Object.entries(texts)) {
      for (const stop of [[], ["\0"], [...text].map((letter) => `${letter}\0`)]) {
        const [session, choose] = [await begun(model), scripted(ids)];
        let said = "";
        for (let left = true; left; ) {
          left = false;
          for await (const piece of session.stream({ choose, stop })) {
            said += piece;
            left = true;
            break;
          }
        }
        assert.equal(said, text);
      }
    }
  });

  test(`${kind}: an end within a character gives what there is`, async () => {
    const model = await load(json);
    const ids = Object.values(texts)[0];
    const [session, choose] = [await begun(model), scripted(ids.slice(0, 1))];
    assert.equal((await session.generate({ maxTokens: 1, choose })).text, "");
    assert.equal((await session.generate({ choose })).text, "\ufffd");
    const rest = scripted(ids.slice(1));
    assert.equal((await session.generate({ choose: rest })).text, Object.keys(texts)[0]);
  });
}

test("a stop string over two calls", async () => {
  const { json, stops } = tokenizers["byte pairs"];
  const model = await load(json);
  const [session, choose] = [await begun(model), scripted(stops.ids)];
  const before = session.tokens;
  for await (const piece of session.stream({ choose, stop: ["##"] })) {
    assert.equal(piece, stops.text[0]);
    break;
  }
  const { text } = await session.generate({ choose, stop: "##" });
  assert.equal(stops.text[0] + text, stops.text.split("##")[0]);
  assert.deepEqual(session.tokens, [...before, ...stops.ids.slice(0, stops.kept)]);
});

test("a start token that a prompt writes is there once", async () => {
  const model = await load(start.json);
  for (const [text, ids] of Object.entries(start.prompts)) {
    const session = model.session();
    await session.append(text);
    assert.deepEqual(session.tokens, ids);
  }
});

test("messages are texts", async () => {
  const model = await load(start.json);
  const parts = [{ type: "text", text: "a" }];
  for (const message of [null, undefined, 3, parts, { role: "user", content: "a" }]) {
    assert.throws(() => model.chatMessage(message), { name: "TextError", message: /must be a text/ });
  }
  assert.throws(() => model.chatMessage("a", { tools: [] }), { message: /has no tools/ });
  assert.equal(model.chatMessage("a"), "User: a\nModel: ");
  assert.equal(model.chatMessage("a", { first: false }), "</s>\nUser: a\nModel: ");
  // The blanks that Python's `str.strip` takes away, and no others.
  assert.equal(model.chatMessage(" \n\x1fa b\u3000\x85"), "User: a b\nModel: ");
  assert.equal(model.chatMessage("\ufeffa\u200b"), "User: \ufeffa\u200b\nModel: ");
});

test("what would be ignored or cut off is refused", async () => {
  const model = await load(start.json);
  const session = await begun(model);
  const refused = [
    [{ max_tokens: 5 }, "there is no option max_tokens: known are maxTokens, choose, stop"],
    [{ maxTokens: 1.5 }, "maxTokens must be an integer of 1 or more: 1.5"],
    [{ maxTokens: NaN }, "maxTokens must be an integer of 1 or more: NaN"],
    [{ stop: ["a", ""] }, "stop must be texts of at least one character"],
  ];
  for (const [options, message] of refused) {
    await assert.rejects(session.generate(options), { name: "RangeError", message });
  }
  await assert.rejects(model.stream("a", { maxTokens: 5 }).next(), { message: /no option maxTokens/ });
  const none = { name: "TextError", message: /There is no token (-1|5.5|99999)\./ };
  for (const id of [-1, 5.5, 99999]) {
    await assert.rejects(model.generateTokens([5, id]), none);
    await assert.rejects(session.append([5, id]), none);
  }
  for (const text of [undefined, null, 5, ["a"]]) {
    await assert.rejects(model.generate(text), { name: "TextError", message: "A text must be a string." });
  }
});
