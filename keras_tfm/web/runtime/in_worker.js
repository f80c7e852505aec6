/** A model in a worker of its own, so that the page is drawn and answers clicks while the model runs. */

import * as Comlink from "comlink";

import { untilEnd } from "./crossing.js";
import { ModelError, wasmFolder } from "./model.js";

/**
 * As `loadModel`, with the model in a new worker. What the model returns at once in a page is a promise
 * here: `await model.encode(text)`, `await model.session()`, `await session.tokens`; `for await` reads
 * streams as before. A sampler with a seed begins anew in each call. `model.delete()` ends the worker,
 * and calls that it has not answered fail.
 *
 * @template {import("./model.js").Model | import("./model.js").ModelGroup} [T=import("./model.js").Model]
 * @param {string | URL | Uint8Array | ArrayBuffer | Blob} source - as in `loadModel`.
 * @param {object} [options] - those of `loadModel`, and
 * @param {number} [options.threads]
 * @param {string | URL} [options.wasm]
 * @param {(loaded: number, total: number) => void} [options.onProgress]
 * @param {Worker} [options.worker] - a worker that runs dist/worker.js of this package, where a server
 *   or a bundler has it at another place.
 * @returns {Promise<InWorker<T>>}
 * @throws {ModelError}
 */
export async function loadModelInWorker(source, { worker = newWorker(), wasm, ...options } = {}) {
  const absolute = (address) => new URL(address, document.baseURI).href;
  let end;
  const ended = new Promise((_, reject) => {
    end = (reason) => reject(new ModelError(reason));
  });
  ended.catch(() => {}); // it need not be awaited
  let isLoaded = false;
  worker.addEventListener("error", ({ message }) => {
    const reason = message || "its script dist/worker.js is not there";
    end(isLoaded ? `The worker failed: ${message}` : `The worker did not start: ${reason}`);
  });
  try {
    const folder = wasm === undefined ? wasmFolder() : absolute(wasm);
    const isAddress = typeof source === "string" || source instanceof URL;
    const file = isAddress ? absolute(source) : source;
    const loading = Comlink.wrap(worker).loadModel(file, { ...options, wasm: folder });
    const model = await Promise.race([loading, ended]);
    isLoaded = true;
    const remove = async () => {
      worker.terminate();
      end("The model was deleted.");
    };
    return untilEnd(model, ended, { delete: remove });
  } catch (error) {
    worker.terminate();
    throw error;
  }
}

const newWorker = () => new Worker(new URL("./dist/worker.js", import.meta.url));

/**
 * A session, a source in pieces, or a listener.
 *
 * @typedef {import("./model.js").Session | import("./model.js").SourceStream |
 *   import("./model.js").Listener} Made
 */

/**
 * A model in a worker, or what it makes: methods return promises, streams stay streams, and what a
 * session or a source has so far is a promise.
 *
 * @template T
 * @typedef {{
 *   [K in keyof T]: T[K] extends (...given: infer A) => AsyncGenerator<infer Y>
 *     ? (...given: A) => AsyncGenerator<Y>
 *     : T[K] extends (...given: infer A) => infer R
 *       ? (...given: A) => Promise<Awaited<R> extends Made ? InWorker<Awaited<R>> : Awaited<R>>
 *       : K extends "tokens" | "remaining" | "positions"
 *         ? Promise<T[K]>
 *         : K extends "models" ? Record<string, InWorker<import("./model.js").Model>> : T[K]
 * }} InWorker
 */
