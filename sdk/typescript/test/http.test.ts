/** The client over real sockets: what Node's fetch makes of refused connections, silence, broken answers and redirects. */

import assert from "node:assert/strict";
import { createServer, type RequestListener, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, test } from "node:test";

import { parseDocument } from "../src/answers.js";
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

test("a try without an end is told to the gateway as a long one that it takes", async () => {
  const seen: unknown[] = [];
  let origin = "";
  origin = await listen(
    leading((request, response) => {
      seen.push(request.headers["x-fencing-timeout-ms"]);
      response.writeHead(201, { "X-Fencing-Outcome": "accepted" });
      response.end("{}");
    }, () => origin),
  );
  const client = new FencedClient({ urls: [origin], role: "ledger", tryTimeoutMs: Infinity, deadlineMs: Infinity });
  assert.equal((await client.post("/v1/entries", { json: {} })).status, 201);
  assert.deepEqual(seen, ["999999999"]);
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
  const origin = await listen(() => undefined);
  await new Promise((resolve) => servers.pop()?.close(resolve));
  const client = new FencedClient({ urls: [origin], role: "ledger", deadlineMs: 400 });
  for (const own of [{}, { token: 7n }]) {
    const error = await failure(client.post("/v1/entries", { json: {}, idempotencyKey: null, ...own }));
    assert.deepEqual([error.kind, error.code], ["deadline", "unreachable"]);
  }
});

test("a deadline shorter than a try's time leaves time for a try", async () => {
  let writes = 0;
  let origin = "";
  origin = await listen(
    leading((_, response) => {
      writes += 1;
      response.writeHead(201, { "X-Fencing-Outcome": "accepted" }).end("{}");
    }, () => origin),
  );
  const client = new FencedClient({ urls: [origin], role: "ledger", deadlineMs: 5_000.5 });
  const response = await client.post("/v1/entries", { json: {}, idempotencyKey: null });
  assert.deepEqual([response.status, writes], [201, 1]);
});

test("a connection that fails after it was open has sent, whatever its code", async () => {
  const found = JSON.stringify({ role: "ledger", leader: { url: "https://a.example" }, token: 7 });
  for (const [cause, kind] of [
    [{ code: "EHOSTUNREACH", syscall: "read" }, "outcome_unknown"],
    [{ code: "EHOSTUNREACH", syscall: "connect" }, "deadline"],
    [{ code: "ECONNREFUSED", errors: [{ code: "ECONNREFUSED", syscall: "connect" }, { code: "ETIMEDOUT", syscall: "connect" }] }, "deadline"],
  ] as const) {
    const world = {
      fetch: async (url: unknown): Promise<Response> => {
        if (String(url).includes("/.well-known/")) return new Response(found);
        throw new TypeError("fetch failed", { cause });
      },
    };
    const client = new FencedClient({ urls: ["https://a.example"], role: "ledger", deadlineMs: 300, world });
    assert.equal((await failure(client.post("/v1/entries", { json: {}, idempotencyKey: null }))).kind, kind);
  }
});

/** Sends without end, and counts. */
function endless(response: ServerResponse, count: (bytes: number) => void): void {
  const piece = Buffer.alloc(16 * 1024, 0x20);
  const more = (): void => {
    while (!response.destroyed) {
      count(piece.length);
      if (!response.write(piece)) break;
    }
  };
  response.on("drain", more);
  more();
}

test("an answer without end is read up to the limit, and its connection given up", async () => {
  let sent = 0;
  let origin = "";
  origin = await listen(
    leading((_, response) => {
      response.writeHead(201, { "X-Fencing-Outcome": "accepted" });
      endless(response, (bytes) => (sent += bytes));
    }, () => origin),
  );
  const client = new FencedClient({ urls: [origin], role: "ledger", maxAnswerBytes: 100_000 });
  const error = await failure(client.post("/v1/entries", { json: {}, idempotencyKey: null }));
  assert.deepEqual([error.kind, error.code], ["outcome_unknown", "answer_lost"]);
  const by = sent;
  await new Promise((resolve) => setTimeout(resolve, 100));
  assert.ok(sent <= by + 16 * 1024, `${sent - by} bytes more`);
  assert.ok(sent < 64 * 1024 * 1024, `${sent} bytes`);
});

