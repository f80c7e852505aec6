/**
 * Pages of `keras-tfm page` in headless Chromium, served by Python's http.server.
 *
 *     MODELS=FOLDER EXPECTED=EXPECTED.json npm run test:app
 *
 * FOLDER has a page by each name of EXPECTED's `cases`, whose answers are those of Python.
 * tests/examples/test_web_page.py makes both.
 */

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { createRequire } from "node:module";
import { cpSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { chromium } from "playwright-core";

const { MODELS, EXPECTED, SCREENSHOTS, PYTHON = "python3" } = process.env;
const { cases } = JSON.parse(readFileSync(EXPECTED, "utf8"));
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
let browser;

before(async () => {
  const executablePath =
    process.env.CHROMIUM || execFileSync("which", ["chromium"], { encoding: "utf8" }).trim();
  const args = process.getuid?.() === 0 ? ["--no-sandbox"] : [];
  args.push("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream");
  browser = await chromium.launch({ executablePath, args });
});
after(() => browser.close());

/** A server of a folder on a free port. */
async function serve(folder) {
  const program = `import http.server, functools
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=${JSON.stringify(folder)})
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
print(server.server_port, flush=True)
server.serve_forever()`;
  const child = spawn(PYTHON, ["-c", program], { stdio: ["ignore", "pipe", "ignore"] });
  const port = await new Promise((resolve) => child.stdout.once("data", (data) => resolve(`${data}`.trim())));
  return { origin: `http://127.0.0.1:${port}`, stop: () => child.kill() };
}

const numbers = (items) => items.map((x) => [x.querySelector("span, p")?.textContent, Number(x.querySelector("data").value)]);

const FORMS = {
  async chat(page, { text }, i) {
    await page.getByLabel("Temperature").fill("0");
    await page.getByLabel("Longest answer").fill("30");
    await page.getByLabel("Message").fill(text);
    await page.getByLabel("Message").press("Enter");
    await page.locator(`#log li:nth-child(${2 * i + 2}) small`, { hasText: /tokens/ }).waitFor();
    await page.locator("#send:enabled").waitFor();
    return page.locator(`#log li:nth-child(${2 * i + 2}) p`).textContent();
  },
  async write(page, { text }) {
    await page.getByLabel("Text").fill(text);
    await page.getByLabel("Text").press("Control+Enter");
    await page.locator("#duration", { hasText: /ms/ }).waitFor();
    return page.locator("#answer").textContent();
  },
  async classify(page, { text }) {
    await page.locator("#duration").evaluate((x) => (x.textContent = ""));
    await page.getByLabel("Text", { exact: true }).fill(text);
    await page.getByRole("button", { name: "Classify" }).click();
    await page.locator("#duration", { hasText: /ms/ }).waitFor();
    return page.locator("#results li").evaluateAll(numbers);
  },
  async search(page, { text, lines }) {
    await page.locator("#duration").evaluate((x) => (x.textContent = ""));
    await page.getByLabel("Texts").fill(lines.join("\n"));
    await page.getByLabel("Query").fill(text);
    await page.getByLabel("Query").press("Enter");
    await page.locator("#duration", { hasText: /ms/ }).waitFor();
    return page.locator("#results li").evaluateAll((items) =>
      items.map((x) => [x.lastChild.textContent.trim(), Number(x.firstChild.value)]),
    );
  },
  async pictures(page, { picture, answer }) {
    await page.locator("#duration").evaluate((x) => (x.textContent = ""));
    await page.getByLabel("Picture", { exact: true }).setInputFiles(picture);
    await page.locator("#duration", { hasText: /ms/ }).waitFor();
    if (answer !== undefined) return page.locator("#caption").textContent();
    return page.locator("#results li").evaluateAll(numbers);
  },
  async pairs(page, { picture, lines }) {
    await page.getByLabel("Pictures").setInputFiles(picture);
    await page.getByLabel("Words").fill(lines.join("\n"));
    await page.getByRole("button", { name: "Compare" }).click();
    await page.locator("#duration", { hasText: /ms/ }).waitFor();
    return page.locator("#results li").evaluateAll(numbers);
  },
  async speech(page, { recording }) {
    await page.locator("#duration").evaluate((x) => (x.textContent = ""));
    await page.getByLabel("Recording").setInputFiles(recording);
    await page.locator("#duration", { hasText: /ms/ }).waitFor();
    return page.locator("#answer").textContent();
  },
  async live(page, { recording }) {
    await page.locator("#duration").evaluate((x) => (x.textContent = ""));
    await page.getByLabel("Recording").setInputFiles(recording);
    await page.locator("#duration", { hasText: /finished/ }).waitFor();
    return page.locator("#answer").textContent();
  },
};

function compare(found, { answer, ranked }) {
  if (answer !== undefined) return assert.equal(found, answer);
  assert.deepEqual(found.map(([label]) => label), ranked.map(([label]) => label));
  found.forEach(([, value], i) => assert.ok(Math.abs(value - ranked[i][1]) < 1e-4, `${value} ${ranked[i][1]}`));
}

// Of each form and kind of answer, one page is also asked offline and looked at: by axe, on a phone.
const seen = new Set();

for (const [name, { form, asked }] of Object.entries(cases)) {
  test(`${name}: answers, offline too, and everybody can use it`, async (t) => {
    const server = await serve(join(MODELS, name));
    const context = await browser.newContext({ locale: "en-GB" });
    const requests = [];
    context.on("request", (request) => requests.push(request.url()));
    try {
      const page = await context.newPage();
      const errors = [];
      // LiteRT.js writes its log as errors.
      const isLog = (text) => /^(INFO|WARNING):/.test(text);
      page.on("console", (message) => {
        if (message.type() === "error" && !isLog(message.text())) errors.push(message.text());
      });
      page.on("pageerror", (error) => errors.push(String(error)));
      page.setDefaultTimeout(60000);
      await page.goto(server.origin);
      for (const [i, question] of asked.entries()) {
        compare(await FORMS[form](page, question, i), question);
        if (i) continue;
        const times = await page.evaluate(() => {
          const [paint] = performance.getEntriesByName("first-contentful-paint");
          return performance.now() - paint.startTime;
        });
        t.diagnostic(`${name}: ${times.toFixed(0)} ms from the first paint to the first answer`);
      }
      assert.equal(await page.locator("#problem").textContent(), "");
      assert.notEqual(await page.title(), "executed");
      if (SCREENSHOTS) await page.screenshot({ path: `${SCREENSHOTS}/${name}.png`, fullPage: true });
      const kind = `${form}, ${Object.keys(asked[0])}`;
      const others = () =>
        requests.filter((url) => !url.startsWith(server.origin) && !/^(blob|data):/.test(url));
      if (seen.has(kind)) {
        assert.deepEqual([errors, others()], [[], []]);
        return;
      }
      seen.add(kind);
      for (const scheme of ["light", "dark"]) {
        await page.emulateMedia({ colorScheme: scheme });
        await page.evaluate(AXE);
        const { violations } = await page.evaluate(() => globalThis.axe.run());
        const found = violations.map(({ id, nodes }) => `${id}: ${nodes.map((x) => x.html).join(" ")}`);
        assert.deepEqual(found, [], scheme);
      }
      await page.emulateMedia({ colorScheme: "light" });
      await page.setViewportSize({ width: 360, height: 740 });
      const widths = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
      assert.ok(widths[0] <= widths[1], `${widths} scrolls sideways`);
      if (SCREENSHOTS) await page.screenshot({ path: `${SCREENSHOTS}/${name}_phone.png`, fullPage: true });
      await page.locator("#facts dd", { hasText: /^yes, this browser keeps/ }).waitFor();
      assert.deepEqual(errors, []);

      server.stop();
      await context.setOffline(true);
      await page.goto(`${server.origin}/?again`);
      for (const [i, question] of asked.entries()) compare(await FORMS[form](page, question, i), question);
      assert.deepEqual(others(), []);
    } finally {
      server.stop();
      await context.close();
    }
  });
}

test("the microphone is heard until it is stopped", async () => {
  const server = await serve(join(MODELS, "whisper"));
  const context = await browser.newContext();
  try {
    const page = await context.newPage();
    page.setDefaultTimeout(60000);
    await page.goto(server.origin);
    await page.getByRole("button", { name: "Use the microphone" }).click();
    const button = page.getByRole("button", { name: "Stop and read", pressed: true });
    await button.waitFor();
    await page.waitForTimeout(700);
    await button.click();
    await page.locator("#duration:not(:empty), #problem:not(:empty)").waitFor();
    assert.equal(await page.locator("#problem").textContent(), "");
    await page.getByLabel("Recording").setInputFiles(join(MODELS, "0.png"));
    await page.locator("#problem:not(:empty)").waitFor();
    assert.match(await page.locator("#problem").textContent(), /^0\.png is not a recording/);
  } finally {
    server.stop();
    await context.close();
  }
});

test("the microphone is heard live", async () => {
  const server = await serve(join(MODELS, "ctc"));
  const context = await browser.newContext();
  try {
    const page = await context.newPage();
    page.setDefaultTimeout(60000);
    await page.goto(server.origin);
    await page.getByRole("button", { name: "Use the microphone" }).click();
    const button = page.getByRole("button", { name: "Stop listening", pressed: true });
    await button.waitFor();
    // Words come while it listens, of Chromium's beeps. A slow machine may hear several at once.
    await page.locator("#answer:not(:empty)").waitFor();
    const first = await page.locator("#answer").textContent();
    // Not waitForFunction, which asks once for each frame: a browser that draws nothing has none.
    await page.locator("#answer", { hasText: new RegExp(`^${first}.`) }).waitFor();
    await button.click();
    await page.locator("#duration", { hasText: /finished/ }).waitFor();
    const whole = await page.locator("#answer").textContent();
    assert.ok(whole.startsWith(first) && whole.length > first.length, `${first} | ${whole}`);
    assert.equal(await page.locator("#problem").textContent(), "");
    await page.getByRole("button", { name: "Use the microphone", pressed: false }).click();
    await button.waitFor();
    await page.getByLabel("Recording").setInputFiles(join(MODELS, "0.png"));
    await page.locator("#problem:not(:empty)").waitFor();
    assert.match(await page.locator("#problem").textContent(), /^0\.png is not a recording/);
    assert.equal(await button.count(), 0);
  } finally {
    server.stop();
    await context.close();
  }
});

test("a page that was written again is fetched again, and its earlier files are forgotten", async () => {
  const folder = mkdtempSync(join(tmpdir(), "page-"));
  cpSync(join(MODELS, "classify"), folder, { recursive: true });
  const server = await serve(folder);
  const context = await browser.newContext();
  try {
    const page = await context.newPage();
    page.setDefaultTimeout(60000);
    await page.goto(server.origin);
    await page.locator("#facts dd", { hasText: /^yes, this browser keeps/ }).waitFor();
    assert.match(await page.locator("#facts dd").first().textContent(), /^classify\.tflite/);
    cpSync(join(MODELS, "search"), folder, { recursive: true });
    await page.reload(); // fetches the service worker
    await page.evaluate(async () => {
      for (let found = false; !found; await new Promise((resolve) => setTimeout(resolve, 50))) {
        const names = await caches.keys();
        found = names.length === 1 && (await (await caches.open(names[0])).match("search.js"));
      }
    });
    await page.reload();
    await page.locator("#facts dd", { hasText: /^search\.tflite/ }).waitFor();
    assert.equal(await page.getByLabel("Query").count(), 1);
  } finally {
    server.stop();
    await context.close();
    rmSync(folder, { recursive: true });
  }
});

const BAD = {
  no_model: /^This is not a \.tflite file\.$/,
  damaged: /^The file is damaged/,
  lie: /^The file's manifest does not describe it: max_length: 1000000000\.$/,
  other: /is not a file for this form: it was replaced\.$/,
};

/** The one line that a page shows. */
async function problem(folder, prepare = () => {}) {
  const server = await serve(join(MODELS, folder));
  const context = await browser.newContext();
  try {
    await context.addInitScript(prepare);
    const page = await context.newPage();
    page.setDefaultTimeout(60000);
    await page.goto(server.origin);
    await page.locator("#problem:not(:empty)").waitFor();
    assert.equal(await page.locator("#loading").isVisible(), false);
    assert.notEqual(await page.title(), "executed");
    return await page.locator("#problem").textContent();
  } finally {
    server.stop();
    await context.close();
  }
}

for (const [name, words] of Object.entries(BAD)) {
  test(`${name}: one line says what is wrong`, async () => {
    assert.match(await problem(name), words);
  });
}

test("browsers without WebAssembly or its SIMD are told so", async () => {
  const old = () => (WebAssembly.validate = () => false);
  assert.match(await problem("chat", old), /no WebAssembly SIMD, which LiteRT\.js needs/);
  assert.match(await problem("chat", () => delete globalThis.WebAssembly), /has no WebAssembly,/);
});
