/**
 * What crosses between a page and its worker besides plain data, as handlers of Comlink: functions,
 * streams, models, sessions, listeners, and errors of this package. Both sides import it.
 */

import * as Comlink from "comlink";

import { AudioError, decodedUnlessWav } from "./audio.js";
import { drawable, PictureError } from "./image_processor.js";
import {
  Listener,
  Model,
  ModelError,
  ModelGroup,
  sampler,
  Session,
  SourceStream,
  TextError,
} from "./model.js";

const ERRORS = { AudioError, ModelError, PictureError, RangeError, TextError };

/** A port to `value` on this side, and the list that moves it. */
function portTo(value) {
  const { port1, port2 } = new MessageChannel();
  Comlink.expose(value, port1);
  return [port2, [port2]];
}

// --- Options with functions: `choose` and `onProgress`. A sampler crosses as its options, and draws there.

Comlink.transferHandlers.set("options", {
  canHandle: (value) => isPlain(value) && Object.values(value).some(isFunction),
  serialize: (value) => {
    const moved = [];
    const entries = Object.entries(value).map(([name, x]) => {
      if (!isFunction(x)) return [name, { value: x }];
      if (x.options) return [name, { sampler: x.options }];
      const [port] = portTo(x);
      moved.push(port);
      return [name, { port }];
    });
    return [entries, moved];
  },
  deserialize: (entries) => {
    const received = ({ value, sampler: options, port }) => {
      if (port) return Comlink.wrap(port);
      return options ? sampler(options) : value;
    };
    return Object.fromEntries(entries.map(([name, sent]) => [name, received(sent)]));
  },
});

const isFunction = (x) => typeof x === "function";
const isPlain = (x) => typeof x === "object" && x !== null && Object.getPrototypeOf(x) === Object.prototype;

// --- Streams: each value is asked for when it is needed, and the stream ends when nobody asks.

Comlink.transferHandlers.set("stream", {
  canHandle: (value) => typeof value?.[Symbol.asyncIterator] === "function" && "next" in value,
  serialize: (value) => portTo({ next: () => value.next(), end: () => value.return().then(() => {}) }),
  deserialize: (port) => valuesOf(Comlink.wrap(port)),
});

async function* valuesOf(remote) {
  try {
    for (;;) {
      const { done, value } = await remote.next();
      if (done) return;
      yield value;
    }
  } finally {
    await remote.end();
    remote[Comlink.releaseProxy]();
  }
}

// --- Models, and what they make: what never changes is copied, calls are sent.

const COPIED = ["abilities", "manifest", "size", "length", "specialTokens", "labels", "sampleRate", "sampling"];
COPIED.push("pieceLength", "width", "delay", "stride", "widths", "longest"); // of a source in pieces
const MADE = ["session", "fork", "openStream", "listen"]; // by these calls

Comlink.transferHandlers.set("model", {
  canHandle: (value) =>
    [Model, ModelGroup, Session, SourceStream, Listener].some((kind) => value instanceof kind),
  serialize: (value) => {
    const [port, moved] = portTo(value);
    const names = COPIED.filter((name) => name in value);
    const sent = { port, facts: Object.fromEntries(names.map((name) => [name, value[name]])) };
    if (!(value instanceof ModelGroup)) return [sent, moved];
    sent.models = Object.entries(value.models).map(([name, one]) => {
      const [own, further] = Comlink.transferHandlers.get("model").serialize(one);
      moved.push(...further);
      return [name, own];
    });
    return [sent, moved];
  },
  deserialize: (sent) => {
    const models = sent.models?.map(([name, own]) => [
      name,
      Comlink.transferHandlers.get("model").deserialize(own),
    ]);
    const facts = models ? { ...sent.facts, models: Object.fromEntries(models) } : sent.facts;
    return remoteObject(Comlink.wrap(sent.port), facts);
  },
});

/** Of a session or a source in pieces: what each call changes. */
const CHANGING = ["tokens", "remaining", "positions"];

/** An object with the facts, whose other properties are calls, or promises of what changes. */
function remoteObject(remote, facts) {
  return new Proxy(facts, {
    get: (_, name) => {
      if (name in facts) return facts[name];
      if (name === "then" || typeof name !== "string") return undefined; // it is no promise itself
      if (CHANGING.includes(name)) return remote[name];
      if (!name.startsWith("stream")) {
        return async (...given) => {
          const sent = sendable(given, facts);
          return remote[name](...(sent instanceof Promise ? await sent : sent));
        };
      }
      return async function* (...given) {
        yield* await remote[name](...(await sendable(given, facts)));
      };
    },
  });
}

/**
 * A remote object whose calls fail, instead of waiting for ever, when its worker has ended.
 *
 * @param {object} object - as `remoteObject` makes it.
 * @param {Promise<never>} ended - is rejected at the end of the worker.
 * @param {Record<string, unknown>} [own] - properties that replace its own.
 */
export function untilEnd(object, ended, own = {}) {
  const first = (promise) => Promise.race([promise, ended]);
  return new Proxy(object, {
    get: (_, name) => {
      if (Object.hasOwn(own, name)) return own[name];
      const value = object[name];
      if (CHANGING.includes(name)) return first(value);
      if (name === "models" && value) {
        return Object.fromEntries(Object.entries(value).map(([key, x]) => [key, untilEnd(x, ended)]));
      }
      if (!isFunction(value)) return value;
      if (!name.startsWith("stream")) {
        const made = (x) => (MADE.includes(name) ? untilEnd(x, ended) : x);
        return (...given) => first(value(...given).then(made));
      }
      return async function* (...given) {
        const values = value(...given);
        try {
          for (;;) {
            const { done, value: one } = await first(values.next());
            if (done) return;
            yield one;
          }
        } finally {
          values.return(); // not awaited: of an ended worker it never returns
        }
      };
    },
  });
}

// --- Pictures and recordings that only a page can read.

const ELEMENTS = ["HTMLImageElement", "HTMLVideoElement", "HTMLCanvasElement"];
const isElement = (x) => ELEMENTS.some((kind) => globalThis[kind] && x instanceof globalThis[kind]);

/** Arguments to send; a promise only if they have to be read, so that other calls keep their order. */
function sendable(given, { sampleRate }) {
  const sent = given.map((x) => {
    if (isElement(x)) return drawable(x).then((found) => (isElement(found) ? createImageBitmap(found) : found));
    return sampleRate && x instanceof Blob ? decodedUnlessWav(x, sampleRate) : x;
  });
  return sent.some((x) => x instanceof Promise) ? Promise.all(sent) : sent;
}

// --- Errors keep their class.

const thrown = Comlink.transferHandlers.get("throw");
Comlink.transferHandlers.set("throw", {
  ...thrown,
  deserialize: (sent) => {
    const { name, message, stack } = sent.isError ? sent.value : {};
    if (!Object.hasOwn(ERRORS, name)) return thrown.deserialize(sent);
    throw Object.assign(new ERRORS[name](message), { stack });
  },
});
