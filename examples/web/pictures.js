// pictures.html: classes, objects with their boxes, or a caption, of a picture or the camera.
// "?model=NAME" chooses models/NAME.tflite, a file that was exported with `images=`, and "&prompt=4"
// the first tokens of a caption, such as that of a language, or a question with the picture in it:
// "&prompt=What is <image> in German%3F".

const TOP = 5; // classes that are shown
const element = (id) => document.getElementById(id);
const query = new URLSearchParams(location.search);
const name = query.get("model") ?? "pictures";
const asked = query.get("prompt") ?? undefined;
const prompt = /^[\d,]+$/.test(asked ?? "") ? asked.split(",").map(Number) : asked;
// Not awaited here: a picture may be chosen while it loads.
const library = import("./model.js").catch((error) => {
  const reason = `This page's packages did not load; "npm ci" installs them. (${error.message})`;
  throw Object.assign(new Error(reason), { name: "ModelError" });
});
let loading = null; // promise of the model
let turn = 0; // only the latest picture is answered
let shown = null; // the picture in the view, for another threshold
let stream = null; // of the camera

// --- Pictures ----------------------------------------------------------------------------------

/** Runs the model on a picture; shows the picture and what the model sees. */
async function look(file) {
  const mine = ++turn;
  stopCamera();
  say("");
  try {
    const bitmap = await createImageBitmap(file).catch(() => {
      throw new PictureProblem(`${file.name || "This"} is not a picture that this browser can read.`);
    });
    if (mine !== turn) return;
    show(bitmap);
    shown = file;
    await answer(file, mine);
  } catch (error) {
    if (mine === turn) fail(error);
  }
}

class PictureProblem extends Error {
  name = "PictureError";
}

async function answer(source, mine) {
  const model = await loaded();
  const start = performance.now();
  const detects = model.abilities.includes("detect");
  const captions = model.abilities.includes("caption");
  let found = [];
  let caption = "";
  if (captions) ({ text: caption } = await model.caption(source, { prompt }));
  else if (detects) found = await model.detect(source, { threshold: threshold() });
  else found = await classes(model, source);
  const milliseconds = performance.now() - start;
  if (mine !== turn) return;
  element("seen").hidden = false;
  element("boxes").replaceChildren(...(detects ? found.map(box) : []));
  element("results").replaceChildren(...found.map(bar));
  element("caption").textContent = caption;
  const nothing = detects && !found.length ? "Nothing above the least probability. " : "";
  element("duration").textContent = `${nothing}${milliseconds.toFixed(1)} ms`;
}

/** The most probable classes of a classifier. */
async function classes(model, source) {
  const { softmax } = await library;
  const outputs = Object.values(await model.predictImages(source));
  const logits = outputs.find((values) => values.length > 1) ?? outputs[0];
  const total = logits.reduce((a, b) => a + b, 0);
  const already = logits.every((x) => x >= 0) && Math.abs(total - 1) < 1e-3;
  return [...(already ? logits : softmax(logits))]
    .map((probability, i) => ({ label: model.labels?.[i] ?? `class ${i}`, probability }))
    .sort((a, b) => b.probability - a.probability)
    .slice(0, TOP);
}

function threshold() {
  return Number(element("threshold").value);
}

// --- What is shown -----------------------------------------------------------------------------

function show(bitmap) {
  const canvas = element("picture");
  [canvas.width, canvas.height] = [bitmap.width, bitmap.height];
  canvas.getContext("2d").drawImage(bitmap, 0, 0);
  bitmap.close();
  canvas.hidden = false;
  element("video").hidden = true;
  element("view").hidden = false;
  element("boxes").replaceChildren();
}

/** A line with the label, its probability and a bar as long as it. */
function bar({ label, probability }) {
  const line = document.createElement("li");
  const meter = Object.assign(document.createElement("span"), { className: "bar" });
  meter.style.setProperty("--share", probability);
  meter.style.setProperty("--hue", hue(label));
  const number = Object.assign(document.createElement("data"), { value: probability });
  number.textContent = `${(100 * probability).toFixed(1)} %`;
  const text = Object.assign(document.createElement("span"), { textContent: label, dir: "auto" });
  line.append(text, number, meter);
  return line;
}

/** A box over the picture, in shares of its size. */
function box({ label, probability, box: [left, top, right, bottom] }) {
  const { width, height } = viewed();
  const frame = Object.assign(document.createElement("div"), { className: "box" });
  const place = { left: left / width, top: top / height };
  Object.assign(place, { width: (right - left) / width, height: (bottom - top) / height });
  for (const [key, value] of Object.entries(place)) frame.style[key] = `${100 * value}%`;
  frame.style.setProperty("--hue", hue(label));
  const tag = document.createElement("span");
  tag.textContent = `${label} ${probability.toFixed(2)}`;
  tag.classList.toggle("inside", top / height < 0.08);
  frame.append(tag);
  return frame;
}

