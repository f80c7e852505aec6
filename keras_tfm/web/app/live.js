// The text of the microphone, or of a recording, while it is heard.

import { begin, drawn, element, fail, loaded, run } from "./app.js";
import { hear, samplesOf } from "./audio.js";

const CALLS = ["listen"];
const PART = 0.1; // seconds of a recording that are read at once
// A listener with a limit ends at a pause after the first share of it, and anywhere after the second.
const [EARLY, LATE, QUIET] = [0.5, 0.9, 0.01];
let stopped = false;
let end = null; // stops the microphone

/** Hears parts of any length, and shows the text so far. */
class Live {
  #model;
  #listener;
  #lines = []; // texts of listeners that have ended
  #samples = 0;
  #milliseconds = 0;

  constructor(model) {
    this.#model = model;
    this.#listener = model.listen();
    show("", "");
  }

  async append(part) {
    const start = performance.now();
    const { positions, longest } = this.#listener;
    const quiet = part.every((x) => Math.abs(x) < QUIET);
    const isLate = positions > LATE * longest || (quiet && positions > EARLY * longest);
    let text = isLate ? await this.#nextLine() : "";
    text = await this.#listener.append(part);
    this.#count(part.length, start);
    this.#show(text);
  }

  async finish() {
    const start = performance.now();
    if (this.#listener.positions) await this.#nextLine();
    this.#count(0, start);
    this.#show("");
  }

  async #nextLine() {
    this.#lines.push(await this.#listener.finish());
    this.#listener = this.#model.listen();
  }

  #count(samples, start) {
    this.#samples += samples;
    this.#milliseconds += performance.now() - start;
  }

  #show(text) {
    const seconds = this.#samples / this.#model.sampleRate;
    const each = seconds ? (this.#milliseconds / seconds).toFixed(0) : 0;
    const lines = [...this.#lines, text].filter(Boolean);
    show(lines.join("\n"), `${seconds.toFixed(1)} s heard, ${each} ms of work for each second`);
  }
}

function show(text, duration) {
  // What is the same is not written again: screen readers would read it again.
  if (element("answer").textContent !== text) element("answer").textContent = text;
  element("duration").textContent = duration;
}

function read(recording) {
  return run(async (isLatest) => {
    const model = await loaded(...CALLS);
    const samples = await samplesOf(recording, model.sampleRate);
    const live = new Live(model);
    const size = Math.round(PART * model.sampleRate);
    stopped = false;
    for (let i = 0; i < samples.length && !stopped; i += size) {
      if (!isLatest()) return;
      await live.append(samples.subarray(i, i + size));
      await drawn();
    }
    if (!isLatest()) return;
    await live.finish();
    element("duration").textContent += stopped ? ", stopped" : ", finished";
  });
}

/** Hears the microphone until `end` is called. */
function listen() {
  return run(async (isLatest) => {
    const model = await loaded(...CALLS);
    const live = new Live(model);
    const waiting = [];
    let wake = () => {};
    const stop = await hear(model.sampleRate, (part) => {
      waiting.push(part);
      wake();
    });
    let isOn = true;
    end = async () => {
      end = null;
      pressed(false);
      await stop();
      isOn = false;
      wake();
    };
    pressed(true);
    try {
      while (isOn || waiting.length) {
        if (!isLatest()) return;
        if (!waiting.length) await new Promise((resolve) => (wake = resolve));
        await live.append(joined(waiting.splice(0)));
      }
      await live.finish();
      element("duration").textContent += ", finished";
    } finally {
      await end?.();
    }
  });
}

function joined(parts) {
  const samples = new Float32Array(parts.reduce((sum, { length }) => sum + length, 0));
  parts.reduce((at, part) => (samples.set(part, at), at + part.length), 0);
  return samples;
}

function pressed(isOn) {
  const button = element("microphone");
  button.textContent = isOn ? "Stop listening" : "Use the microphone";
  button.setAttribute("aria-pressed", isOn);
  if (isOn) element("stop").hidden = true; // the button does it
}

async function start(recording) {
  await end?.();
  await read(recording);
}

element("file").addEventListener("change", ({ target }) => {
  if (target.files.length) start(target.files[0]);
});
element("microphone").addEventListener("click", () => (end ? end() : listen()));
element("stop").addEventListener("click", () => {
  stopped = true;
  end?.();
});
element("question").addEventListener("submit", (event) => event.preventDefault());
for (const kind of ["dragover", "dragleave", "drop"]) {
  addEventListener(kind, (event) => {
    event.preventDefault();
    element("drop").classList.toggle("over", kind === "dragover");
    if (kind === "drop" && event.dataTransfer.files.length) start(event.dataTransfer.files[0]);
  });
}
begin(...CALLS);
