/**
 * Pieces of blobs by HTTPS range requests, where an order says so: the broker carries the claim, not the bytes.
 *
 * Whatever is not answered with status 206 and exactly the range that was asked for is an error; the caller then asks
 * over MQTT instead.
 */

const LEAST_PIECE_BYTES = 1 << 16;
const MOST_PIECE_BYTES = 1 << 20;
const SHORT_MS = 1_000;
const LONG_MS = 4_000;
/** Without a byte for so long, a server is given up. */
const STALL_MS = 15_000;
const CONTENT_RANGE = /^bytes (\d{1,15})-(\d{1,15})\/(\d{1,15})$/;

export class RangeRequests {
  readonly #base: string;
  readonly #fetch: typeof fetch;
  #pieceBytes = MOST_PIECE_BYTES / 4;

  private constructor(base: string, request: typeof fetch) {
    this.#base = base;
    this.#fetch = request;
  }

  /**
   * Of an order's address, to which a digest is added: `https://host:port/path/`, or http on this machine; it holds the
   * device's ticket. Null for anything else: such blobs are asked for over MQTT.
   */
  static at(base: string, request: typeof fetch = (input, init) => fetch(input, init)): RangeRequests | null {
    const url = URL.canParse(base) ? new URL(base) : null;
    const isLoopback = ["localhost", "127.0.0.1", "[::1]"].includes(url?.hostname ?? "");
    const isKept = url?.protocol === "https:" || (url?.protocol === "http:" && isLoopback);
    return isKept ? new RangeRequests(base, request) : null;
  }

  /** Bytes to ask for next: few enough that a killed tab loses seconds, enough that a fast link is not kept waiting. */
  get pieceBytes(): number {
    return this.#pieceBytes;
  }

  /** `length` bytes of the blob `digest` from `offset` on, of `total` in all; rejects for anything else. */
  async piece(
    digest: string,
    offset: number,
    length: number,
    total: number,
    signal: AbortSignal,
  ): Promise<Uint8Array<ArrayBuffer>> {
    const began = performance.now();
    const stall = new AbortController();
    const stop = () => stall.abort();
    signal.addEventListener("abort", stop);
    let timer = setTimeout(stop, STALL_MS);
    try {
      const response = await this.#fetch(this.#base + digest, {
        headers: { Range: `bytes=${offset}-${offset + length - 1}` },
        signal: stall.signal,
        credentials: "omit",
        cache: "no-store",
        redirect: "error",
        referrerPolicy: "no-referrer",
      });
      const range = CONTENT_RANGE.exec(response.headers.get("Content-Range") ?? "");
      const isAsked =
        Number(range?.[1]) === offset && Number(range?.[2]) === offset + length - 1 && Number(range?.[3]) === total;
      if (response.status !== 206 || !isAsked || response.body === null) {
        stop();
        throw new Error(`status ${response.status}, range '${range?.[0] ?? ""}' for ${length} bytes at ${offset}`);
      }
      const data = new Uint8Array(length);
      let filled = 0;
      for (const reader = response.body.getReader(); ; ) {
        const { done, value } = await reader.read();
        if (done) break;
        clearTimeout(timer);
        timer = setTimeout(stop, STALL_MS);
        if (filled + value.length > length) {
          stop();
          throw new Error(`more than ${length} bytes came`);
        }
        data.set(value, filled);
        filled += value.length;
      }
      if (filled !== length) throw new Error(`${filled} bytes of ${length} came`);
      this.#adapt(performance.now() - began);
      return data;
    } finally {
      clearTimeout(timer);
      signal.removeEventListener("abort", stop);
    }
  }

  #adapt(tookMs: number): void {
    if (tookMs < SHORT_MS) this.#pieceBytes = Math.min(MOST_PIECE_BYTES, 2 * this.#pieceBytes);
    else if (tookMs > LONG_MS) this.#pieceBytes = Math.max(LEAST_PIECE_BYTES, this.#pieceBytes / 2);
  }
}
