/**
 * Serves this folder with the files of keras_tfm/web, and a folder of models as /models/, to this
 * machine alone.
 *
 *     node server.js [FOLDER [PORT]]     # ../../artifacts/dates, 8000
 */

import { createReadStream } from "node:fs";
import { realpath, stat } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join, sep } from "node:path";
import { fileURLToPath } from "node:url";

const HERE = fileURLToPath(new URL(".", import.meta.url));
const FOLDERS = ["./", "../../keras_tfm/web/app/", "../../keras_tfm/web/runtime/"].map((path) =>
  fileURLToPath(new URL(path, import.meta.url)),
);
const TYPES = {
  ".css": "text/css; charset=utf-8",
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
  ".json": "application/json",
  ".mjs": "text/javascript; charset=utf-8",
  ".png": "image/png",
  ".svg": "image/svg+xml",
  ".wasm": "application/wasm",
  ".webmanifest": "application/manifest+json",
};
const HEADERS = {
  // Both make the page "cross-origin isolated", without which there are no threads.
  "Cross-Origin-Opener-Policy": "same-origin",
  "Cross-Origin-Embedder-Policy": "require-corp",
  "X-Content-Type-Options": "nosniff",
  "Cache-Control": "no-cache",
};

/** Listens on 127.0.0.1 and returns the server; port 0 takes a free one. */
export async function serve(models, port) {
  const server = createServer((request, response) => {
    answer(request, response, models).catch((error) => response.destroy(error));
  });
  await new Promise((resolve, reject) =>
    server.on("error", reject).listen(port, "127.0.0.1", resolve),
  );
  return server;
}

async function answer(request, response, models) {
  const refuse = (status, words) => response.writeHead(status, HEADERS).end(`${words}\n`);
  if (!["GET", "HEAD"].includes(request.method)) return refuse(405, "only GET and HEAD");
  const file = await find(request.url, models);
  if (!file) return refuse(404, "no such file");
  response.writeHead(200, {
    ...HEADERS,
    "Content-Type": TYPES[extname(file.path)] ?? "application/octet-stream",
    "Content-Length": file.size,
  });
  if (request.method === "HEAD") return response.end();
  createReadStream(file.path)
    .on("error", (error) => response.destroy(error))
    .pipe(response);
}

/** The file of an address, if it is one, and in one of the folders, links resolved. */
async function find(address, models) {
  let path;
  try {
    path = decodeURIComponent(address.split("?")[0]);
  } catch {
    return null; // not an address
  }
  if (path.startsWith("/models/")) {
    return fileIn(models, path.slice(7).replace(/\/$/, "/index.html")); // pages of `keras-tfm page`
  }
  for (const folder of FOLDERS) {
    const found = await fileIn(folder, path === "/" ? "index.html" : path);
    if (found) return found;
  }
  return null;
}

async function fileIn(folder, path) {
  try {
    const found = await realpath(join(folder, path));
    if (!found.startsWith((await realpath(folder)) + sep)) return null;
    const info = await stat(found);
    return info.isFile() ? { path: found, size: info.size } : null;
  } catch {
    return null;
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [models = join(HERE, "../../artifacts/dates"), port = "8000"] = process.argv.slice(2);
  try {
    const server = await serve(models, Number(port));
    console.log(`http://127.0.0.1:${server.address().port}/ with the models of ${models}`);
  } catch (error) {
    console.error(`cannot listen on port ${port}: ${error.message}`);
    process.exitCode = 1;
  }
}
