export { FencedClient, FencedError, type Request, type Response, type Settings, type World } from "./client.js";
export type { FailureKind } from "./machine.js";
