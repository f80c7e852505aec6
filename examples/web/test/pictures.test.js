/**
 * Pages of pictures, and pictures in model.js, in headless Chromium: pixels, classes and boxes are
 * Python's.
 *
 *     MODELS=FOLDER EXPECTED=EXPECTED.json npm run test:pictures
 *
 * FOLDER has classes.tflite (a classifier), objects.tflite (a detector), plain.tflite (without rules)
 * and pictures. tests/examples/test_web_pictures.py makes both.
 */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { start } from "./browser.js";

const { MODELS, EXPECTED, SCREENSHOTS } = process.env;
const expected = JSON.parse(readFileSync(EXPECTED, "utf8"));
const requests = [];
const FAKE = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"];
let browser;
let page;

before(async () => {
  browser = await start(MODELS, requests, FAKE);
  page = await browser.open("/models/classes_page/");
  await page.evaluate(() => {
    globalThis.opened = async (name) => {
      const { loadModel } = await import("/model.js");
      return loadModel(`/models/${name}.tflite`);
    };
    globalThis.blobOf = async (name) => {
      const response = await fetch(`/models/${name}`);
      return new Blob([await response.arrayBuffer()]);
    };
  });
});

after(() => browser.close());

function difference(found, wanted) {
  assert.equal(found.length, wanted.length);
  return Math.max(...found.map((x, i) => Math.abs(x - wanted[i])));
}

for (const [name, { exact, pixels }] of Object.entries(expected.pixels)) {
  test(`the pixels of ${name} are those of Python`, async (t) => {
    const found = await page.evaluate(async (name) => {
      const model = await opened("classes");
      const pixels = [...(await model.pixels(await blobOf(name)))];
      model.delete();
      return pixels;
    }, name);
    const wanted = [...Buffer.from(pixels, "base64")];
    const largest = difference(found, wanted);
    t.diagnostic(`largest difference: ${largest}`);
    // A JPEG decoder may round its colours otherwise; transparent pixels lose bits in a canvas.
    assert.ok(largest <= (exact ? 0 : 4), `${largest}`);
  });
}

test("every kind of source has the same pixels", async () => {
  const found = await page.evaluate(async () => {
    const model = await opened("classes");
    const blob = await blobOf("a.png");
    const bitmap = await createImageBitmap(blob);
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [bitmap.width, bitmap.height];
    const context = canvas.getContext("2d");
    context.drawImage(bitmap, 0, 0);
    const offscreen = new OffscreenCanvas(bitmap.width, bitmap.height);
    offscreen.getContext("2d").drawImage(bitmap, 0, 0);
    const image = Object.assign(new Image(), { src: URL.createObjectURL(blob) });
    const data = context.getImageData(0, 0, canvas.width, canvas.height);
    const sources = { blob, file: new File([blob], "a.png"), bitmap, canvas, offscreen, image, data };
    sources.frame = new VideoFrame(bitmap, { timestamp: 0 });
    const pixels = {};
    for (const [name, source] of Object.entries(sources)) {
      pixels[name] = String(await model.pixels(source));
    }
    sources.frame.close();
    model.delete();
    return pixels;
  });
  assert.equal(Object.keys(found).length, 8);
  for (const [name, pixels] of Object.entries(found)) assert.equal(pixels, found.blob, name);
});

test("a picture larger than a tile of the canvas", async () => {
  const [found, wanted] = await page.evaluate(async () => {
    const data = new ImageData(5000, 2100);
    for (let i = 0; i < data.data.length; i++) data.data[i] = i % 4 === 3 ? 255 : (i * i) % 251;
    const model = await opened("classes");
    const pixels = [await model.pixels(await createImageBitmap(data)), await model.pixels(data)];
    model.delete();
    return pixels.map(String);
  });
  assert.equal(found, wanted);
});

