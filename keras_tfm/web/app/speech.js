// The text of a recording, or its classes: of a file, or of the microphone.

import { begin, drawn, element, fail, library, loaded, run } from "./app.js";
import { record } from "./audio.js";
import { bar, classesOf } from "./bars.js";

const query = new URLSearchParams(location.search);
const prompt = query.get("prompt")?.split(",").map(Number); // the first tokens of the text
const CALLS = ["transcribe", "predictAudio"];
const TOP = 5; // classes that are shown
let stopped = false;
let ended = null; // ends the recording

function listen(recording) {
  return run(async (isLatest) => {
    const model = await loaded(...CALLS);
    element("answer").textContent = element("duration").textContent = "";
    element("results").replaceChildren();
    stopped = false;
    const start = performance.now();
    if (model.abilities.includes("transcribe")) await transcribe(model, recording, isLatest);
    else await classify(model, recording, isLatest);
    if (!isLatest()) return;
    const milliseconds = performance.now() - start;
    element("duration").textContent = `${milliseconds.toFixed(1)} ms${stopped ? ", stopped" : ""}`;
  });
}

/** By the loop in the file, with its rules for tokens, or by CTC; piece by piece of a decoder's steps. */
async function transcribe(model, recording, isLatest) {
  const roles = Object.values(model.manifest.signatures).map(({ role }) => role);
  const isWhole = roles.includes("generate") || !roles.includes("decode");
  if (isWhole) {
    const { text } = await model.transcribe(recording, { prompt });
    if (isLatest()) element("answer").textContent = text;
    return;
  }
  for await (const piece of model.streamTranscript(recording, { prompt })) {
    if (!isLatest()) return;
    element("answer").textContent += piece;
    await drawn();
    if (stopped) return;
  }
}

async function classify(model, recording, isLatest) {
  const { softmax } = await library();
  const found = classesOf(await model.predictAudio(recording), model.labels, softmax);
  if (isLatest()) element("results").replaceChildren(...found.slice(0, TOP).map(bar));
}

async function useMicrophone() {
  const button = element("microphone");
  try {
    if (ended) {
      const end = ended;
      ended = null;
      button.textContent = "Use the microphone";
      button.setAttribute("aria-pressed", "false");
      return listen(await end());
    }
    ended = await record();
    button.textContent = "Stop and read";
    button.setAttribute("aria-pressed", "true");
  } catch (error) {
    fail(error);
  }
  return undefined;
}

element("file").addEventListener("change", ({ target }) => {
  if (target.files.length) listen(target.files[0]);
});
element("microphone").addEventListener("click", useMicrophone);
element("stop").addEventListener("click", () => (stopped = true));
element("question").addEventListener("submit", (event) => event.preventDefault());
for (const kind of ["dragover", "dragleave", "drop"]) {
  addEventListener(kind, (event) => {
    event.preventDefault();
    element("drop").classList.toggle("over", kind === "dragover");
    if (kind === "drop" && event.dataTransfer.files.length) listen(event.dataTransfer.files[0]);
  });
}
begin(...CALLS).then((model) => {
  if (!model) return;
  const seconds = (model.length / model.sampleRate).toFixed(0);
  element("longest").textContent = `at most ${seconds} s; or drop one anywhere`;
});
