/** Registers the service worker, once the page stands: storing the build must not slow its first sight. */

/** A page must not stay empty for the sake of a newer one. */
const MOST_WAIT_MS = 3_000;

/** Whether a newer build took over; then the page is being reloaded, and nothing else should begin. */
export async function takeNewBuild(): Promise<boolean> {
  if (!("serviceWorker" in navigator)) return false;
  const waiting = (await navigator.serviceWorker.getRegistration())?.waiting;
  if (!waiting || navigator.serviceWorker.controller === null) return false;
  const taken = new Promise<boolean>((resolve) => {
    navigator.serviceWorker.addEventListener("controllerchange", () => resolve(true), { once: true });
    setTimeout(() => resolve(false), MOST_WAIT_MS);
  });
  waiting.postMessage("activate");
  if (!(await taken)) return false; // the build that is here works as well
  location.reload();
  return true;
}

/** Stores this build, or looks for a newer one: registering alone looks for none where there is one already. */
export async function storeForOffline(): Promise<void> {
  if (!("serviceWorker" in navigator) || import.meta.env.DEV) return;
  const address = new URL("serviceWorker.js", document.baseURI);
  const registration = await navigator.serviceWorker.register(address, { scope: "./" });
  await registration.update().catch(() => undefined); // offline
}
