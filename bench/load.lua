-- One closed-loop client for wrk: method, path, token ("" for none), "key" or "nokey", seed, body, members, "good" or "refused".
-- With members, each request goes to a random one: "%d" in the path.
-- The last line is JSON. Where good answers are expected, wrk itself counts those that are not (a status over 399): a function
-- that looks at each would cost the client, which shares the machine, a third of its time. Refusals are told apart here.
local method, path, token, keyed, body
local threads = {}

function setup(thread)
  table.insert(threads, thread)
end

function init(args)
  method, path, token, keyed, body = args[1], args[2], args[3], args[4] == "key", args[6]
  math.randomseed(tonumber(args[5]))
  members = tonumber(args[7])
  fields = " HTTP/1.1\r\nHost: gate.example\r\n"
  if body ~= "" then fields = fields .. "Content-Type: application/json\r\nContent-Length: " .. #body .. "\r\n" end
  if token ~= "" then fields = fields .. "X-Fencing-Token: " .. token .. "\r\n" end
  base = method .. " " .. path .. fields
  fixed = base .. "\r\n" .. body
  good, refused, other = 0, 0, 0
  if args[8] == "refused" then response = count end
end

function request()
  if not keyed then return fixed end
  local key = string.format("%08x-%08x-%08x", math.random(0, 4294967295), math.random(0, 4294967295), math.random(0, 4294967295))
  local head = base
  if members > 0 then head = method .. " " .. string.format(path, math.random(0, members - 1)) .. fields end
  return head .. "Idempotency-Key: " .. key .. "\r\n\r\n" .. body
end

function count(status)
  if status < 300 then good = good + 1 elseif status == 409 then refused = refused + 1 else other = other + 1 end
end

function done(summary, latency)
  local g, r, o = 0, 0, 0
  for _, thread in ipairs(threads) do
    g, r, o = g + thread:get("good"), r + thread:get("refused"), o + thread:get("other")
  end
  local e = summary.errors
  if g + r + o == 0 then g, o = summary.requests - e.status, e.status end
  io.write(string.format(
    '\n{"seconds": %.6f, "good": %d, "refused": %d, "other": %d, "errors": %d, "p50_us": %d, "p99_us": %d}\n',
    summary.duration / 1e6, g, r, o, e.connect + e.read + e.write + e.timeout,
    latency:percentile(50), latency:percentile(99)))
end
