// A conversation with a decoder-only model, in the chat template of its file.

import { begin, drawn, element, library, loaded, make, run, say, state, whenSubmitted } from "./app.js";

const query = new URLSearchParams(location.search);
const seed = query.has("seed") ? Number(query.get("seed")) : undefined; // the same answers each time
let session = null;
let stopped = false;

async function ask() {
  const message = element("message").value.trim();
  if (!message) return;
  const model = await loaded("stream");
  session ??= model.session();
  const first = session.tokens.length === 0;
  element("new").disabled = true;
  try {
    await session.append(model.chatMessage(message, { first }));
    addTurn("You", message);
    element("message").value = "";
    await stream(addTurn("Model", ""));
  } finally {
    element("new").disabled = false;
    element("message").focus();
  }
}

/** Shows the answer as it is generated, and its speed. */
async function stream({ text, note }) {
  const { sampler } = await library();
  const before = session.tokens.length;
  const start = performance.now();
  const temperature = Number(element("temperature").value);
  const options = { ...(await loaded("stream")).sampling, temperature };
  const choose = sampler(seed === undefined ? options : { ...options, seed });
  const longest = Math.ceil(Number(element("longest").value));
  const maxTokens = longest > 0 ? longest : undefined; // the box may be empty
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

function addTurn(speaker, words) {
  const turn = make("li");
  const [who, text, note] = [make("strong", speaker), make("p", words, { dir: "auto" }), make("small")];
  turn.append(who, text, note);
  element("log").append(turn);
  return { text, note };
}

whenSubmitted(ask);
element("stop").addEventListener("click", () => (stopped = true));
element("new").addEventListener("click", () => {
  session?.delete();
  session = null;
  element("log").replaceChildren();
  say("");
});
begin("stream").then((model) => {
  if (!model) return;
  const { temperature } = model.sampling ?? {};
  if (temperature !== undefined) element("temperature").value = temperature;
  state({ Conversation: `at most ${model.length + 1} tokens, in this page until it is closed` });
});