test("classes and objects are those of Python", async () => {
  for (const [name, logits] of Object.entries(expected.logits)) {
    const found = await page.evaluate(async (name) => {
      const model = await opened("classes");
      const { output } = await model.predictImages(await blobOf(name));
      const result = { output: [...output], labels: model.labels, abilities: model.abilities };
      model.delete();
      return result;
    }, name);
    assert.deepEqual(found.abilities, ["predictImages"]);
    assert.deepEqual(found.labels, expected.labels);
    // Logits of order 10, float32, which kernels of other widths sum in another order.
    assert.ok(difference(found.output, logits) < 1e-4, name);
  }
  for (const { picture, threshold, found: wanted } of expected.objects) {
    const { found, abilities } = await page.evaluate(
      async ([picture, threshold]) => {
        const model = await opened("objects");
        const found = await model.detect(await blobOf(picture), { threshold });
        const { abilities } = model;
        model.delete();
        return { found, abilities };
      },
      [picture, threshold],
    );
    assert.deepEqual(abilities, ["predictImages", "detect"]);
    assert.deepEqual(found.map(({ label }) => label), wanted.map(([label]) => label));
    for (const [i, { probability, box }] of found.entries()) {
      assert.ok(Math.abs(probability - wanted[i][1]) < 1e-5);
      assert.ok(difference(box, wanted[i][2]) < 1e-2, `${box}`);
    }
  }
});

test("what cannot be read is refused in words", async () => {
  const errors = await page.evaluate(async () => {
    const [classes, objects] = [await opened("classes"), await opened("objects")];
    const text = new File(["no picture"], "text.png");
    const cut = (await blobOf("a.png")).slice(0, 60);
    const empty = document.createElement("canvas");
    empty.width = 0;
    const attempts = [
      classes.pixels(text),
      classes.pixels(cut),
      classes.pixels(empty),
      classes.pixels("a.png"),
      classes.pixels(document.createElement("video")),
      classes.pixels(new ImageData(100000, 1)),
      classes.predictPixels(new Uint8Array(5)),
      classes.detect(text),
      classes.predict("text"),
      objects.generate("text"),
      opened("plain"),
    ];
    return Promise.all(attempts.map((attempt) => attempt.then(String, String)));
  });
  const messages = [
    /^PictureError: text\.png is not a picture that this browser can read, or it is damaged\.$/,
    /^PictureError: The file is not a picture that this browser can read/,
    /^PictureError: The picture has no pixels/,
    /^PictureError: A picture must be a File or Blob, an ImageBitmap/,
    /^PictureError: The picture has no pixels, or none yet/,
    /^PictureError: The picture is too narrow: its 100000 x 1 pixels would be resized to/,
    /^ModelError: The model reads 3072 values of pixels, not 5\.$/,
    /^ModelError: The file cannot detect: it has the signatures predict\.$/,
    /^ModelError: The file cannot predict: it has the signatures predict\.$/,
    /^ModelError: The file cannot generate: /,
    /^ModelError: The file has no rules for its pixels: export it with images=\.$/,
  ];
  assert.equal(errors.length, messages.length);
  for (const [i, message] of messages.entries()) assert.match(errors[i], message);
});

// --- The page ----------------------------------------------------------------------------------

async function seen(page) {
  await page.locator("#seen:not([hidden]) #results li").first().waitFor();
  return page.locator("#results li").evaluateAll((lines) =>
    lines.map((line) => [line.querySelector("span").textContent, Number(line.querySelector("data").value)]),
  );
}

async function screenshot(page, name) {
  if (SCREENSHOTS) await page.screenshot({ path: join(SCREENSHOTS, name), fullPage: true });
}

test("a classifier's page shows the most probable classes with bars", async (t) => {
  const page = await browser.open("/models/classes_page/");
  await page.getByLabel("Picture", { exact: true }).setInputFiles(join(MODELS, "photograph.png"));
  const found = await seen(page);
  const wanted = expected.classes["photograph.png"];
  assert.deepEqual(found.map(([label]) => label), wanted.map(([label]) => label));
  for (const [i, [, share]] of found.entries()) assert.ok(Math.abs(share - wanted[i][1]) < 1e-4);
  const widths = await page.locator("#results .bar").evaluateAll((bars) =>
    bars.map((x) => getComputedStyle(x).backgroundSize),
  );
  assert.equal(new Set(widths).size, widths.length);
  assert.equal(await page.locator("#least").isVisible(), false);
  assert.match(await page.locator("#duration").textContent(), /^\d+\.\d ms$/);
  t.diagnostic(await page.locator("#duration").textContent());
  await screenshot(page, "classes.png");
});

