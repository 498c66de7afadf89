/**
 * The page without a network: the whole build is stored when it is installed, and served from there.
 *
 * What the coordinator says or serves to the agent (`/v1/`) is never stored. A new build is installed beside the old
 * one and takes over when the page is loaded next (see src/page/offline.ts).
 */

export {};

declare const self: ServiceWorkerGlobalScope;

/** Filled in by the build: `[path, isNamedByContent]` of every file, and a digest of the whole. */
declare const BUILD: { readonly version: string; readonly files: readonly (readonly [string, boolean])[] };

const PREFIX = "apportion-page-";
const NAME = PREFIX + BUILD.version;

self.addEventListener("install", (event) => event.waitUntil(store()));
self.addEventListener("activate", (event) => event.waitUntil(takeOver()));
self.addEventListener("message", (event) => {
  // Not waited for: Chromium activates a worker only once its events are over.
  if (event.data === "activate") void self.skipWaiting();
});
self.addEventListener("fetch", (event) => {
  const { request } = event;
  const url = new URL(request.url);
  if (request.method !== "GET" || url.origin !== self.location.origin) return;
  if (url.pathname.startsWith(`${scopePath()}v1/`)) return;
  event.respondWith(answer(request));
});

/** All files; what an older build has under a name made of its content is copied, not fetched again. */
async function store(): Promise<void> {
  const cache = await caches.open(NAME);
  await Promise.all(
    BUILD.files.map(async ([path, isNamedByContent]) => {
      const known = isNamedByContent ? await caches.match(path) : undefined;
      // A file whose name stays the same may be in the HTTP cache as it was in the build before.
      const response = known ?? (await fetch(path, { cache: isNamedByContent ? "default" : "no-cache" }));
      if (!response.ok)
        throw new TypeError(`${path}: HTTP ${response.status}; the page works offline after the next load`);
      await cache.put(path, response);
    }),
  );
}

async function takeOver(): Promise<void> {
  const names = await caches.keys();
  await Promise.all(
    names.filter((name) => name.startsWith(PREFIX) && name !== NAME).map((name) => caches.delete(name)),
  );
  await self.clients.claim();
}

/** Every address that is opened is the page: it reads the rest, such as a join link, itself. */
async function answer(request: Request): Promise<Response> {
  const cache = await caches.open(NAME);
  const stored = await cache.match(request.mode === "navigate" ? "./" : request, { ignoreVary: true });
  return stored ?? fetch(request);
}

function scopePath(): string {
  return new URL(self.registration.scope).pathname;
}
