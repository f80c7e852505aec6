/** model.js in Node, with `litert_stub.js` for LiteRT.js: its own code, without kernels and canvas. */

import { createHash } from "node:crypto";
import { register } from "node:module";

const stub = new URL("litert_stub.js", import.meta.url).href;
const here = import.meta.url; // whose packages model.js gets, as from a page's import map
const hooks = `export async function resolve(name, context, next) {
  if (name === "@litertjs/core") return { url: ${JSON.stringify(stub)}, shortCircuit: true };
  const isPackage = !/^(node:|file:|[./])/.test(name);
  return next(name, isPackage ? { ...context, parentURL: ${JSON.stringify(here)} } : context);
}`;
register(`data:text/javascript,${encodeURIComponent(hooks)}`);
globalThis.document = { baseURI: "http://127.0.0.1/" };
globalThis.crossOriginIsolated = false;
globalThis.ImageData = class ImageData {
  constructor(width, height) {
    Object.assign(this, { width, height, data: new Uint8ClampedArray(4 * width * height) });
  }
};

export const { loadModel, sampler, softmax, tableReader } = await import("../../../keras_tfm/web/runtime/model.js");

/** The model in the bytes of a file whose signatures are `signatures`. */
export async function loadBytes(bytes, signatures) {
  globalThis.signatures = signatures;
  const headers = { "Content-Length": String(bytes.length) };
  globalThis.fetch = async () => new Response(bytes, { headers });
  return loadModel("http://127.0.0.1/model.tflite");
}

/** The metadata of a file by name, each with where the offset of its data is, and its data. */
function entriesOf(bytes) {
  const { u32, field, vector, tables } = tableReader(bytes);
  const part = (at) => bytes.subarray(at + 4, at + 4 + u32(at));
  const model = u32(0); // Model {.., buffers 4, .., metadata 6}
  const buffers = tables(model, 4);
  const found = tables(model, 6).map((entry) => {
    const number = field(entry, 1);
    const buffer = buffers[number && u32(number)];
    const name = Buffer.from(part(vector(entry, 0))).toString();
    return [name, { place: field(buffer, 0), data: part(vector(buffer, 0)) }];
  });
  return Object.fromEntries(found);
}

export function manifestOf(bytes) {
  return JSON.parse(Buffer.from(entriesOf(bytes).keras_tfm.data).toString());
}

export function metadataOf(bytes, name) {
  return entriesOf(bytes)[name].data;
}

/** The file with other metadata, and a manifest or its text, which gets the checksum of all that. */
export function fileWith(bytes, manifest, others = {}) {
  const zeros = "0".repeat(64);
  let text = manifest; // a text that has these zeros
  if (typeof manifest !== "string") {
    const { sha256, ...fields } = manifest;
    text = JSON.stringify({ ...fields, sha256: zeros });
  }
  const ascii = text.replace(/[^\0-\x7f]/g, (x) => `\\u${x.charCodeAt(0).toString(16).padStart(4, "0")}`);
  const places = entriesOf(bytes);
  const parts = Object.entries({ ...others, keras_tfm: ascii }).map(([name, content]) => {
    const data = Buffer.from(content);
    return { place: places[name].place, data, size: 4 + data.length + 16 };
  });
  const begin = 16 * Math.ceil(bytes.length / 16);
  const result = Buffer.alloc(begin + parts.reduce((sum, { size }) => sum + size, 0));
  result.set(bytes);
  let at = begin;
  for (const { place, data, size } of parts) {
    // Offsets are relative to where they are, and lead on: the new data are behind everything.
    result.writeUInt32LE(at - place, place);
    result.writeUInt32LE(data.length, at);
    result.set(data, at + 4);
    at += size;
  }
  const digits = result.lastIndexOf(zeros);
  result.write(createHash("sha256").update(result).digest("hex"), digits);
  return new Uint8Array(result);
}
