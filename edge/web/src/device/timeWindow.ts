/** Part of every day, minutes after midnight; it may pass midnight. */

const DAY_MINUTES = 24 * 60;
const WINDOW = /^([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)$/;

/** From `start` up to and without `end`. */
export class TimeWindow {
  private constructor(
    readonly start: number,
    readonly end: number,
  ) {}

  /** `22:00-06:30`. @throws RangeError for another form, or no time at all. */
  static parse(text: string): TimeWindow {
    const found = WINDOW.exec(text)?.slice(1).map(Number);
    if (found === undefined) throw new RangeError(`'${text}' is no time of day: write HH:MM-HH:MM, as in 22:00-06:30`);
    const [fromHour = 0, fromMinute = 0, toHour = 0, toMinute = 0] = found;
    const window = new TimeWindow(fromHour * 60 + fromMinute, toHour * 60 + toMinute);
    if (window.start === window.end) {
      throw new RangeError(`'${text}' begins when it ends; leave it out to train at any time`);
    }
    return window;
  }

  holds(minute: number): boolean {
    return wrapped(minute - this.start) < wrapped(this.end - this.start);
  }

  toString(): string {
    return `${timeText(this.start)}-${timeText(this.end)}`;
  }
}

/** `06:05`. */
export function timeText(minute: number): string {
  const two = (value: number) => String(value).padStart(2, "0");
  return `${two(Math.floor(minute / 60))}:${two(minute % 60)}`;
}

function wrapped(minutes: number): number {
  return ((minutes % DAY_MINUTES) + DAY_MINUTES) % DAY_MINUTES;
}
