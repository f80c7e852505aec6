/** The worker of `loadModelInWorker`; `npm run build` makes dist/worker.js of it, a script without imports. */

import * as Comlink from "comlink";

import "./crossing.js";
import { loadModel } from "./model.js";

Comlink.expose({ loadModel });
