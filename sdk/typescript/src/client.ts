/** The client: discovers the leader, stamps its token, and retries by the wire contract. It only does what the machine says. */

import { originOf, parseDocument, tokenIn, type Answer, type Lost } from "./answers.js";
import { DOCUMENT_LIMIT, exchange, type Reply } from "./exchange.js";
import { Machine, type Circumstances, type Decision, type Discovery, type FailureKind, type Operation } from "./machine.js";
import { PROBLEMS } from "./problems.js";
import { asGrant, checked, granted, READS, type Request, type Wanted } from "./request.js";

export type { Request } from "./request.js";

export interface Settings {
  /** The origins that may ever be sent to: a hint or a discovery that names another one is not followed. */
  urls: readonly string[];
  role: string;
  /** Milliseconds for a whole operation, retries and waits included. */
  deadlineMs?: number;
  tryTimeoutMs?: number;
  discoveryTimeoutMs?: number;
  /** How long a leader is used, unrefused, without asking again. */
  leaderMaxAgeMs?: number;
  maxTries?: number;
  /** Bytes of an answer. A longer one is cut off there, and counts as one whose end was lost. */
  maxAnswerBytes?: number;
  retryRatio?: number;
  retryBurst?: number;
  /** The world, for tests. */
  world?: Partial<World>;
}

export interface World {
  fetch: typeof fetch;
  /** Milliseconds on a clock that never goes back. */
  now: () => number;
  sleep: (milliseconds: number) => Promise<void>;
  random: () => number;
}

export interface Response {
  status: number;
  /** 200 to 299. A write was accepted by the fence in any case; the target may have said no. */
  ok: boolean;
  headers: Headers;
  body: string;
  token: bigint | null;
  maxTokenSeen: bigint | null;
  replayed: boolean;
  origin: string;
  tries: number;
  idempotencyKey: string | null;
}

/** Every kind but "outcome_unknown" says that nothing was applied. */
export class FencedError extends Error {
  override readonly name = "FencedError";

  constructor(
    readonly kind: FailureKind,
    /** The last problem's code, or "unreachable", "answer_lost", "not_the_gateway". */
    readonly code: string,
    readonly tries: number,
    /** The last hint, whether or not it could be followed. */
    readonly leader: string | null,
    /** After "outcome_unknown": the same request with this key, sent later, is applied at most once in a store. */
    readonly idempotencyKey: string | null,
    detail: string,
  ) {
    const applied = kind === "outcome_unknown" ? "the write may or may not have been applied" : "nothing was applied";
    super(`${kind}: ${applied}; last: ${code || "no try had begun"}${detail ? `: ${detail}` : ""}; tried ${tries} times`);
  }
}

/** Milliseconds: the contract knows no longer one, and a gateway takes it for malformed. */
const LONGEST_BUDGET = 999_999_999;
const OF_GRANTS = new Set(["grant_required", "grant_invalid", "grant_expired"]);

interface Known {
  origin: string;
  token: bigint;
  grant: string | null;
  since: number;
}

export class FencedClient {
  readonly #origins: readonly string[];
  readonly #role: string;
  readonly #limits: Readonly<Record<"deadlineMs" | "tryTimeoutMs" | "discoveryTimeoutMs" | "leaderMaxAgeMs" | "maxAnswerBytes", number>>;
  readonly #machine: Machine;
  readonly #world: World;
  readonly #ratio: number;
  readonly #burst: number;
  #budget: number;
  #known: Known | null = null;