test("a detector's page draws boxes where they are, by the threshold", async () => {
  const page = await browser.open("/models/objects_page/");
  await page.getByLabel("Picture", { exact: true }).setInputFiles(join(MODELS, "photograph.png"));
  const { width, height, found: wanted } = expected.photograph;
  assert.deepEqual((await seen(page)).map(([label]) => label), wanted.map(([label]) => label));
  const view = await page.locator("#picture").boundingBox();
  const boxes = await page.locator(".box").all();
  assert.equal(boxes.length, wanted.length);
  for (const [i, frame] of boxes.entries()) {
    const { x, y, width: w, height: h } = await frame.boundingBox();
    const shares = [x - view.x, y - view.y, x + w - view.x, y + h - view.y];
    const [left, top, right, bottom] = wanted[i][2];
    const places = [left / width, top / height, right / width, bottom / height];
    places.forEach((place, j) => {
      const whole = j % 2 ? view.height : view.width;
      assert.ok(Math.abs(shares[j] - place * whole) < 1, `${shares} ${places}`); // a pixel
    });
  }
  await screenshot(page, "objects.png");
  await page.getByLabel("Least probability").fill("0.95");
  await page.locator("#duration", { hasText: "Nothing above the least probability" }).waitFor();
  assert.equal(await page.locator(".box").count(), 0);
  await page.getByLabel("Least probability").fill("0.05");
  await page.locator(".box").nth(2).waitFor();
});

test("a dropped picture, and a file that is none", async () => {
  const page = await browser.open("/models/classes_page/");
  const dropped = (name, content) =>
    page.evaluate(
      async ([name, content]) => {
        const bytes = content ?? (await (await fetch(`/models/${name}`)).arrayBuffer());
        const transfer = new DataTransfer();
        transfer.items.add(new File([bytes], name, { type: "image/png" }));
        document.body.dispatchEvent(
          new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }),
        );
      },
      [name, content],
    );
  await dropped("photograph.png");
  assert.equal((await seen(page))[0][0], expected.classes["photograph.png"][0][0]);
  await dropped("text.png", "no picture");
  await page.locator("#problem:not(:empty)").waitFor();
  assert.match(await page.locator("#problem").textContent(), /^text\.png is not a picture/);
  await dropped("photograph.png");
  await seen(page);
  assert.equal(await page.locator("#problem").textContent(), "");
});

test("the camera is read until it is stopped", async () => {
  const page = await browser.open("/models/objects_page/");
  await page.getByRole("button", { name: "Use the camera" }).click();
  await page.locator("#duration:not(:empty)").waitFor();
  const size = await page.locator("#video").evaluate((video) => [video.videoWidth, video.videoHeight]);
  assert.ok(size[0] > 0 && size[1] > 0);
  const times = await page.evaluate(async () => {
    const times = new Set();
    for (const end = performance.now() + 5000; times.size < 3 && performance.now() < end; ) {
      times.add(document.getElementById("duration").textContent);
      await new Promise(requestAnimationFrame);
    }
    return times.size;
  });
  assert.equal(times, 3); // one frame after another
  await page.getByRole("button", { name: "Stop the camera" }).click();
  assert.equal(await page.locator("#view").isVisible(), false);
  const live = await page.locator("#video").evaluate((video) => Boolean(video.srcObject));
  assert.equal(live, false);
  assert.equal(await page.locator("#problem").textContent(), "");
});

test("the page fits a phone", async () => {
  const page = await browser.open("/models/objects_page/", {
    viewport: { width: 360, height: 740 },
    colorScheme: "dark",
  });
  await page.getByLabel("Picture", { exact: true }).setInputFiles(join(MODELS, "photograph.png"));
  await seen(page);
  const width = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.equal(width, 360);
  await screenshot(page, "phone.png");
});

test("missing models and files of texts are named; nothing leaves the origin", async () => {
  const page = await browser.open("/models/none_page/");
  await page.locator("#problem:not(:empty)").waitFor();
  assert.match(await page.locator("#problem").textContent(), /no file model\.tflite/);
  assert.ok(requests.length > 10);
  assert.ok(requests.every((url) => url.startsWith(browser.origin) || url.startsWith("blob:")));
});
