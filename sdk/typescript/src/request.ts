/** What a caller asks for, checked before anything is sent. */

import { MAX_TOKEN } from "./answers.js";

export interface Request {
  json?: unknown;
  body?: string | Uint8Array;
  headers?: Record<string, string>;
  /** Left out: one is made for this write. `null`: none is sent, and a lost answer is never followed by a second try. */
  idempotencyKey?: string | null;
  /** A term of your own: it is presented as it is and never replaced. */
  token?: bigint;
  /** What goes with `token`, where gateways ask for a grant. A function is called for each try. */
  grant?: string | (() => string);
  deadlineMs?: number;
}

/** One request, to be sent any number of times with the same bytes and the same key. */
export interface Wanted {
  method: string;
  path: string;
  headers: Record<string, string>;
  body: string | Uint8Array | null;
  key: string | null;
}

/** Methods that need no token and no key. */
export const READS = new Set(["GET", "HEAD", "OPTIONS"]);
/** Of the client's own making, or the connection's. */
const NOT_FOR_CALLERS = /^(x-fencing-.*|idempotency-key|connection|content-length|expect|keep-alive|transfer-encoding|upgrade)$/i;

/** Throws a `TypeError` for what cannot be sent. */
export function checked(method: string, path: string, request: Request): Wanted {
  if (!/^[A-Z]{1,20}$/.test(method)) throw new TypeError("method must be a word of ASCII letters, such as POST");
  if (!/^\/[^#\\\x00-\x1f]*$/.test(path)) {
    throw new TypeError("path must begin with '/' and hold no '#', '\\' or control characters");
  }
  if (Number.isNaN(Number(request.deadlineMs ?? 0))) throw new TypeError("deadlineMs must be a number of milliseconds");
  // A number would be rounded where it is above 2^53, and the token of another term be presented.
  if (request.token !== undefined && (typeof request.token !== "bigint" || request.token < 1n || request.token > MAX_TOKEN)) {
    throw new TypeError("token must be a bigint from 1 to 2^63 - 1");
  }
  if (request.grant !== undefined && request.token === undefined) {
    throw new TypeError("a grant goes with its token: give token too, or leave both to discovery");
  }
  for (const name of Object.keys(request.headers ?? {})) {
    if (NOT_FOR_CALLERS.test(name)) {
      throw new TypeError(`${name} is set by the client (of token, deadlineMs, idempotencyKey) or by the connection: leave it out`);
    }
  }
  const headers = new Headers(request.headers ?? {});
  const body = bodyOf(request);
  if (request.json !== undefined && !headers.has("Content-Type")) headers.set("Content-Type", "application/json");
  // What fetch would refuse is refused now: later it could not be told from a request that was lost on its way.
  new globalThis.Request(`http://localhost${path}`, { method, headers, body: body as BodyInit | null });
  const wanted = { method, path, headers: Object.fromEntries(headers), body };
  if (READS.has(method)) return { ...wanted, key: null };
  const key = request.idempotencyKey === undefined ? crypto.randomUUID() : request.idempotencyKey;
  if (key !== null && !/^[!-~]{1,255}$/.test(key)) throw new TypeError("an idempotency key is 1 to 255 visible ASCII characters");
  return { ...wanted, key };
}

/** Bytes of our own: every try sends the same ones, whatever the caller does with theirs meanwhile. */
function bodyOf(request: Request): string | Uint8Array | null {
  const { json, body } = request;
  if (json !== undefined && body !== undefined) throw new TypeError("give json or body, not both");
  const given = json === undefined ? (body ?? null) : JSON.stringify(json);
  if (given === null || typeof given === "string") return given;
  if (given instanceof Uint8Array) return given.slice();
  throw new TypeError("body must be a string or a Uint8Array (what can be read only once cannot be sent again), json what JSON can hold");
}

/** What could not stand in a header is no grant. */
export function asGrant(value: unknown): string | null {
  return typeof value === "string" && /^[!-~]{1,4096}$/.test(value) ? value : null;
}

export function granted(given: string | (() => string) | undefined): string | null {
  if (given === undefined) return null;
  const grant = asGrant(typeof given === "function" ? given() : given);
  if (grant === null) throw new TypeError("a grant is one line of visible ASCII characters");
  return grant;
}
