/** The vectors in ../conformance, run through the real client before a scripted gate, on a clock that moves only by waiting. */

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { test } from "node:test";
import { isDeepStrictEqual } from "node:util";

import { FencedClient, FencedError } from "../src/index.js";
import { PROBLEMS } from "../src/problems.js";

interface ScriptedAnswer {
  refusal?: string;
  max_seen?: string;
  leader?: string;
  leader_token?: string;
  retry_after?: number;
  accepted?: number;
  replayed?: boolean;
  cut?: boolean;
  token?: string;
  grant?: string;
  lost?: "sent" | "not_sent";
  status?: number;
  headers?: [string, string][];
  body?: string;
  after_ms?: number;
}

interface Exchange {
  at_ms: number;
  discover?: Record<string, ScriptedAnswer>;
  send?: { origin: string; token: string | null; grant?: string | null; key?: string | null };
  answer?: ScriptedAnswer;
}

interface Vector {
  name: string;
  client: { urls: string[]; max_tries?: number; retry_burst?: number; jitter?: number };
  operations: {
    request: { method: string; path: string; json?: unknown; key?: string | null; token?: string; grant?: string; deadline_ms?: number };
    exchanges: Exchange[];
    result: unknown;
  }[];
}

const folder = fileURLToPath(new URL("../../../conformance/", import.meta.url));
const problems = JSON.parse(readFileSync(`${folder}problems.json`, "utf8")) as Record<
  string,
  { status: number; title: string; retry: string; applied: string }
>;

/** Virtual time: `sleep` moves the clock when everything else has come to rest. */
class Clock {
  now = 1000;
  readonly #waiting: { until: number; go: () => void }[] = [];

  sleep(milliseconds: number): Promise<void> {
    return new Promise((resolve) => {
      this.#waiting.push({ until: this.now + milliseconds, go: resolve });
      setImmediate(() => this.#move());
    });
  }

  #move(): void {
    this.#waiting.sort((one, other) => one.until - other.until);
    const next = this.#waiting.shift();
    if (next === undefined) return;
    this.now = Math.max(this.now, next.until);
    next.go();
  }
}

class Gate {
  readonly faults: string[] = [];
  readonly #began: number;
  readonly #asked = new Set<string>();

  constructor(
    private readonly clock: Clock,
    readonly left: Exchange[],
    private readonly key: string | null,
  ) {
    this.#began = clock.now;
  }

  async fetch(url: string, init: RequestInit): Promise<Response> {
    const { origin, pathname } = new URL(url);
    const headers = new Headers(init.headers);
    const answer = pathname.startsWith("/.well-known/") ? this.#discover(origin) : this.#send(origin, headers);
    if (answer.after_ms !== undefined) await this.clock.sleep(answer.after_ms);
    if (init.redirect !== "manual") this.faults.push("redirects would be followed");
    return asResponse(answer);
  }

  #discover(origin: string): ScriptedAnswer {
    const due = this.left[0];
    if (due?.discover === undefined) return this.#fault(`asked ${origin} who leads`);
    this.#at(due);
    this.#asked.add(origin);
    const answer = due.discover[origin];
    if (this.#asked.size === Object.keys(due.discover).length) {
      this.left.shift();
      this.#asked.clear();
    }
    return answer ?? this.#fault(`asked ${origin}`);
  }

  #send(origin: string, headers: Headers): ScriptedAnswer {
    const due = this.left[0];
    if (due?.send === undefined || due.answer === undefined) return this.#fault(`sent to ${origin}`);
    this.left.shift();
    this.#at(due);
    const [key, token, grant] = ["Idempotency-Key", "X-Fencing-Token", "X-Fencing-Grant"].map((name) => headers.get(name));
    const found = { key, origin, token, grant };
    const expected = { key: this.key, grant: null, ...due.send };
    if (!isDeepStrictEqual(found, expected)) {
      this.faults.push(`sent ${JSON.stringify(found)}, expected ${JSON.stringify(expected)}`);
    }
    return due.answer;
  }

  #at(due: Exchange): void {
    const passed = Math.round(this.clock.now - this.#began);
    if (passed !== due.at_ms) this.faults.push(`after ${passed} ms, expected at ${due.at_ms}: ${JSON.stringify(due)}`);
  }

  #fault(what: string): ScriptedAnswer {
    this.faults.push(`${what}, expected ${JSON.stringify(this.left[0] ?? "nothing more")}`);
    return { lost: "not_sent" };
  }
}

