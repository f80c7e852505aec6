/**
 * What the forms of a page share: the model with its progress, messages, and the service worker,
 * with which the page works without a network after its first visit.
 */

const FILE = document.body.dataset.file; // its name, for people; the page's own copy is model.tflite
const SIMD = new Uint8Array([
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11,
]);
const KNOWN = ["ModelError", "TextError", "PictureError", "AudioError", "RangeError"];

export const element = (id) => document.getElementById(id);

export const make = (tag, text = "", rest = {}) =>
  Object.assign(document.createElement(tag), { textContent: text, ...rest });

/** An error that is shown in the page, and is not a fault of it. */
export class PageError extends Error {
  name = "ModelError";
}

export function say(problem) {
  element("problem").textContent = problem;
}

/** Shows an error in one line. */
export function fail(error) {
  say(error.message);
  if (!KNOWN.includes(error.name)) console.error(error);
}

/** Shows a bar; without numbers one of unknown length, without words none. */
export function wait(words, done, total) {
  element("loading").hidden = !words;
  if (element("loading-words").textContent !== words) element("loading-words").textContent = words ?? "";
  const bar = element("progress");
  if (total) Object.assign(bar, { max: total, value: done });
  else bar.removeAttribute("value");
}

let lastDrawn = 0;

/** Lets the page be drawn and buttons be pressed, at most every 30 ms: each time costs a few. */
export async function drawn() {
  if (performance.now() - lastDrawn < 30) return;
  await new Promise((resolve) => setTimeout(resolve));
  lastDrawn = performance.now();
}

export const megabytes = (bytes) =>
  bytes < 1e6 ? `${Math.round(bytes / 1000)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;

// --- The model ---------------------------------------------------------------------------------

let loading = null; // promise of the library and the model

/**
 * The model, loaded once; after an error the next call tries again.
 *
 * @param {string[]} calls - the form needs one of these abilities.
 */
export async function loaded(...calls) {
  loading ??= load(calls);
  try {
    return (await loading).model;
  } catch (error) {
    loading = null;
    throw error;
  }
}

/** model.js. */
export async function library() {
  return import("./model.js").catch((error) => {
    throw new PageError(`The page is incomplete: ${error.message}`);
  });
}

async function load(calls) {
  try {
    wait("The model loads.", 0, 0);
    checkBrowser();
    await keepForOffline();
    const { loadModel } = await library();
    const onProgress = (done, total) => {
      if (done && done === total) wait("The model is prepared.", 0, 0);
      else wait(`The model loads: ${megabytes(done)}${total ? ` of ${megabytes(total)}` : ""}.`, done, total);
    };
    const model = await loadModel("model.tflite", { onProgress });
    if (calls.length && !calls.some((call) => model.abilities?.includes(call))) {
      throw new PageError(`${FILE} is not a file for this form: it was replaced.`);
    }
    await stateFacts(model);
    return { model };
  } finally {
    wait(null);
  }
}

function checkBrowser() {
  if (typeof WebAssembly !== "object") {
    throw new PageError("This browser has no WebAssembly, in which the model runs.");
  }
  if (!WebAssembly.validate(SIMD)) {
    throw new PageError("This browser has no WebAssembly SIMD, which LiteRT.js needs: use a newer one.");
  }
}

async function stateFacts(model) {
  const { keras_tfm: version, quantization } = model.manifest;
  const isKept = await isOffline();
  const facts = {
    File: `${FILE}, ${megabytes(model.size)}, ${quantization}, written by keras_tfm ${version}`,
    Offline: isKept ? "yes, this browser keeps the page" : "no, this browser does not keep the page",
  };
  state(facts);
}

/** Adds facts about the page. */
export function state(facts) {
  const rows = Object.entries(facts).flatMap(([term, fact]) => [make("dt", term), make("dd", fact)]);
  element("facts").append(...rows);
}

// --- Without a network -------------------------------------------------------------------------

/** Waits until the service worker answers the page's requests, so that it keeps the answers. */
async function keepForOffline() {
  const container = navigator.serviceWorker;
  if (!container) return; // not https, or a private window
  try {
    await container.register("service_worker.js");
    if (container.controller) return;
    const controlled = new Promise((resolve) =>
      container.addEventListener("controllerchange", resolve, { once: true }),
    );
    const late = new Promise((resolve) => setTimeout(resolve, 5000));
    await Promise.race([controlled, late]);
  } catch (error) {
    console.warn(`The page works with a network only: ${error.message}`);
  }
}

async function isOffline() {
  if (!navigator.serviceWorker?.controller) return false;
  const address = new URL("model.tflite", document.baseURI).href;
  for (let i = 0; i < 50; i++) {
    if (await caches.match(address)) return true; // it is written while it is read
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return false;
}

// --- Forms -------------------------------------------------------------------------------------

let turn = 0; // only the latest question is answered

/**
 * Runs an answer; shows its errors unless a newer one has begun. `answer` gets a function that tells
 * whether it is still the latest.
 */
export async function run(answer) {
  const mine = ++turn;
  const isLatest = () => mine === turn;
  say("");
  setBusy(true);
  try {
    await answer(isLatest);
  } catch (error) {
    if (isLatest()) fail(error);
  } finally {
    if (isLatest()) setBusy(false);
  }
}

/** What runs is no longer the latest. */
export function overtake() {
  turn++;
  setBusy(false);
}

function setBusy(busy) {
  if (element("send")) element("send").disabled = busy;
  if (element("stop")) element("stop").hidden = !busy;
}

/** Answers at each submission of the form, and with Control and Enter in its text fields. */
export function whenSubmitted(answer) {
  element("question").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!element("send")?.disabled) run(answer);
  });
  element("question").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) element("question").requestSubmit();
  });
}

/** Loads the model when the page is opened, and shows what fails. */
export function begin(...calls) {
  return loaded(...calls).catch(fail);
}
