/** The client over real sockets: what Node's fetch makes of refused connections, silence, broken answers and redirects. */

import assert from "node:assert/strict";
import { createServer, type RequestListener, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, test } from "node:test";

import { FencedClient, FencedError } from "../src/index.js";

const servers: Server[] = [];

async function listen(answer: RequestListener): Promise<string> {
  const server = createServer(answer);
  servers.push(server);
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

afterEach(() => {
  for (const server of servers.splice(0)) {
    server.closeAllConnections();
    server.close();
  }
});

/** Leads under token 7, and answers writes by `write`. */
function leading(write: RequestListener, origin: () => string): RequestListener {
  return (request, response) => {
    if (request.url?.startsWith("/.well-known/")) {
      response.end(JSON.stringify({ role: "ledger", leader: { url: origin() }, token: 7 }));
    } else {
      write(request, response);
    }
  };
}

async function failure(work: Promise<unknown>): Promise<FencedError> {
  const error = await work.then(
    () => assert.fail("it went through"),
    (found: unknown) => found,
  );
  assert.ok(error instanceof FencedError, String(error));
  return error;
}

test("a write arrives with token, key and time limit, and its answer comes back whole", async () => {
  const seen: Record<string, unknown>[] = [];
  let origin = "";
  origin = await listen(
    leading((request, response) => {
      seen.push({ ...request.headers });
      response.writeHead(201, { "X-Fencing-Outcome": "accepted", "X-Fencing-Max-Seen": "9223372036854775807" });
      response.end('{"seq":1}');
    }, () => origin),
  );
  const client = new FencedClient({ urls: [origin], role: "ledger" });
  const response = await client.post("/v1/entries", { json: { amount: 1 }, idempotencyKey: "k-1" });
  assert.deepEqual([response.status, response.body, response.token, response.maxTokenSeen], [201, '{"seq":1}', 7n, 9223372036854775807n]);
  assert.equal(seen[0]?.["x-fencing-token"], "7");
  assert.equal(seen[0]?.["idempotency-key"], "k-1");
  assert.ok(Number(seen[0]?.["x-fencing-timeout-ms"]) > 0);
});

test("silence without a key leaves the outcome unknown, and nothing is sent twice", async () => {
  let writes = 0;
  let origin = "";
  origin = await listen(leading(() => void (writes += 1), () => origin));
  const client = new FencedClient({ urls: [origin], role: "ledger", tryTimeoutMs: 300 });
  const error = await failure(client.post("/v1/entries", { json: {}, idempotencyKey: null }));
  assert.deepEqual([error.kind, error.code, writes], ["outcome_unknown", "answer_lost", 1]);
});

test("a broken answer is asked for again with the same key", async () => {
  const keys: unknown[] = [];
  let origin = "";
  origin = await listen(
    leading((request, response) => {
      keys.push(request.headers["idempotency-key"]);
      response.writeHead(201, { "X-Fencing-Outcome": "accepted", "Content-Length": "10" });
      if (keys.length > 1) response.end("0123456789");
      else response.write("012", () => response.destroy());
    }, () => origin),
  );
  const response = await new FencedClient({ urls: [origin], role: "ledger" }).post("/v1/entries", { json: {} });
  assert.equal(response.body, "0123456789");
  assert.equal(keys.length, 2);
  assert.equal(keys[0], keys[1]);
});

test("where nobody listens nothing was applied", async () => {
  const client = new FencedClient({ urls: ["http://127.0.0.1:1"], role: "ledger", deadlineMs: 400 });
  const error = await failure(client.post("/v1/entries", { json: {}, idempotencyKey: null }));
  assert.deepEqual([error.kind, error.code], ["deadline", "unreachable"]);
});

test("a redirect is not followed: token and key stay where they are", async () => {
  let stolen = 0;
  const other = await listen((_, response) => {
    stolen += 1;
    response.end();
  });
  let origin = "";
  origin = await listen(
    leading((_, response) => void response.writeHead(307, { Location: `${other}/v1/entries` }).end(), () => origin),
  );
  const client = new FencedClient({ urls: [origin], role: "ledger" });
  const error = await failure(client.post("/v1/entries", { json: {}, idempotencyKey: null }));
  assert.deepEqual([error.kind, error.code, stolen], ["outcome_unknown", "not_the_gateway", 0]);
});

test("what cannot be sent is refused before anything is sent", async () => {
  assert.throws(() => new FencedClient({ urls: [], role: "ledger" }), /at least one gateway/);
  assert.throws(() => new FencedClient({ urls: ["https://a.example/path"], role: "ledger" }), /not an origin/);
  assert.throws(() => new FencedClient({ urls: ["https://a.example"], role: "a b" }), /role must be/);
  const client = new FencedClient({ urls: ["https://a.example"], role: "ledger" });
  await assert.rejects(client.post("entries"), /path must begin/);
  await assert.rejects(client.post("/v1", { headers: { "X-Fencing-Token": "9" } }), /set by the client/);
  await assert.rejects(client.post("/v1", { json: {}, body: "{}" }), /not both/);
  await assert.rejects(client.post("/v1", { token: 0n }), /token must be/);
  await assert.rejects(client.post("/v1", { idempotencyKey: "with space" }), /idempotency key/);
});