test("a refusal is acted on by its headers, however long its body is or takes", async () => {
  for (const trickle of [true, false]) {
    let origin = "";
    origin = await listen(
      leading((_, response) => {
        response.writeHead(413, { "X-Fencing-Outcome": "body_too_large", "X-Fencing-Applied": "no", "X-Fencing-Retry": "never" });
        if (trickle) response.write(" ");
        else endless(response, () => undefined);
      }, () => origin),
    );
    const began = performance.now();
    const error = await failure(new FencedClient({ urls: [origin], role: "ledger" }).post("/v1/entries", { json: {} }));
    assert.deepEqual([error.kind, error.code], ["refused", "body_too_large"]);
    assert.ok(performance.now() - began < 8_000);
  }
});

test("a long document is read at once, whatever it is", () => {
  const began = performance.now();
  for (const text of ['"' + '\\"'.repeat(100_000), `{"a":"${'\\"'.repeat(100_000)}"}`, "9".repeat(200_000), "[".repeat(200_000)]) {
    assert.deepEqual(Object.keys(parseDocument(text)).length <= 1, true);
  }
  assert.ok(performance.now() - began < 2_000, `${performance.now() - began} ms`);
  assert.deepEqual(parseDocument('{"token": 9223372036854775807, "text": "9223372036854775807", "low": -9223372036854775807}'), {
    token: "9223372036854775807",
    text: "9223372036854775807",
    low: -9223372036854775807,
  });
});

test("a discovery without end is none", async () => {
  let sent = 0;
  const origin = await listen((_, response) => endless(response, (bytes) => (sent += bytes)));
  const client = new FencedClient({ urls: [origin], role: "ledger", deadlineMs: 500, discoveryTimeoutMs: 60_000 });
  const error = await failure(client.post("/v1/entries", { json: {} }));
  assert.deepEqual([error.kind, error.code], ["deadline", "unreachable"]);
  assert.ok(sent < 64 * 1024 * 1024, `${sent} bytes`);
});

test("every try sends the bytes of the call, under one content type", async () => {
  const seen: string[] = [];
  const types: unknown[] = [];
  const body = new TextEncoder().encode('{"amount":1}');
  let origin = "";
  origin = await listen(
    leading((request, response) => {
      let text = "";
      types.push(request.headers["content-type"]);
      request.on("data", (piece: Buffer) => (text += piece.toString())).on("end", () => {
        seen.push(text);
        body.fill(0x39);
        if (seen.length > 1) response.writeHead(201, { "X-Fencing-Outcome": "accepted" }).end("{}");
        else response.destroy();
      });
    }, () => origin),
  );
  const client = new FencedClient({ urls: [origin], role: "ledger" });
  await client.post("/v1/entries", { body, headers: { "content-type": "application/json" } });
  assert.deepEqual(seen, ['{"amount":1}', '{"amount":1}']);
  await client.post("/v1/entries", { json: {}, headers: { "content-type": "application/ledger+json" } });
  assert.equal(types.at(-1), "application/ledger+json");
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
  await assert.rejects(client.post("/v1", { token: 9007199254740993 as unknown as bigint }), /token must be a bigint/);
  await assert.rejects(client.post("/v1", { idempotencyKey: "with space" }), /idempotency key/);
  assert.throws(() => new FencedClient({ urls: ["https://a.example"], role: "ledger", tryTimeoutMs: NaN }), /tryTimeoutMs must be/);
  await assert.rejects(client.post("/v1", { deadlineMs: NaN }), /deadlineMs must be/);
  await assert.rejects(client.post("/v1", { headers: { "X-Note": "two\r\nlines" } }), TypeError);
  await assert.rejects(client.post("/v1", { headers: { "Content-Length": "1" } }), /leave it out/);
  await assert.rejects(client.get("/v1", { body: "{}" }), TypeError);
  await assert.rejects(client.request("CONNECT", "/v1"), TypeError);
  await assert.rejects(client.post("/v1", { body: new ReadableStream() as unknown as string }), /cannot be sent again/);
});
