/**
 * Resizes the pictures of a JSON file with resampling.js and image_processor.js, for
 * tests/examples/test_web_pictures.py.
 *
 *     node test/resampling.js CASES.json    # prints the pixels of each case in base64
 */

import { readFileSync } from "node:fs";

import { prepared, toPicture } from "../../../keras_tfm/web/runtime/image_processor.js";
import { resized } from "../../../keras_tfm/web/runtime/resampling.js";

const bytes = (text) => new Uint8Array(Buffer.from(text, "base64"));
const text = (data) => Buffer.from(data).toString("base64");
const cases = JSON.parse(readFileSync(process.argv[2], "utf8"));
const results = cases.map(({ picture, filter, width, height, processor, boxes }) => {
  const source = { ...picture, data: bytes(picture.data) };
  if (filter) return text(resized(source, width, height, filter).data);
  return {
    pixels: text(prepared(processor, source)),
    boxes: boxes.map((box) => toPicture(processor, box, source)),
  };
});
console.log(JSON.stringify(results));
