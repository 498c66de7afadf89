/**
 * Pictures as an artifact takes them: greyscale and size as Pillow makes them, so that a picture becomes the same bytes
 * on every agent; a canvas would scale differently in every browser. Measured against Pillow 13: the same, but for the
 * order of scaling in width and in height, which it chooses by size and by which a byte may differ by 1.
 */

/** A decoded picture: width x height x 4 bytes, red, green, blue, opacity; opacity is ignored. */
export interface Pixels {
  readonly width: number;
  readonly height: number;
  readonly rgba: Uint8Array | Uint8ClampedArray;
}

/** Channels first, one byte a value: [channels, height, width]. */
export interface PictureSize {
  readonly channels: 1 | 3;
  readonly height: number;
  readonly width: number;
}

/** Bits of a weight's fraction. Source: Pillow, Resample.c, PRECISION_BITS. */
const PRECISION = 22;

/** `picture` in one channel (ITU-R 601 luma) or three, then scaled to the size: uint8 [channels, height, width]. */
export function fitPicture(picture: Pixels, size: PictureSize): Uint8Array {
  const fitted = new Uint8Array(size.channels * size.height * size.width);
  for (let channel = 0; channel < size.channels; channel += 1) {
    const plane = size.channels === 1 ? grey(picture) : channelOf(picture, channel);
    fitted.set(resized(plane, picture.width, picture.height, size), channel * size.height * size.width);
  }
  return fitted;
}

function channelOf({ width, height, rgba }: Pixels, channel: number): Uint8Array {
  return Uint8Array.from({ length: width * height }, (_, i) => rgba[4 * i + channel] as number);
}

/** Source: Pillow, Convert.c, L24: rounded 16-bit fractions of the ITU-R 601-2 weights. */
function grey({ width, height, rgba }: Pixels): Uint8Array {
  return Uint8Array.from({ length: width * height }, (_, i) => {
    const [red, green, blue] = [rgba[4 * i] as number, rgba[4 * i + 1] as number, rgba[4 * i + 2] as number];
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16;
  });
}

/** One channel, scaled in width first, then in height, each rounded to bytes. Source: Pillow, Resample.c. */
function resized(plane: Uint8Array, width: number, height: number, to: PictureSize): Uint8Array {
  const wide = width === to.width ? plane : scaledRows(plane, width, height, to.width);
  if (height === to.height) return wide;
  const turned = transposed(wide, to.width, height);
  return transposed(scaledRows(turned, height, to.width, to.height), to.height, to.width);
}

interface Window {
  readonly first: number;
  readonly weights: Int32Array;
}

function scaledRows(plane: Uint8Array, width: number, height: number, toWidth: number): Uint8Array {
  const windows = triangleWindows(width, toWidth);
  const scaled = new Uint8Array(toWidth * height);
  for (let row = 0; row < height; row += 1) {
    for (let column = 0; column < toWidth; column += 1) {
      const { first, weights } = windows[column] as Window;
      let sum = 1 << (PRECISION - 1);
      for (let i = 0; i < weights.length; i += 1) {
        sum += (plane[row * width + first + i] as number) * (weights[i] as number);
      }
      scaled[row * toWidth + column] = Math.min(255, Math.max(0, sum >> PRECISION));
    }
  }
  return scaled;
}

/** The inputs each output is the weighted mean of; wider than two where a picture becomes smaller. */
function triangleWindows(from: number, to: number): Window[] {
  const scale = from / to;
  const support = Math.max(1, scale);
  const narrowing = 1 / support;
  return Array.from({ length: to }, (_, place) => {
    const center = (place + 0.5) * scale;
    const first = Math.max(0, Math.trunc(center - support + 0.5));
    const last = Math.min(from, Math.trunc(center + support + 0.5));
    const heights = Array.from({ length: last - first }, (_, i) =>
      Math.max(0, 1 - Math.abs((i + first - center + 0.5) * narrowing)),
    );
    const share = 1 / heights.reduce((sum, value) => sum + value, 0);
    return { first, weights: Int32Array.from(heights, (value) => Math.trunc(0.5 + value * share * 2 ** PRECISION)) };
  });
}

function transposed(plane: Uint8Array, width: number, height: number): Uint8Array {
  const turned = new Uint8Array(plane.length);
  for (let row = 0; row < height; row += 1) {
    for (let column = 0; column < width; column += 1) {
      turned[column * height + row] = plane[row * width + column] as number;
    }
  }
  return turned;
}
