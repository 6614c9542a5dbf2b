/**
 * One observed answer, read from its status, header lines and body. No I/O, no clock; nothing in here throws.
 *
 * What comes over the wire is judged, never trusted: a header that is repeated, malformed or at odds with the registry of
 * problems counts as absent, and an answer whose X-Fencing-Outcome cannot be believed is not the gateway's: it says nothing
 * about whether the write happened.
 */

import { PROBLEMS, type Applied, type Retry } from "./problems.js";

export const MAX_TOKEN = 9223372036854775807n;

export interface Answer {
  status: number;
  /** "accepted", a problem code, or null for an answer that is not the gateway's. */
  outcome: string | null;
  retry: Retry;
  applied: Applied | "yes";
  replayed: boolean;
  maxSeen: bigint | null;
  /** The hint's origin in normal form. */
  leader: string | null;
  leaderToken: bigint | null;
  /** Seconds, uncapped. */
  retryAfter: number | null;
  detail: string;
  /** False where the body ended early. */
  complete: boolean;
}

/** No answer at all. `sent` is false only where not one byte of the request can have left. */
export interface Lost {
  lost: true;
  sent: boolean;
  detail: string;
  timedOut: boolean;
}

export type HeaderLines = Iterable<readonly [string, string]>;

const RETRIES: readonly string[] = ["never", "after-delay", "rediscover", "if-idempotent"];

/** The normal form `scheme://host[:port]` of an http(s) origin, or null where `text` is not one. */
export function originOf(text: string): string | null {
  if (!/^https?:\/\/[!-~]+$/i.test(text) || /[\\?#%@]/.test(text) || text.length > 300) return null;
  let url: URL;
  try {
    url = new URL(text);
  } catch {
    return null;
  }
  return url.pathname === "/" && url.hostname !== "" && url.port !== "0" ? url.origin : null;
}

/** A token out of a header or a JSON string: decimal digits without a leading zero, 1 to 2^63 - 1. */
export function parseToken(text: string | null): bigint | null {
  if (text === null || !/^[1-9][0-9]{0,18}$/.test(text)) return null;
  const token = BigInt(text);
  return token <= MAX_TOKEN ? token : null;
}

/** A token out of a JSON member that `parseDocument` has read. */
export function tokenIn(value: unknown): bigint | null {
  if (typeof value === "string") return parseToken(value);
  return typeof value === "number" && Number.isSafeInteger(value) ? parseToken(String(value)) : null;
}

/** A JSON object; whole numbers too long for a double are read as strings of digits. Anything else is an empty object. */
export function parseDocument(text: string): Record<string, unknown> {
  try {
    // Of text that is no JSON the expression below could take a time that grows with the square of its length.
    JSON.parse(text);
    const exact = text.replace(/"(?:[^"\\]|\\.)*"|-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/g, (found) =>
      /^[0-9]{16,}$/.test(found) ? `"${found}"` : found,
    );
    const parsed: unknown = JSON.parse(exact);
    return typeof parsed === "object" && parsed !== null && !Array.isArray(parsed)
      ? (parsed as Record<string, unknown>)
      : {};
  } catch {
    return {};
  }
}

export function readAnswer(status: number, headers: HeaderLines, body: string, complete = true): Answer {
  const fields = new Fields(headers);
  const outcome = fields.one("x-fencing-outcome");
  const answer: Answer = {
    status,
    outcome: null,
    retry: "if-idempotent",
    applied: "unknown",
    replayed: false,
    maxSeen: null,
    leader: null,
    leaderToken: null,
    retryAfter: seconds(fields.one("retry-after")),
    detail: "",
    complete,
  };
  if (outcome === "accepted") {
    // Only refusals say these: which of the two is it?
    if (fields.has("x-fencing-applied") || fields.has("x-fencing-retry")) return answer;
    const replayed = fields.one("idempotent-replayed") === "true";
    const maxSeen = parseToken(fields.one("x-fencing-max-seen"));
    return { ...answer, outcome, retry: "never", applied: "yes", replayed, maxSeen };
  }
  const verdict = refusal(status, outcome, fields);
  if (outcome === null || verdict === null) return answer;
  const leader = originOf(fields.one("x-fencing-leader") ?? "");
  const document = parseDocument(body);
  return {
    ...answer,
    ...verdict,
    outcome,
    leader,
    maxSeen: parseToken(fields.one("x-fencing-max-seen")),
    leaderToken: leaderToken(document, leader),
    detail: typeof document["detail"] === "string" ? document["detail"].slice(0, 500) : "",
  };
}

/** What a refusal allows, or null where it cannot be the gateway's. Of header and registry the more cautious one holds. */
function refusal(status: number, outcome: string | null, fields: Fields): { retry: Retry; applied: Applied } | null {
  if (outcome === null || !/^[a-z][a-z0-9_]{0,63}$/.test(outcome)) return null;
  const said = fields.one("x-fencing-retry");
  const saidRetry = said !== null && RETRIES.includes(said) ? (said as Retry) : null;
  const saidApplied: Applied = fields.one("x-fencing-applied") === "no" ? "no" : "unknown";
  const known = Object.hasOwn(PROBLEMS, outcome) ? PROBLEMS[outcome] : undefined;
  if (known === undefined) {
    // A code of a newer gateway: its headers are enough to act on, but only where they are whole.
    return status >= 400 && saidRetry !== null ? { retry: saidRetry, applied: saidApplied } : null;
  }
  if (status !== known.status && !(outcome === "outcome_unknown" && status === 504)) return null;
  return {
    retry: saidRetry === "never" ? "never" : known.retry,
    applied: known.applied === "no" && saidApplied === "no" ? "no" : "unknown",
  };
}

/** The hint's token out of the body; only where the body's leader is the header's. */
function leaderToken(document: Record<string, unknown>, leader: string | null): bigint | null {
  const hint = document["leader"];
  if (leader === null || typeof hint !== "object" || hint === null) return null;
  const { url, token } = hint as { url?: unknown; token?: unknown };
  return typeof url === "string" && originOf(url) === leader ? tokenIn(token) : null;
}

/** Delta-seconds only: a date would have to be compared with a remote clock. */
function seconds(text: string | null): number | null {
  if (text === null || !/^[0-9]+$/.test(text)) return null;
  return text.length > 9 ? 1e9 : Number(text);
}

/** Header lines by lower-case name. A name that comes twice has no value: fetch joins such lines with a comma. */
class Fields {
  readonly #values = new Map<string, string | null>();

  constructor(lines: HeaderLines) {
    for (const [name, value] of lines) {
      const lower = name.toLowerCase();
      const single = lower.startsWith("x-fencing-") || lower === "retry-after" || lower === "idempotent-replayed";
      const repeated = this.#values.has(lower) || (single && value.includes(","));
      this.#values.set(lower, repeated ? null : value.replace(/^[ \t]+|[ \t]+$/g, ""));
    }
  }

  has(name: string): boolean {
    return this.#values.has(name);
  }

  one(name: string): string | null {
    return this.#values.get(name) ?? null;
  }
}
