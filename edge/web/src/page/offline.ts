/** Registers the service worker, once the page stands: storing the build must not slow its first sight. */

/** Stores this build, or looks for a newer one: registering alone looks for none where there is one already. */
export async function storeForOffline(): Promise<void> {
  if (!("serviceWorker" in navigator) || import.meta.env.DEV) return;
  const address = new URL("serviceWorker.js", document.baseURI);
  const registration = await navigator.serviceWorker.register(address, { scope: "./" });
  await registration.update().catch(() => undefined); // offline
}
