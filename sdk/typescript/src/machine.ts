/**
 * The retry decision, pure: no I/O, no clock, no random numbers.
 *
 * Instants are milliseconds on the driver's clock; `jitter` is a number in [0, 1) that the driver draws; `budget` is
 * what is left of the retries that all operations of a client share. The rules are those of the Python SDK's machine
 * (fencegate/client/machine.py, whose table says what follows from what); ../conformance holds both to them.
 *
 * What holds, whatever the answers are: nothing is sent at or after the deadline, to an origin outside the list, or from
 * https down to http; the idempotency key never changes; without one nothing is sent again once an outcome is unknown;
 * and a failure other than "outcome_unknown" says that nothing was applied.
 */

import type { Answer, Lost } from "./answers.js";

export interface Policy {
  origins: readonly string[];
  maxTries: number;
  maxHops: number;
  backoffBase: number;
  backoffCap: number;
  retryAfterCap: number;
}

export interface Operation {
  readonly deadline: number;
  readonly origin: string | null;
  readonly token: bigint | null;
  readonly key: string | null;
  readonly read: boolean;
  /** The token is the caller's own term and cannot be replaced. */
  readonly pinned: boolean;
  readonly tries: number;
  readonly hops: number;
  readonly rounds: number;
  /** The highest token heard of. */
  readonly floor: bigint;
  /** Some try may have been applied. */
  readonly unknown: boolean;
  readonly code: string;
  readonly hint: string | null;
  /** What goes with the token that it was given for. */
  readonly grant: string | null;
  /** How many grants were refused and replaced. */
  readonly renewed: number;
}

export type FailureKind =
  | "stale"
  | "not_leader"
  | "no_leader"
  | "refused"
  | "outcome_unknown"
  | "deadline"
  | "exhausted";

export type Decision =
  | { do: "done"; replayed: boolean }
  | { do: "send"; operation: Operation; notBefore: number; cost: number }
  | { do: "rediscover"; operation: Operation; notBefore: number }
  | { do: "fail"; kind: FailureKind; operation: Operation };

/** What discovery found: a leader under a token, told by the gateway at `via`; or nobody, and why. */
export type Discovery =
  | { found: true; via: string; leader: string | null; token: bigint; grant: string | null }
  | { found: false; code: string; retryAfter: number | null; final: boolean };

export interface Circumstances {
  now: number;
  jitter: number;
  budget: number;
}

/** New grants in one operation: with a clock that is wrong a client must not go round in a circle. */
const MAX_RENEWED = 2;
/** Refusals that a new grant answers. */
const RENEWABLE: ReadonlySet<string> = new Set(["grant_required", "grant_expired"]);

const BY_CODE: Readonly<Record<string, FailureKind>> = {
  stale_token: "stale",
  not_leader: "not_leader",
  no_leader: "no_leader",
  draining: "no_leader",
};

export class Machine {
  constructor(private readonly policy: Policy) {}

  /** The first decision on a new operation. */
  begin(operation: Operation, now: number): Decision {
    if (now >= operation.deadline) return this.fail(operation, null, true);
    if (operation.pinned && operation.origin === null) {
      // The token is at hand, and a hint corrects a wrong origin: no discovery is needed.
      return { do: "send", operation: { ...operation, origin: this.policy.origins[0] ?? null }, notBefore: now, cost: 0 };
    }
    if (operation.origin === null) return { do: "rediscover", operation, notBefore: now };
    return { do: "send", operation, notBefore: now, cost: 0 };
  }

  /** What follows from a discovery. */
  found(operation: Operation, result: Discovery, at: Circumstances): Decision {
    if (!result.found) {
      operation = { ...operation, code: result.code || operation.code || "unreachable" };
      if (result.final) return this.fail(operation, "refused");
      if (operation.read) {
        const pause = operation.tries > 0 ? this.pause(operation, null, at) : 0;
        return this.again(operation, operation.origin ?? this.policy.origins[0] ?? null, pause, at, 1);
      }
      return this.rediscover(operation, result.retryAfter, at);
    }
    const chosen = this.mayGo(result.via, result.leader) ? result.leader : result.via;
    if (result.token < known(operation) || !this.mayGo(operation.origin, chosen)) {
      return this.rediscover(operation, null, at);
    }
    const newer = result.token > (operation.token ?? 0n) || RENEWABLE.has(operation.code);
    const cost = newer && !operation.read ? 0 : 1;
    const pause = operation.tries > 0 ? this.spread(at) : 0;
    return this.again({ ...operation, token: result.token, grant: result.grant }, chosen, pause, at, cost);
  }

