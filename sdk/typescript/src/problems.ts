/** The registry of problems: what each code promises, whatever its headers say. Held equal to ../conformance/problems.json. */

export type Retry = "never" | "after-delay" | "rediscover" | "if-idempotent";
export type Applied = "no" | "unknown";

export interface Problem {
  status: number;
  retry: Retry;
  applied: Applied;
}

export const PROBLEMS: Readonly<Record<string, Problem>> = {
  token_required: { status: 428, retry: "never", applied: "no" },
  token_malformed: { status: 400, retry: "never", applied: "no" },
  stale_token: { status: 409, retry: "rediscover", applied: "no" },
  not_leader: { status: 409, retry: "rediscover", applied: "no" },
  no_leader: { status: 503, retry: "after-delay", applied: "no" },
  token_not_issued: { status: 403, retry: "never", applied: "no" },
  fence_unavailable: { status: 503, retry: "after-delay", applied: "no" },
  draining: { status: 503, retry: "after-delay", applied: "no" },
  caller_required: { status: 403, retry: "never", applied: "no" },
  caller_not_allowed: { status: 403, retry: "never", applied: "no" },
  grant_required: { status: 428, retry: "rediscover", applied: "no" },
  grant_invalid: { status: 403, retry: "never", applied: "no" },
  grant_expired: { status: 403, retry: "rediscover", applied: "no" },
  idempotency_key_required: { status: 400, retry: "never", applied: "no" },
  idempotency_key_malformed: { status: 400, retry: "never", applied: "no" },
  idempotency_in_progress: { status: 409, retry: "after-delay", applied: "unknown" },
  idempotency_key_reused: { status: 422, retry: "never", applied: "no" },
  too_early: { status: 425, retry: "after-delay", applied: "no" },
  body_too_large: { status: 413, retry: "never", applied: "no" },
  overloaded: { status: 503, retry: "after-delay", applied: "no" },
  outcome_unknown: { status: 502, retry: "if-idempotent", applied: "unknown" },
  request_malformed: { status: 400, retry: "never", applied: "no" },
  body_malformed: { status: 422, retry: "never", applied: "no" },
  request_timeout: { status: 408, retry: "after-delay", applied: "no" },
  headers_too_large: { status: 431, retry: "never", applied: "no" },
  unknown_route: { status: 404, retry: "never", applied: "no" },
  unknown_role: { status: 404, retry: "never", applied: "no" },
  unknown_entry: { status: 404, retry: "never", applied: "no" },
  method_not_allowed: { status: 405, retry: "never", applied: "no" },
  upgrade_refused: { status: 400, retry: "never", applied: "no" },
  rejected_by_function: { status: 422, retry: "never", applied: "no" },
  upstream_unavailable: { status: 503, retry: "after-delay", applied: "no" },
  deadline_exceeded: { status: 503, retry: "after-delay", applied: "no" },
  proof_required: { status: 403, retry: "never", applied: "no" },
  proof_invalid: { status: 403, retry: "never", applied: "no" },
  proof_expired: { status: 409, retry: "after-delay", applied: "no" },
};
