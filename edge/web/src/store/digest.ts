/**
 * SHA-256 of whole blobs by WebCrypto, in one shot: a JavaScript implementation that is fed piece by piece takes about
 * ten times as long. Source: measured, 8 MB in Chromium 156, 11 to 16 ms against 122 to 148 ms.
 */

export async function sha256Hex(data: Uint8Array): Promise<string> {
  const digest = await crypto.subtle.digest("SHA-256", data as Uint8Array<ArrayBuffer>);
  return Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
