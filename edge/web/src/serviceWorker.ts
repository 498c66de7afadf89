/**
 * The page without a network: the whole build is stored when it is installed, and served from there.
 *
 * What the coordinator says or serves to the agent (`/v1/`) is never stored. A new build is stored beside the old one
 * and given to the page when it is loaded next; a page that is open goes on with the old one, which stays until then.
 */

export {};

declare const self: ServiceWorkerGlobalScope;

/** Filled in by the build: `[path, isNamedByContent]` of every file, and a digest of the whole. */
declare const BUILD: { readonly version: string; readonly files: readonly (readonly [string, boolean])[] };

const PREFIX = "apportion-page-";
const NAME = PREFIX + BUILD.version;

self.addEventListener("install", (event) => event.waitUntil(store().then(() => self.skipWaiting())));
self.addEventListener("activate", (event) => event.waitUntil(takeOver()));
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

/** The build before this one stays: a page may be open that has not loaded all of it yet. */
async function takeOver(): Promise<void> {
  const older = (await caches.keys()).filter((name) => name.startsWith(PREFIX) && name !== NAME);
  await Promise.all(older.slice(0, -1).map((name) => caches.delete(name)));
  await self.clients.claim();
}

/** Every address that is opened is the page: it reads the rest, such as a join link, itself. */
async function answer(request: Request): Promise<Response> {
  const cache = await caches.open(NAME);
  const stored = await cache.match(request.mode === "navigate" ? "./" : request, { ignoreVary: true });
  return stored ?? (await caches.match(request, { ignoreVary: true })) ?? fetch(request);
}

function scopePath(): string {
  return new URL(self.registration.scope).pathname;
}
