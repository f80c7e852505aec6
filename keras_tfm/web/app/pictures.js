// Classes, objects with their boxes, or a caption, of a picture or the camera.

import { begin, drawn, element, fail, library, loaded, make, say, state } from "./app.js";
import { bar, classesOf, hue } from "./bars.js";

const TOP = 5; // classes that are shown
const query = new URLSearchParams(location.search);
// The first tokens of a caption, or a question with the picture in it, "What is <image>?".
const asked = query.get("prompt") ?? undefined;
const prompt = /^[\d,]+$/.test(asked ?? "") ? asked.split(",").map(Number) : asked;
const CALLS = ["predictImages", "caption"];
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
    if (mine === turn) refuse(error);
  }
}

class PictureProblem extends Error {
  name = "PictureError";
}

async function answer(source, mine) {
  const model = await loaded(...CALLS);
  const { softmax } = await library();
  const start = performance.now();
  const detects = model.abilities.includes("detect");
  const captions = model.abilities.includes("caption");
  let found = [];
  if (captions) await caption(model, source, mine);
  else if (detects) found = await model.detect(source, { threshold: threshold() });
  else found = classesOf(await model.predictImages(source), model.labels, softmax).slice(0, TOP);
  const milliseconds = performance.now() - start;
  if (mine !== turn) return;
  element("seen").hidden = false;
  element("boxes").replaceChildren(...(detects ? found.map(box) : []));
  element("results").replaceChildren(...found.map(bar));
  const nothing = detects && !found.length ? "Nothing above the least probability. " : "";
  element("duration").textContent = `${nothing}${milliseconds.toFixed(1)} ms`;
}

/** Shows the caption, piece by piece where the file is stepped. */
async function caption(model, source, mine) {
  const isStepped = Object.values(model.manifest.signatures).some(({ role }) => role === "decode");
  element("seen").hidden = false;
  element("caption").textContent = "";
  if (!isStepped) {
    const { text } = await model.caption(source, { prompt });
    if (mine === turn) element("caption").textContent = text;
    return;
  }
  for await (const piece of model.streamCaption(source, { prompt })) {
    if (mine !== turn) return;
    element("caption").textContent += piece;
    await drawn();
  }
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

/** A box over the picture, in shares of its size. */
function box({ label, probability, box: [left, top, right, bottom] }) {
  const { width, height } = viewed();
  const frame = make("div", "", { className: "box" });
  const place = { left: left / width, top: top / height };
  Object.assign(place, { width: (right - left) / width, height: (bottom - top) / height });
  for (const [key, value] of Object.entries(place)) frame.style[key] = `${100 * value}%`;
  frame.style.setProperty("--hue", hue(label));
  const tag = make("span", `${label} ${probability.toFixed(2)}`);
  tag.classList.toggle("inside", top / height < 0.08);
  frame.append(tag);
  return frame;
}

function viewed() {
  const [video, canvas] = [element("video"), element("picture")];
  if (video.hidden) return { width: canvas.width, height: canvas.height };
  return { width: video.videoWidth, height: video.videoHeight };
}

function refuse(error) {
  element("seen").hidden = true;
  fail(error);
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
    refuse(error);
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
  answer(shown, ++turn).catch(refuse);
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
begin(...CALLS).then((model) => {
  if (!model) return;
  element("least").hidden = !model.abilities.includes("detect");
  const [{ size: [height, width], resample }] = Object.values(model.manifest.images);
  const labels = model.labels ? model.labels.length : "none in the file";
  state({ Pixels: `${width} x ${height}, ${resample}`, Labels: labels });
});
if (element("file").files.length) look(element("file").files[0]); // chosen before this script ran
