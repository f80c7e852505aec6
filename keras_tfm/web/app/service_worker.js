/** Keeps the files of the page, so that it works without a network after the first visit. */

const VERSION = ["keras_tfm", "{{version}}", self.registration.scope].join("-");
const FILES = ["{{files}}"];

self.addEventListener("install", (event) => {
  const keep = async () => {
    const cache = await caches.open(VERSION);
    await cache.addAll(FILES.map((name) => new Request(name, { cache: "reload" })));
    await self.skipWaiting();
  };
  event.waitUntil(keep());
});

self.addEventListener("activate", (event) => {
  const begin = async () => {
    const own = (name) => name.startsWith("keras_tfm-") && name.endsWith(self.registration.scope);
    for (const name of await caches.keys()) {
      if (own(name) && name !== VERSION) await caches.delete(name);
    }
    await self.clients.claim();
  };
  event.waitUntil(begin());
});

self.addEventListener("fetch", (event) => {
  const { request } = event;
  const isOwn = request.url.startsWith(self.registration.scope);
  if (request.method === "GET" && isOwn && !request.headers.has("Range")) {
    event.respondWith(answer(event, request));
  }
});

async function answer(event, request) {
  const cache = await caches.open(VERSION);
  const kept = await cache.match(request, { ignoreSearch: true });
  if (kept) return kept;
  // Of a navigation the options cannot be changed.
  const isPage = request.mode === "navigate";
  const response = await fetch(isPage ? request : new Request(request, { cache: "no-cache" }));
  if (response.ok && !response.redirected) {
    // Where the browser has no space for it, the page needs the network again.
    event.waitUntil(cache.put(request, response.clone()).catch(() => {}));
  }
  return response;
}
