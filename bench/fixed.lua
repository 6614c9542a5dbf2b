-- One closed-loop client for wrk whose requests are all the same (given by wrk.method, -H and below): wrk then runs no
-- script a request, and needs a few microseconds of CPU for it. The last line is JSON.
wrk.method = "POST"
wrk.body = '{"decision":"approve","subject":"order-81723","amount": 1250,"currency":"EUR"}'

function done(summary, latency)
  local e = summary.errors
  io.write(string.format(
    '\n{"seconds": %.6f, "count": %d, "refused": %d, "errors": %d, "p50_us": %d, "p99_us": %d}\n',
    summary.duration / 1e6, summary.requests, e.status, e.connect + e.read + e.write + e.timeout,
    latency:percentile(50), latency:percentile(99)))
end
