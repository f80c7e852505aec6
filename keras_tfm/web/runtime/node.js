/**
 * Models that keras_tfm exported, in Node.js 20 or newer: the same calls as in a browser, on the same
 * kernels. A path or a file: address is read from the disk; pictures are `ImageData`.
 */

import { readFile, stat } from "node:fs/promises";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { compileFunction } from "node:vm";

import * as web from "./model.js";

export {
  Listener,
  Model,
  ModelError,
  ModelGroup,
  probabilities,
  sampler,
  Session,
  softmax,
  SourceStream,
  TextError,
} from "./model.js";
export { AudioError } from "./audio.js";
export { PictureError } from "./image_processor.js";

/** Pixels of a picture, as browsers have them. */
export const ImageData =
  globalThis.ImageData ??
  class ImageData {
    /**
     * @param {Uint8ClampedArray} data - RGBA, 4 numbers a pixel, row by row.
     * @param {number} width
     * @param {number} [height]
     */
    constructor(data, width, height) {
      const isEmpty = typeof data === "number"; // new ImageData(width, height)
      const [w, h] = isEmpty ? [data, width] : [width, height ?? data.length / (4 * width)];
      const size = 4 * w * h;
      if (!isEmpty && !(w > 0 && Number.isInteger(h) && data.length === size)) {
        throw new RangeError(`ImageData of width ${w} cannot have ${data.length} numbers.`);
      }
      this.data = isEmpty ? new Uint8ClampedArray(size) : data;
      this.width = w;
      this.height = h;
      this.colorSpace = "srgb";
    }
  };

/**
 * As `loadModel` in a browser; see model.js.
 *
 * @template {web.Model | web.ModelGroup} [T=web.Model]
 * @param {string | URL | Uint8Array | ArrayBuffer | Blob} source - a path, an address, or the bytes of
 *   a .tflite file.
 * @param {object} [options]
 * @param {string | URL} [options.wasm] - the folder with the WebAssembly files of LiteRT.js; by
 *   default that of the package `@litertjs/core`.
 * @param {(loaded: number, total: number) => void} [options.onProgress] - bytes.
 * @returns {Promise<T>} a `ModelGroup` if the file holds several models.
 * @throws {web.ModelError}
 */
export async function loadModel(source, { wasm, onProgress = () => {}, ...others } = {}) {
  const [unknown] = Object.keys(others);
  if (unknown) throw new web.ModelError(`In Node.js loadModel has no option ${unknown}.`);
  const bytes = isOnDisk(source) ? await read(source, onProgress) : source;
  const folder = wasm === undefined ? web.wasmFolder() : addressOf(wasm);
  const loading = turn.then(async () => {
    const restore = prepare();
    try {
      return await web.loadModel(bytes, { wasm: folder, onProgress });
    } finally {
      restore();
    }
  });
  turn = loading.catch(() => {});
  return loading;
}

let turn = Promise.resolve(); // one file after the other, since `prepare` changes global names

function isOnDisk(source) {
  if (source instanceof URL) return source.protocol === "file:";
  return typeof source === "string" && !/^https?:/.test(source);
}

const pathOf = (source) => (String(source).startsWith("file:") ? fileURLToPath(source) : String(source));

function addressOf(folder) {
  if (String(folder).includes("://")) return String(folder);
  return pathToFileURL(pathOf(folder)).href;
}

async function read(source, onProgress) {
  const path = pathOf(source);
  try {
    const { size } = await stat(path);
    onProgress(0, size);
    const bytes = new Uint8Array(await readFile(path));
    onProgress(size, size);
    return bytes;
  } catch (error) {
    const reason = { ENOENT: "there is no such file", EISDIR: "it is a folder" }[error.code];
    throw new web.ModelError(`${path} cannot be read: ${reason ?? error.message}.`);
  }
}

/** Lets LiteRT.js load its script, for which it asks as in a classic worker; returns what undoes it. */
function prepare() {
  globalThis.ImageData ??= ImageData;
  const printErr = (line) => /^(INFO|WARNING)/.test(line) || console.error(line);
  const undo = [
    replaced(globalThis, "self", globalThis),
    replaced(globalThis, "importScripts", runScript),
    replaced(globalThis, "Module", { printErr }),
    replaced(globalThis, "navigator", { gpu: { requestAdapter: async () => NO_GPU } }),
  ];
  return () => undo.forEach((one) => one());
}

const NO_GPU = { limits: {}, features: new Set(), requestDevice: async () => null };

function replaced(object, name, value) {
  const before = Object.getOwnPropertyDescriptor(object, name);
  Object.defineProperty(object, name, { value, configurable: true, writable: true });
  return () => (before ? Object.defineProperty(object, name, before) : delete object[name]);
}

/** Runs a CommonJS script of this package's neighbours, which defines `ModuleFactory`. */
function runScript(address) {
  const path = pathOf(address);
  const module = { exports: {} };
  const names = ["module", "exports", "require", "__filename", "__dirname"];
  const run = compileFunction(readFileSync(path, "utf8"), names, { filename: path });
  run(module, module.exports, createRequire(path), path, dirname(path));
  globalThis.ModuleFactory = module.exports;
}
