/** One try over HTTP: within its time, of an answer no more than is wanted, and told apart whether the request can have left. */

import { readAnswer, type Answer, type Lost } from "./answers.js";

export interface Reply {
  headers: Headers;
  body: string;
}

/** Bytes of a document that is read as JSON: a refusal's, or discovery's. */
export const DOCUMENT_LIMIT = 64 * 1024;
/** Milliseconds for the body of a refusal: its headers alone are enough to act on. */
const REFUSAL_PATIENCE = 1_000;
/** Milliseconds: a timer that is set for longer rings at once. */
const LONGEST_TIMER = 2 ** 31 - 1;

/** At most `limit` milliseconds, and `answerLimit` bytes of what is no refusal: a longer answer counts as one that was cut off. */
export async function exchange(
  send: typeof fetch,
  url: string,
  init: RequestInit,
  limit: number,
  answerLimit: number,
): Promise<[Answer | Lost, Reply | null]> {
  let head: Response | null = null;
  try {
    // Whole milliseconds: Node refuses any other.
    const signal = AbortSignal.timeout(Math.min(Math.max(1, Math.floor(limit)), LONGEST_TIMER));
    // Never followed: a redirect is no hint, and would carry the token and the key to another host.
    head = await send(url, { ...init, redirect: "manual", signal });
    const { outcome } = readAnswer(head.status, head.headers, "");
    const refused = outcome !== null && outcome !== "accepted";
    const body = await (refused ? textOf(head, DOCUMENT_LIMIT, REFUSAL_PATIENCE) : textOf(head, answerLimit, null));
    if (body === null) return [readAnswer(head.status, head.headers, "", false), null];
    return [readAnswer(head.status, head.headers, body), { headers: head.headers, body }];
  } catch (error) {
    if (head !== null) return [readAnswer(head.status, head.headers, "", false), null];
    return [lostBy(error), null];
  }
}

/** The body, or null where it is longer than `limit` bytes or takes longer than `patience` milliseconds. */
async function textOf(response: Response, limit: number, patience: number | null): Promise<string | null> {
  if (response.body === null) return "";
  const reader = response.body.getReader();
  const hangUp = (): void => void reader.cancel().catch(() => undefined);
  let late = false;
  const impatient = (): void => {
    late = true;
    hangUp();
  };
  const timer = patience === null ? undefined : setTimeout(impatient, patience);
  try {
    const decoder = new TextDecoder();
    let text = "";
    let left = limit;
    for (;;) {
      const { done, value } = await reader.read();
      if (late) return null;
      if (done) return text + decoder.decode();
      left -= value.byteLength;
      if (left < 0) return null;
      text += decoder.decode(value, { stream: true });
    }
  } finally {
    clearTimeout(timer);
    hangUp();
  }
}

function lostBy(error: unknown): Lost {
  const { name, cause, message } = error as { name?: string; cause?: Cause; message?: string };
  return { lost: true, sent: !neverLeft(cause), timedOut: name === "TimeoutError", detail: cause?.code ?? message ?? "no answer" };
}

interface Cause {
  code?: string;
  syscall?: string;
  errors?: Cause[];
}

/**
 * Whether the failure is one of connecting, so that not a byte of the request has left. Anything else is taken for sent: by its
 * code alone a failure says nothing, since an open connection too ends with EHOSTUNREACH once its route is gone.
 */
function neverLeft(cause: Cause | undefined): boolean {
  if (cause === undefined || cause === null) return false;
  if (Array.isArray(cause.errors) && cause.errors.length > 0) return cause.errors.every(neverLeft);
  return cause.syscall === "connect" || cause.syscall === "getaddrinfo" || cause.code === "UND_ERR_CONNECT_TIMEOUT";
}
