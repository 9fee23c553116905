// Numbers, times and foreign text as a person reads them.
export function number(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(4)));
}

export function seconds(from: number | null, to: number | null): string {
  if (from === null || to === null) return "–";
  const spent = to - from;
  if (spent < 1) return `${Math.round(spent * 1000)} ms`;
  return spent < 90 ? `${spent.toFixed(1)} s` : `${Math.floor(spent / 60)} min ${Math.round(spent % 60)} s`;
}

export function clock(time: number | null | undefined): string {
  return time ? new Date(time * 1000).toLocaleString() : "–";
}

export function ago(time: number | null | undefined): string {
  if (!time) return "–";
  const spent = Math.max(0, Date.now() / 1000 - time);
  if (spent < 90) return `${Math.round(spent)} s ago`;
  return spent < 5400 ? `${Math.round(spent / 60)} min ago` : clock(time);
}

// Control characters, and marks that turn the direction of writing: shown, so that nobody is deceived by them.
const STEERING = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;

/** Foreign text with every character that would steer how it is shown as its code. */
export function visible(text: string): string {
  return text
    .replace(/\r\n/g, "\n")
    .replace(STEERING, (found) => "\\u" + found.charCodeAt(0).toString(16).padStart(4, "0"));
}

export function stepOf(group: string | null, step: number | null): string {
  const place = group === null ? null : Number(group.split("/")[1]);
  if (step === null) return group ?? "";
  return `step ${step}` + (place === null || Number.isNaN(place) ? "" : `, task ${place + 1}`);
}

/** Words of a text, and for each whether another text has it too, in this order (longest common subsequence). */
export function marked(text: string, other: string): [string, boolean][] {
  const [mine, theirs] = [words(text), words(other)];
  const width = theirs.length + 1;
  const common = new Uint16Array((mine.length + 1) * width);
  for (let i = mine.length - 1; i >= 0; i--)
    for (let j = theirs.length - 1; j >= 0; j--)
      common[i * width + j] =
        mine[i] === theirs[j] ? common[(i + 1) * width + j + 1] + 1 : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
  const found: [string, boolean][] = [];
  for (let i = 0, j = 0; i < mine.length; i++) {
    while (j < theirs.length && mine[i] !== theirs[j] && common[i * width + j + 1] > common[(i + 1) * width + j]) j++;
    const same = j < theirs.length && mine[i] === theirs[j];
    found.push([mine[i], same]);
    if (same) j++;
  }
  return found;
}

const MOST_WORDS = 600;

function words(text: string): string[] {
  return (text.match(/\s+|[\p{L}\p{N}_]+|./gsu) ?? []).slice(0, MOST_WORDS);
}
