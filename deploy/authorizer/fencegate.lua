-- Asks fencegate whether a write may pass, and answers with its refusal, status, headers and body as they are.
-- Nothing has been forwarded when this decides: where fencegate cannot be asked, "nothing was applied" is true.

local SENT = { "x-fencing-token", "x-fencing-grant", "idempotency-key", "early-data", "x-fencing-timeout-ms" }
local NOT_COPIED = { ["content-length"] = true, ["transfer-encoding"] = true, ["connection"] = true, ["date"] = true }

local function lines(values)
    local list, i = {}, 0
    while values[i] do
        list[#list + 1] = values[i]
        i = i + 1
    end
    return list
end

local function closed(txn)
    local reply = txn:reply()
    reply:set_status(503)
    reply:add_header("Content-Type", "application/problem+json")
    reply:add_header("Cache-Control", "no-store")
    reply:add_header("Retry-After", "1")
    reply:add_header("X-Fencing-Outcome", "fence_unavailable")
    reply:add_header("X-Fencing-Applied", "no")
    reply:add_header("X-Fencing-Retry", "after-delay")
    reply:set_body('{"type":"urn:fencegate:problem:fence_unavailable","title":"Fence cannot be consulted","status":503,'
        .. '"detail":"The authorizer did not answer.","code":"fence_unavailable","retryable":true,"retry":"after-delay",'
        .. '"applied":"no","retry_after_ms":1000}')
    txn:done(reply)
end

core.register_action("fencegate", { "http-req" }, function(txn, url)
    local given, asked = txn.http:req_get_headers(), {}
    for _, name in ipairs(SENT) do
        if given[name] then
            asked[name] = lines(given[name])  -- each line: a token that comes twice is refused, and must be seen twice
        end
    end
    local done, answer = pcall(function()
        return core.httpclient():get { url = url, headers = asked, timeout = 6000 }
    end)
    if not done or not answer or not answer.status or answer.status == 0 then
        return closed(txn)
    end
    local headers = answer.headers or {}
    if answer.status == 200 and headers["x-fencing-outcome"] then
        txn:set_var("txn.fencing_admitted", true)
        local seen = headers["x-fencing-max-seen"]
        if seen then txn:set_var("txn.fencing_max_seen", seen[0]) end
        return
    end
    if not headers["x-fencing-outcome"] then
        return closed(txn)  -- not fencegate's answer
    end
    local reply = txn:reply()
    reply:set_status(answer.status)
    for name, values in pairs(headers) do
        if not NOT_COPIED[name] then
            for _, value in ipairs(lines(values)) do reply:add_header(name, value) end
        end
    end
    reply:set_body(answer.body or "")
    txn:done(reply)
end, 1)
