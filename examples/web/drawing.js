// drawing.html: pictures of words, with DALL-E and the decoder of its discrete VAE.
// "?model=NAME" chooses models/NAME.tflite, a file of both, and "&judge=NAME" one of CLIP's two
// encoders, by which the pictures are sorted; they may also be in the file itself.

const element = (id) => document.getElementById(id);
const query = new URLSearchParams(location.search);
const [name, judgeName] = [query.get("model") ?? "drawing", query.get("judge")];
const { loadModel, ModelError, sampler, TextError } = await import("./model.js").catch((error) => {
  say(`This page's packages did not load; "npm ci" installs them. (${error.message})`);
  throw error;
});
let loading = null; // promise of the models
let turn = 0; // only the latest words are drawn

async function draw() {
  const mine = ++turn;
  say("");
  try {
    const [model, judge] = await loaded();
    const words = element("words").value.trim();
    if (!words) throw new TextError("There is nothing to draw: write a few words.");
    wait("The model draws.", 0, 1);
    const [candidates, guidance, temperature] = ["candidates", "guidance", "temperature"].map(number);
    const seed = element("seed").value === "" ? undefined : number("seed");
    const start = performance.now();
    const onProgress = (done, total) => {
      if (mine !== turn) throw new Overtaken();
      wait("The model draws.", done, total);
    };
    const options = { candidates, guidance, choose: sampler({ temperature, seed }), onProgress };
    const drawn = await model.draw(words, judge ? { ...options, judge } : options);
    const milliseconds = performance.now() - start;
    if (mine !== turn) return;
    element("results").replaceChildren(...drawn.map((one) => tile(one, words)));
    const sorted = drawn[0].score === null ? "" : "the most similar to the words first, by CLIP; ";
    element("duration").textContent = `${sorted}${milliseconds.toFixed(0)} ms`;
  } catch (error) {
    if (mine !== turn) return;
    say(error.message);
    if (!EXPECTED.some((kind) => error instanceof kind)) console.error(error);
  } finally {
    if (mine === turn) element("loading").hidden = true;
  }
}

/** Newer words are drawn. */
class Overtaken extends Error {}
const EXPECTED = [ModelError, TextError, RangeError];

async function loaded() {
  const onProgress = (bytes, total) => wait("The model loads.", bytes, total);
  const open = (file) => loadModel(`models/${file}.tflite`, { onProgress });
  loading ??= Promise.all([open(name), judgeName && open(judgeName)]);
  try {
    return await loading;
  } catch (error) {
    loading = null; // the next words try again
    throw error;
  }
}

function wait(words, done, total) {
  element("loading").hidden = false;
  element("loading-words").textContent = words;
  Object.assign(element("progress"), { max: total || 1, value: done });
}

/** A picture, which the browser's menu saves, and its score. */
function tile({ image, score }, words) {
  const item = document.createElement("li");
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.width, image.height];
  canvas.getContext("2d").putImageData(image, 0, 0);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", words);
  item.append(canvas);
  if (score !== null) {
    const number = Object.assign(document.createElement("data"), { value: score });
    number.textContent = score.toFixed(2);
    item.append(number);
  }
  return item;
}

function number(id) {
  return element(id).value === "" ? undefined : Number(element(id).value);
}

function say(problem) {
  element("problem").textContent = problem;
}

element("question").addEventListener("submit", (event) => {
  event.preventDefault();
  draw();
});
loaded()
  .catch((error) => say(error.message))
  .finally(() => {
    if (!turn) element("loading").hidden = true;
  });