function viewed() {
  const [video, canvas] = [element("video"), element("picture")];
  if (video.hidden) return { width: canvas.width, height: canvas.height };
  return { width: video.videoWidth, height: video.videoHeight };
}

function hue(label) {
  let sum = 0;
  for (const character of label) sum = (sum * 31 + character.codePointAt(0)) % 360;
  return sum;
}

function fail(error) {
  element("seen").hidden = true;
  say(error.message);
  if (!["ModelError", "PictureError"].includes(error.name)) console.error(error);
}

function say(problem) {
  element("problem").textContent = problem;
}

// --- The model ---------------------------------------------------------------------------------

async function loaded() {
  element("loading").hidden = Boolean(loading);
  loading ??= load();
  try {
    return await loading;
  } catch (error) {
    loading = null; // the next picture tries again
    throw error;
  } finally {
    element("loading").hidden = true;
  }
}

async function load() {
  const { loadModel, ModelError } = await library;
  const onProgress = (bytes, total) =>
    Object.assign(element("progress"), { max: total || 1, value: bytes });
  const model = await loadModel(`models/${name}.tflite`, { onProgress });
  if (!["predictImages", "caption"].some((ability) => model.abilities.includes(ability))) {
    throw new ModelError(`${name}.tflite reads no pictures.`);
  }
  element("least").hidden = !model.abilities.includes("detect");
  const [{ size: [height, width], resample }] = Object.values(model.manifest.images);
  const megabytes = model.size / 1e6;
  const size = megabytes < 1 ? `${(1000 * megabytes).toFixed(0)} kB` : `${megabytes.toFixed(1)} MB`;
  const facts = {
    File: `${name}.tflite, ${size}, written by keras_tfm ${model.manifest.keras_tfm}`,
    Pixels: `${width} x ${height}, ${resample}`,
    Labels: model.labels ? model.labels.length : "none in the file",
  };
  const rows = Object.entries(facts).flatMap(([term, fact]) => [
    Object.assign(document.createElement("dt"), { textContent: term }),
    Object.assign(document.createElement("dd"), { textContent: fact }),
  ]);
  element("facts").replaceChildren(...rows);
  return model;
}

// --- The camera --------------------------------------------------------------------------------

async function useCamera() {
  const mine = ++turn;
  say("");
  try {
    if (!navigator.mediaDevices) throw new PictureProblem("Cameras need https, or 127.0.0.1.");
    const video = element("video");
    const own = await navigator.mediaDevices
      .getUserMedia({ video: { facingMode: "environment" } })
      .catch((error) => {
        throw new PictureProblem(`The camera cannot be used: ${error.message}.`);
      });
    if (mine !== turn) {
      for (const track of own.getTracks()) track.stop();
      return;
    }
    stream = own;
    video.srcObject = own;
    element("camera").textContent = "Stop the camera";
    element("camera").setAttribute("aria-pressed", "true");
    await video.play();
    element("picture").hidden = true;
    video.hidden = false;
    element("view").hidden = false;
    while (mine === turn) {
      await answer(video, mine);
      await new Promise(requestAnimationFrame); // the page stays responsive
    }
  } catch (error) {
    if (mine !== turn) return;
    stopCamera();
    fail(error);
  }
}

function stopCamera() {
  for (const track of stream?.getTracks() ?? []) track.stop();
  if (stream) {
    element("view").hidden = true;
    element("boxes").replaceChildren();
  }
  stream = null;
  shown = null;
  element("video").srcObject = null;
  element("camera").textContent = "Use the camera";
  element("camera").setAttribute("aria-pressed", "false");
}

// --- The page ----------------------------------------------------------------------------------

element("file").addEventListener("change", ({ target }) => {
  if (target.files.length) look(target.files[0]);
});
element("camera").addEventListener("click", () => {
  if (!stream) return useCamera();
  turn++;
  stopCamera();
});
element("threshold").addEventListener("input", () => {
  element("threshold-value").textContent = threshold().toFixed(2);
  if (stream || !shown) return;
  answer(shown, ++turn).catch(fail);
});
element("threshold-value").textContent = threshold().toFixed(2);
element("question").addEventListener("submit", (event) => event.preventDefault());
const given = ({ files }) => [...(files ?? [])].find(({ type }) => type.startsWith("image/")) ?? files?.[0];
addEventListener("paste", ({ clipboardData }) => {
  const file = given(clipboardData);
  if (file) look(file);
});
for (const kind of ["dragover", "dragleave", "drop"]) {
  addEventListener(kind, (event) => {
    event.preventDefault();
    element("drop").classList.toggle("over", kind === "dragover");
    const file = kind === "drop" && given(event.dataTransfer);
    if (file) look(file);
  });
}
loaded().catch(fail);
if (element("file").files.length) look(element("file").files[0]); // chosen before this script ran
