// chat.html: a conversation with a decoder-only model, in its chat template if the file has one.
// "?model=NAME" chooses models/NAME.tflite; "?seed=3" samples the same answers each time.

const element = (id) => document.getElementById(id);
const parameters = new URLSearchParams(location.search);
const name = parameters.get("model") ?? "assistant";
const seed = parameters.has("seed") ? Number(parameters.get("seed")) : undefined;
const { loadModel, sampler, ModelError, TextError } = await import("./model.js").catch((error) => {
  say(`This page's packages did not load; "npm ci" installs them. (${error.message})`);
  throw error;
});
let loading = null; // promise of the model
let session = null;
let stopped = false;
let lastDrawn = 0;

async function ask(message) {
  say("");
  setBusy(true);
  let answer;
  try {
    const model = await loaded();
    session ??= model.session();
    const first = session.tokens.length === 0;
    await session.append(model.chatMessage(message, { first }));
    addTurn("You", message);
    element("message").value = "";
    answer = addTurn(name, "");
    await stream(answer);
  } catch (error) {
    say(error.message);
    if (!(error instanceof ModelError || error instanceof TextError)) console.error(error);
  } finally {
    setBusy(false);
  }
}

/** Shows the answer as it is generated, and its speed. */
async function stream({ text, note }) {
  const before = session.tokens.length;
  const start = performance.now();
  const choose = sampler({ temperature: Number(element("temperature").value), seed });
  const maxTokens = Number(element("longest").value);
  stopped = false;
  for await (const piece of session.stream({ choose, maxTokens })) {
    text.textContent += piece;
    const count = session.tokens.length - before;
    const speed = (1000 * count) / (performance.now() - start);
    note.textContent = `${count} tokens, ${speed.toFixed(1)} per second`;
    text.parentElement.scrollIntoView({ block: "nearest" });
    await drawn();
    if (stopped) break;
  }
  if (stopped) note.textContent += ", stopped";
  if (!session.remaining) note.textContent += ", the KV cache is full";
}

/** Lets the page be drawn and Stop be pressed, at most every 30 ms: each time costs a few. */
async function drawn() {
  if (performance.now() - lastDrawn < 30) return;
  await new Promise((resolve) => setTimeout(resolve));
  lastDrawn = performance.now();
}

async function loaded() {
  element("loading").hidden = Boolean(loading);
  loading ??= loadModel(`models/${name}.tflite`, {
    onProgress: (bytes, total) => Object.assign(element("progress"), { max: total, value: bytes }),
  });
  try {
    const model = await loading;
    const { keras_tfm: version, quantization } = model.manifest;
    element("facts").textContent =
      `${name}.tflite, ${(model.size / 1e6).toFixed(1)} MB, ${quantization}, ` +
      `written by keras_tfm ${version}; LiteRT.js, one thread.`;
    return model;
  } catch (error) {
    loading = null; // the next message tries again
    throw error;
  } finally {
    element("loading").hidden = true;
  }
}

function addTurn(speaker, words) {
  const turn = document.createElement("li");
  const [who, text, note] = ["strong", "p", "small"].map((tag) => document.createElement(tag));
  who.textContent = speaker;
  text.textContent = words;
  text.dir = "auto";
  turn.append(who, text, note);
  element("log").append(turn);
  return { text, note };
}

function setBusy(busy) {
  element("send").disabled = element("new").disabled = busy;
  element("stop").hidden = !busy;
  if (!busy) element("message").focus();
}

function say(problem) {
  element("problem").textContent = problem;
}

element("question").addEventListener("submit", (event) => {
  event.preventDefault();
  const message = element("message").value.trim();
  if (message && !element("send").disabled) ask(message);
});
element("stop").addEventListener("click", () => (stopped = true));
element("new").addEventListener("click", () => {
  session?.delete();
  session = null;
  element("log").replaceChildren();
  say("");
});
loaded().catch((error) => say(error.message));