function asResponse(answer: ScriptedAnswer): Response {
  if (answer.lost !== undefined) {
    const cause = answer.lost === "sent" ? { code: "UND_ERR_SOCKET" } : { code: "ECONNREFUSED", syscall: "connect" };
    throw new TypeError("fetch failed", { cause });
  }
  if (answer.refusal !== undefined) return refusal(answer);
  if (answer.accepted !== undefined) {
    const headers = new Headers({ "X-Fencing-Outcome": "accepted" });
    if (answer.replayed) headers.set("Idempotent-Replayed", "true");
    return new Response(answer.cut ? cut() : "{}", { status: answer.accepted, headers });
  }
  if (answer.token !== undefined) {
    const leader = JSON.stringify({ url: answer.leader, region: "eu", state: "active" });
    const grant = answer.grant === undefined ? "" : `,"grant":${JSON.stringify(answer.grant)}`;
    return new Response(`{"role":"ledger","leader":${leader},"token":${answer.token}${grant}}`, { status: 200 });
  }
  const headers = new Headers();
  for (const [name, value] of answer.headers ?? []) headers.append(name, value);
  return new Response(answer.body ?? "", { status: answer.status ?? 200, headers });
}

function cut(): ReadableStream {
  return new ReadableStream({
    pull(controller) {
      controller.error(new TypeError("terminated"));
    },
  });
}

function refusal(answer: ScriptedAnswer): Response {
  const code = answer.refusal ?? "";
  const problem = problems[code];
  assert.ok(problem, code);
  const headers = new Headers({ "X-Fencing-Outcome": code, "X-Fencing-Applied": problem.applied, "X-Fencing-Retry": problem.retry });
  const members = [`"code":"${code}"`];
  if (answer.max_seen !== undefined) {
    headers.set("X-Fencing-Max-Seen", answer.max_seen);
    members.push(`"max_token_seen":${answer.max_seen}`);
  }
  if (answer.leader !== undefined) {
    headers.set("X-Fencing-Leader", answer.leader);
    const token = answer.leader_token === undefined ? "" : `,"token":${answer.leader_token}`;
    members.push(`"leader":{"url":${JSON.stringify(answer.leader)}${token}}`);
  }
  if (answer.retry_after !== undefined) headers.set("Retry-After", String(answer.retry_after));
  return new Response(`{${members.join(",")}}`, { status: problem.status, headers });
}

for (const file of readdirSync(`${folder}vectors`).sort()) {
  const vectors = JSON.parse(readFileSync(`${folder}vectors/${file}`, "utf8")) as Vector[];
  for (const vector of vectors) {
    test(`${file.replace(".json", "")}: ${vector.name}`, async () => {
      const clock = new Clock();
      let gate = new Gate(clock, [], null);
      const { urls, max_tries, retry_burst, jitter } = vector.client;
      const client = new FencedClient({
        urls,
        role: "ledger",
        ...(max_tries === undefined ? {} : { maxTries: max_tries }),
        ...(retry_burst === undefined ? {} : { retryBurst: retry_burst }),
        world: {
          fetch: (url, init) => gate.fetch(String(url), init ?? {}),
          now: () => clock.now,
          sleep: (milliseconds) => clock.sleep(milliseconds),
          random: () => jitter ?? 0,
        },
      });
      for (const { request, exchanges, result } of vector.operations) {
        gate = new Gate(clock, [...exchanges], request.key ?? null);
        assert.deepEqual(await outcome(client, request), result);
        assert.deepEqual(gate.faults, []);
        assert.deepEqual(gate.left, []);
      }
    });
  }
}

async function outcome(client: FencedClient, request: Vector["operations"][number]["request"]): Promise<unknown> {
  try {
    const response = await client.request(request.method, request.path, {
      ...(request.json === undefined ? {} : { json: request.json }),
      ...(request.key === undefined ? {} : { idempotencyKey: request.key }),
      ...(request.token === undefined ? {} : { token: BigInt(request.token) }),
      ...(request.grant === undefined ? {} : { grant: request.grant }),
      ...(request.deadline_ms === undefined ? {} : { deadlineMs: request.deadline_ms }),
    });
    return { done: { status: response.status, replayed: response.replayed } };
  } catch (error) {
    if (error instanceof FencedError) return { fail: { kind: error.kind, code: error.code } };
    throw error;
  }
}

test("the registry of problems is the product's", () => {
  const expected = Object.fromEntries(
    Object.entries(problems).map(([code, { status, retry, applied }]) => [code, { status, retry, applied }]),
  );
  assert.deepEqual({ ...PROBLEMS }, expected);
});