  /** What follows from one try of `operation`; this counts the try. */
  observe(operation: Operation, answer: Answer | Lost, at: Circumstances): Decision {
    operation = { ...operation, tries: operation.tries + 1 };
    if ("lost" in answer) return this.lost(operation, answer, at);
    if (answer.outcome === null) {
      if (operation.read && answer.complete) return { do: "done", replayed: false };
      return this.unknown(operation, "not_the_gateway", answer.retryAfter, at);
    }
    operation = { ...operation, code: answer.outcome, hint: answer.leader ?? operation.hint };
    if (answer.outcome === "accepted") {
      if (answer.complete) return { do: "done", replayed: answer.replayed };
      return this.unknown(operation, "answer_lost", null, at);
    }
    if (answer.applied !== "no") {
      if (answer.retry === "never") return this.fail({ ...operation, unknown: !operation.read });
      return this.unknown(operation, answer.outcome, answer.retryAfter, at);
    }
    return this.refused(operation, answer, at);
  }

  /** The failure of an operation that the driver itself ends. */
  giveUp(operation: Operation, code: string): Decision {
    return this.fail({ ...operation, code });
  }

  /** Asked right before a send: the wait may have taken longer than it should. */
  expired(operation: Operation, now: number): Decision | null {
    return now >= operation.deadline ? this.fail(operation, null, true) : null;
  }

  /** A refusal that promises that nothing was applied by this try. */
  private refused(operation: Operation, answer: Answer, at: Circumstances): Decision {
    if (answer.retry === "never") return this.fail(operation, "refused");
    if (RENEWABLE.has(operation.code)) return this.ungranted(operation, answer, at);
    if (answer.retry === "rediscover") return this.moved(operation, answer, at);
    const handover = answer.outcome === "no_leader" || answer.outcome === "draining";
    if (handover && !operation.pinned && !operation.read) {
      operation = { ...operation, floor: max(operation.floor, answer.maxSeen) };
      return this.rediscover(operation, answer.retryAfter, at);
    }
    return this.again(operation, operation.origin, this.pause(operation, answer.retryAfter, at), at, 1);
  }

  /** The token may be the right one: what is wanting is a grant, or a fresh one. */
  private ungranted(operation: Operation, answer: Answer, at: Circumstances): Decision {
    if (operation.renewed >= MAX_RENEWED) return this.fail(operation, "refused");
    let pause = this.spread(at);
    if (operation.renewed > 0) pause = Math.max(this.policy.backoffBase, this.pause(operation, answer.retryAfter, at));
    operation = { ...operation, renewed: operation.renewed + 1 };
    if (operation.pinned) return this.again(operation, operation.origin, pause, at, 0);
    return this.askedAt({ ...operation, grant: null }, pause, at);
  }

  private lost(operation: Operation, lost: Lost, at: Circumstances): Decision {
    if (lost.sent && !operation.read) return this.unknown(operation, "answer_lost", null, at);
    operation = { ...operation, code: lost.sent ? "answer_lost" : "unreachable" };
    if (operation.read || operation.pinned) {
      return this.again(operation, this.nextOrigin(operation.origin), this.pause(operation, null, at), at, 1);
    }
    return this.rediscover(operation, null, at);
  }

  /** This try may have been applied. Only an idempotency key makes it safe to ask again. */
  private unknown(operation: Operation, code: string, retryAfter: number | null, at: Circumstances): Decision {
    operation = { ...operation, code, unknown: !operation.read };
    if (operation.key === null && !operation.read) return this.fail(operation);
    const origin = operation.read ? this.nextOrigin(operation.origin) : operation.origin;
    return this.again(operation, origin, this.pause(operation, retryAfter, at), at, 1);
  }

