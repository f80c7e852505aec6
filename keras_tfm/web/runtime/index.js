/**
 * Models that keras_tfm exported, in browsers: `loadModel` runs one in the page, `loadModelInWorker` in
 * a worker, so that the page stays responsive. README.md has examples.
 */

export {
  Listener,
  loadModel,
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
export { loadModelInWorker } from "./in_worker.js";
export { AudioError, hear } from "./audio.js";
export { PictureError } from "./image_processor.js";