  constructor(settings: Settings) {
    const origins = [...new Set(settings.urls.map(checkedOrigin))];
    if (origins.length === 0) throw new TypeError("urls must name at least one gateway, such as https://ledger.eu.example");
    if (!/^[!-~]+$/.test(settings.role)) throw new TypeError("role must be visible ASCII without spaces, such as ledger");
    this.#origins = origins;
    this.#role = settings.role;
    this.#limits = {
      deadlineMs: settings.deadlineMs ?? 30_000,
      tryTimeoutMs: settings.tryTimeoutMs ?? 10_000,
      discoveryTimeoutMs: settings.discoveryTimeoutMs ?? 2_000,
      leaderMaxAgeMs: settings.leaderMaxAgeMs ?? 60_000,
      maxAnswerBytes: settings.maxAnswerBytes ?? 64 * 1024 * 1024,
    };
    const maxTries = settings.maxTries ?? 20;
    for (const [name, value] of Object.entries({ ...this.#limits, maxTries })) {
      if (!(value > 0)) throw new TypeError(`${name} must be more than 0, not ${value}`);
    }
    this.#machine = new Machine({
      origins,
      maxTries,
      maxHops: 2,
      backoffBase: 100,
      backoffCap: 2_000,
      retryAfterCap: 15_000,
    });
    this.#ratio = settings.retryRatio ?? 0.1;
    this.#burst = settings.retryBurst ?? 10;
    this.#budget = this.#burst;
    this.#world = {
      fetch: (input, init) => fetch(input, init),
      now: () => performance.now(),
      sleep: (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds)),
      random: Math.random,
      ...settings.world,
    };
  }

  post(path: string, request: Request = {}): Promise<Response> {
    return this.request("POST", path, request);
  }

  put(path: string, request: Request = {}): Promise<Response> {
    return this.request("PUT", path, request);
  }

  patch(path: string, request: Request = {}): Promise<Response> {
    return this.request("PATCH", path, request);
  }

  delete(path: string, request: Request = {}): Promise<Response> {
    return this.request("DELETE", path, request);
  }

  /** A read, at the leader where one is known, else at any gateway. */
  get(path: string, request: Request = {}): Promise<Response> {
    return this.request("GET", path, request);
  }

  /**
   * One logical operation: sent until it is answered, refused for good, or out of time.
   *
   * Throws a `FencedError`, and a `TypeError` for a request that cannot be sent.
   */
  async request(method: string, path: string, request: Request = {}): Promise<Response> {
    const wanted = checked(method.toUpperCase(), path, request);
    this.#budget = Math.min(this.#burst, this.#budget + this.#ratio);
    let operation = this.#operation(wanted, request);
    let decision: Decision = this.#machine.begin(operation, this.#world.now());
    let last: { answer: Answer; reply: Reply } | null = null;
    let detail = "";
    for (;;) {
      if (decision.do === "fail") {
        const { code, tries, hint, key } = decision.operation;
        throw new FencedError(decision.kind, code, tries, hint, key, detail);
      }
      if (decision.do === "done") {
        if (last === null) throw new Error("done without an answer");
        return response(operation, last.answer, last.reply);
      }
      operation = decision.operation;
      const wait = decision.notBefore - this.#world.now();
      if (wait > 0) await this.#world.sleep(wait);
      if (decision.do === "rediscover") {
        const result = await this.#discover(operation);
        decision = this.#machine.found(operation, result, this.#circumstances());
      } else {
        const late = this.#machine.expired(operation, this.#world.now());
        if (late !== null) {
          decision = late;
          continue;
        }
        if (operation.pinned) {
          try {
            operation = { ...operation, grant: granted(request.grant) };
          } catch (error) {
            if (!operation.unknown) throw error;
            decision = this.#machine.giveUp(operation, "no_grant");
            continue;
          }
        }
        const [answer, reply] = await this.#send(operation, wanted);
        detail = answer.detail;
        last = reply === null || "lost" in answer ? null : { answer, reply };
        this.#learn(operation, answer);
        decision = this.#machine.observe(operation, answer, this.#circumstances());
        operation = { ...operation, tries: operation.tries + 1 };
      }
      if (decision.do === "send") this.#budget = Math.max(0, this.#budget - decision.cost);
    }
  }

  #operation(wanted: Wanted, request: Request): Operation {
    const read = READS.has(wanted.method);
    const known = this.#remembered();
    const pinned = request.token !== undefined && !read;
    return {
      deadline: this.#world.now() + (request.deadlineMs ?? this.#limits.deadlineMs),
      origin: known?.origin ?? null,
      token: pinned ? (request.token ?? null) : (known?.token ?? null),
      key: wanted.key,
      read,
      pinned,
      tries: 0,
      hops: 0,
      rounds: 0,
      floor: 0n,
      unknown: false,
      code: "",
      hint: null,
      grant: pinned ? null : (known?.grant ?? null),
      renewed: 0,
    };
  }

  #circumstances(): Circumstances {
    return { now: this.#world.now(), jitter: this.#world.random(), budget: this.#budget };
  }

  async #send(operation: Operation, wanted: Wanted): Promise<[Answer | Lost, Reply | null]> {
    const limit = Math.min(this.#limits.tryTimeoutMs, operation.deadline - this.#world.now());
    const headers: Record<string, string> = { ...wanted.headers, "X-Fencing-Timeout-Ms": String(Math.min(Math.max(1, Math.floor(limit)), LONGEST_BUDGET)) };
    if (operation.token !== null && !operation.read) headers["X-Fencing-Token"] = operation.token.toString();
    if (operation.grant !== null && !operation.read) headers["X-Fencing-Grant"] = operation.grant;
    if (wanted.key !== null) headers["Idempotency-Key"] = wanted.key;
    const init: RequestInit = { method: wanted.method, headers };
    if (wanted.body !== null) init.body = wanted.body as BodyInit;
    return exchange(this.#world.fetch, `${operation.origin}${wanted.path}`, init, limit, this.#limits.maxAnswerBytes);
  }

  /** All gateways are asked at once; the first that names a leader who is not too old is taken. */
  async #discover(operation: Operation): Promise<Discovery> {
    const floor = operation.token !== null && operation.token > operation.floor ? operation.token : operation.floor;
    const held = this.#remembered();
    if (held !== null && held.token >= floor) {
      return { found: true, via: held.origin, leader: held.origin, token: held.token, grant: held.grant };
    }
    const limit = Math.min(this.#limits.discoveryTimeoutMs, operation.deadline - this.#world.now());
    const asked = this.#origins.map((origin) => this.#ask(origin, limit));
    const good = asked.map(async (one) => {
      const said = await one;
      if (said.found && said.token >= floor) return said;
      throw new Error("not this one");
    });
    try {
      return await Promise.any(good);
    } catch {
      return (await Promise.all(asked)).reduce((one, other) => (weight(other) > weight(one) ? other : one));
    }
  }

  async #ask(origin: string, limit: number): Promise<Discovery> {
    const path = `/.well-known/fencegate/leader/${this.#role.split("/").map(encodeURIComponent).join("/")}`;
    const init = { method: "GET", headers: { Accept: "application/json" } };
    const [answer, reply] = await exchange(this.#world.fetch, origin + path, init, limit, DOCUMENT_LIMIT);
    const silent: Discovery = { found: false, code: "unreachable", retryAfter: null, final: false };
    if ("lost" in answer) return silent;
    if (answer.outcome !== null && Object.hasOwn(PROBLEMS, answer.outcome)) {
      return { found: false, code: answer.outcome, retryAfter: answer.retryAfter, final: answer.retry === "never" };
    }
    if (reply === null || answer.status !== 200) return silent;
    const document = parseDocument(reply.body);
    const leader = document["leader"];
    const hint = typeof leader === "object" && leader !== null ? (leader as { url?: unknown; token?: unknown }) : { url: leader };
    const token = tokenIn(document["token"]) ?? tokenIn(hint.token);
    if (token === null) return silent;
    const leading = typeof hint.url === "string" ? originOf(hint.url) : null;
    return { found: true, via: origin, leader: leading, token, grant: asGrant(document["grant"]) };
  }

  #remembered(): Known | null {
    if (this.#known !== null && this.#world.now() - this.#known.since > this.#limits.leaderMaxAgeMs) this.#known = null;
    return this.#known;
  }

  #learn(sent: Operation, answer: Answer | Lost): void {
    const same = this.#known?.origin === sent.origin && this.#known?.token === sent.token;
    if ("lost" in answer) {
      if (!answer.sent && same) this.#known = null;
      return;
    }
    if (sent.read || sent.origin === null || sent.token === null || answer.outcome === null) return;
    if (answer.applied === "yes") {
      const held = this.#remembered();
      if (held === null || sent.token > held.token || (sent.token === held.token && sent.origin !== held.origin)) {
        const grant = sent.pinned ? null : sent.grant;
        this.#known = { origin: sent.origin, token: sent.token, grant, since: this.#world.now() };
      }
    } else if (same && OF_GRANTS.has(answer.outcome)) {
      // A newer grant that has come meanwhile is kept.
      if (this.#known?.grant === sent.grant) this.#known = null;
    } else if (same && ["stale_token", "not_leader", "no_leader", "draining", "token_not_issued"].includes(answer.outcome)) {
      this.#known = null;
    }
  }
}

function checkedOrigin(url: string): string {
  const origin = originOf(url);
  if (origin === null) throw new TypeError(`urls: ${JSON.stringify(url)} is not an origin; give scheme://host[:port]`);
  return origin;
}

/** Which of several gateways' words counts: a leader, then a reason that can pass, then a final one, then silence. */
function weight(said: Discovery): number {
  if (said.found) return 4;
  if (said.code === "unreachable") return 0;
  return said.final ? 1 : 2 + Number(said.code === "no_leader");
}

function response(operation: Operation, answer: Answer, reply: Reply): Response {
  return {
    status: answer.status,
    ok: answer.status >= 200 && answer.status < 300,
    headers: reply.headers,
    body: reply.body,
    token: operation.token,
    maxTokenSeen: answer.maxSeen,
    replayed: answer.replayed,
    origin: operation.origin ?? "",
    tries: operation.tries,
    idempotencyKey: operation.key,
  };
}