  private moved(operation: Operation, answer: Answer, at: Circumstances): Decision {
    const token = this.hintedToken(operation, answer);
    if (operation.pinned && token !== operation.token) return this.fail(operation);
    operation = { ...operation, floor: max(operation.floor, answer.maxSeen) };
    if (token === null) return this.rediscover(operation, answer.retryAfter, at);
    operation = { ...operation, hops: operation.hops + 1 };
    const pause = Math.min((answer.retryAfter ?? 0) * 1000, this.policy.retryAfterCap) + this.spread(at);
    if (operation.grant !== null && token !== operation.token) {
      // A hint carries no grant, and ours is for another token: the grant of the newer one is asked for.
      return this.askedAt({ ...operation, grant: null, floor: max(operation.floor, token) }, pause, at);
    }
    operation = { ...operation, token: token > 0n ? token : null };
    return this.again(operation, answer.leader, pause, at, 0);
  }

  /** The token to present at the hint (0: none is needed), or null where the hint is not to be followed. */
  private hintedToken(operation: Operation, answer: Answer): bigint | null {
    if (operation.hops >= this.policy.maxHops || !this.mayGo(operation.origin, answer.leader)) return null;
    const heard = max(known(operation), answer.maxSeen);
    if (answer.leaderToken !== null && answer.leaderToken < heard) return null;
    const token = max(heard, answer.leaderToken);
    const grown = token > (operation.token ?? 0n);
    if (!grown && (answer.outcome === "stale_token" || answer.leader === operation.origin)) return null;
    return token;
  }

  private rediscover(operation: Operation, retryAfter: number | null, at: Circumstances): Decision {
    // Never shorter than the base: a discovery that finds nothing must not become a busy loop.
    const pause = Math.max(this.policy.backoffBase, this.pause(operation, retryAfter, at));
    return this.askedAt({ ...operation, rounds: operation.rounds + 1 }, pause, at);
  }

  private askedAt(operation: Operation, pause: number, at: Circumstances): Decision {
    if (operation.tries >= this.policy.maxTries) return this.fail(operation);
    if (at.now + pause >= operation.deadline) return this.fail(operation, null, true);
    return { do: "rediscover", operation, notBefore: at.now + pause };
  }

  private again(operation: Operation, origin: string | null, pause: number, at: Circumstances, cost: number): Decision {
    cost = operation.tries > 0 ? cost : 0;
    if (operation.tries >= this.policy.maxTries || at.budget < cost) return this.fail(operation);
    if (at.now + pause >= operation.deadline) return this.fail(operation, null, true);
    return { do: "send", operation: { ...operation, origin }, notBefore: at.now + pause, cost };
  }

  /** The failure with the reason that the caller can act on: the last problem's, not merely "time is up". */
  private fail(operation: Operation, kind: FailureKind | null = null, outOfTime = false): Decision {
    if (operation.unknown) return { do: "fail", kind: "outcome_unknown", operation };
    const otherwise = outOfTime ? "deadline" : "exhausted";
    return { do: "fail", kind: kind ?? BY_CODE[operation.code] ?? otherwise, operation };
  }

  private mayGo(source: string | null, target: string | null): boolean {
    if (target === null || !this.policy.origins.includes(target)) return false;
    return !(source !== null && source.startsWith("https:") && target.startsWith("http:"));
  }

  /** The next of the list that may be gone to; the same where there is no other. */
  private nextOrigin(origin: string | null): string | null {
    const start = origin === null ? 0 : this.policy.origins.indexOf(origin) + 1;
    const around = [...this.policy.origins.slice(start), ...this.policy.origins.slice(0, start)];
    return around.find((other) => this.mayGo(origin, other)) ?? origin;
  }

  /** Full jitter over a doubling window, on top of what the server asked for (capped). */
  private pause(operation: Operation, retryAfter: number | null, at: Circumstances): number {
    const doublings = Math.min(operation.tries + operation.rounds, 30);
    const asked = Math.min((retryAfter ?? 0) * 1000, this.policy.retryAfterCap);
    const window = Math.min(this.policy.backoffCap, Math.max(asked / 2, this.policy.backoffBase * 2 ** doublings));
    return asked + at.jitter * window;
  }

  /** A little jitter before a free try, so that a whole population does not move in one instant. */
  private spread(at: Circumstances): number {
    return at.jitter * this.policy.backoffBase;
  }
}

function known(operation: Operation): bigint {
  return max(operation.floor, operation.token);
}

function max(one: bigint, other: bigint | null): bigint {
  return other !== null && other > one ? other : one;
}
