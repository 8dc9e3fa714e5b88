-- Does: names, the clock, the ledger, the feed and the end of a task, for every script; put in front of each of them.
-- Frame of every call: ARGV 1 prefix · 2 now_ms (0 = the server's clock) · 3 first 24 characters of this call's event ids ·
-- 4 retention_s · 5 idempotency ttl_s · 6 dead letters kept (0 = off) · 7… the script's own.
local P, NOW, SEED = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local RETENTION, IDEM_TTL, DLQ_MAXLEN = tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6])
local call, try, fmt, floor = redis.call, redis.pcall, string.format, math.floor
local find, sub = string.find, string.sub
if NOW == 0 then
  local t = call('TIME')
  NOW = t[1] * 1000 + floor(t[2] / 1000)
end
local small = {}
local function int(n)
  local s = small[n] or fmt('%.0f', n)
  small[n] = s
  return s
end
-- A whole number as Python reads it; Lua alone would take 5.0, 3e4 and 0x1f too.
local function whole(s, low, high)
  local n = s and #s <= 15 and find(s, '^%d+$') and tonumber(s)
  return n and n >= (low or 0) and n <= (high or n) and n or nil
end
-- A counter; one that is no number spoils itself only, and the audit names it.
local function count(s) return type(s) ~= 'table' and tonumber(s or 0) or 0 end
local NOW_MS = int(NOW)
local TASK, SCHEDULE, CLAIMED = P .. ':task:', P .. ':retry:schedule', P .. ':retry:claimed'
local DEAD, CANCELLED = P .. ':stream:dead-letter', P .. ':cancelled'
local function stream_of(queue, band) return P .. ':stream:' .. queue .. ':p' .. band end

-- ISO 8601 of NOW, computed once per call (days to civil date, proleptic Gregorian).
local iso_text
local function iso()
  if not iso_text then
    local s = floor(NOW / 1000)
    local z = floor(s / 86400) + 719468
    local r = s % 86400
    local era = floor(z / 146097)
    local doe = z - era * 146097
    local yoe = floor((doe - floor(doe / 1460) + floor(doe / 36524) - floor(doe / 146096)) / 365)
    local doy = doe - (365 * yoe + floor(yoe / 4) - floor(yoe / 100))
    local mp = floor((5 * doy + 2) / 153)
    local m = mp < 10 and mp + 3 or mp - 9
    iso_text = fmt('%04d-%02d-%02dT%02d:%02d:%02d.%03d+00:00', yoe + era * 400 + (m <= 2 and 1 or 0), m,
      doy - floor((153 * mp + 2) / 5) + 1, floor(r / 3600), floor(r % 3600 / 60), r % 60, NOW % 1000)
  end
  return iso_text
end

local quoted = {}
local function quote(s)
  local q = quoted[s]
  if not q then
    q = find(s, '[%c"\\]') and cjson.encode(s) or '"' .. s .. '"'
    quoted[s] = q
  end
  return q
end

-- One event. A missing channel right or a feed without readers never fails a task: the reply is not looked at.
-- What is the same for many tasks of a call is put together once.
local CHANNEL, events, event_head, event_ts, middles = P .. ':events', 0, '{"event_id":"' .. SEED, nil, {}
local function publish(kind, id, queue, task_type, attempt, worker, metadata)
  events = events + 1
  event_ts = event_ts or '","ts":"' .. iso() .. '","type":"'
  local of_queue = middles[queue]
  if not of_queue then
    of_queue = {}
    middles[queue] = of_queue
  end
  local middle = of_queue[task_type]
  if not middle then
    middle = '","queue":"' .. queue .. '","task_type":' .. quote(task_type) .. ',"attempt":'
    of_queue[task_type] = middle
  end
  try('PUBLISH', CHANNEL, event_head .. fmt('%012x', events) .. event_ts .. kind .. '","task_id":"' .. id .. middle .. attempt
    .. ',"worker_id":' .. (worker and worker ~= '' and quote(worker) or 'null') .. (metadata and ',"metadata":' .. metadata .. '}' or '}'))
end

-- The ledger: changes are summed up per call and written once, in flush().
local bumps = {}
local function bump(queue, field, n)
  local q = bumps[queue]
  if not q then
    q = {}
    bumps[queue] = q
  end
  q[field] = (q[field] or 0) + n
end
-- Scripts do not roll back, so a ledger that cannot be written must show before the first write.
local sound_queues = {}
local function sound(queue)
  if not sound_queues[queue] then
    call('HLEN', P .. ':ledger:' .. queue)
    sound_queues[queue] = true
  end
end
local function flush()
  for queue, fields in pairs(bumps) do
    for field, n in pairs(fields) do
      -- A field that is no number spoils itself only; the audit names it.
      if n ~= 0 then try('HINCRBY', P .. ':ledger:' .. queue, field, n) end
    end
  end
  bumps = {}
end

-- One token, so that exactly one idle worker comes and looks. Lost or expired it costs a second: idle workers look anyway.
local function wake(queue)
  local key = P .. ':wake:' .. queue
  if try('LLEN', key) == 0 then
    call('LPUSH', key, '1')
    call('EXPIRE', key, 600)
  end
end

-- The idempotency record of a task, if it still names that task; `create` makes a missing one.
local function idem(queue, key, id, state, create)
  if not key or key == '' then return end
  local name = P .. ':idempotency:' .. queue .. ':' .. key
  local now = try('GET', name)
  if (not now and create) or (type(now) == 'string' and find(now, '"' .. id .. '"', 1, true)) then
    call('SET', name, '{"task_id":"' .. id .. '","state":"' .. state .. '","updated_at":"' .. iso() .. '"}', 'EX', IDEM_TTL)
  end
end

local function drop(stream, id)
  call('XACK', stream, 'workers', id)
  call('XDEL', stream, id)
end

-- Ends task t {id queue type key attempt from worker}: record, retention, key, ledger, event; `…` are more hash fields.
local END_EVENT = { succeeded = 'TASK_SUCCEEDED', failed = 'TASK_FAILED', dead_lettered = 'TASK_DEAD_LETTERED',
  cancelled = 'TASK_CANCELLED', expired = 'TASK_EXPIRED' }
local function finish(t, status, ...)
  call('HSET', TASK .. t.id, 'status', status, 'finished_at', NOW_MS, ...)
  call('EXPIRE', TASK .. t.id, RETENTION)
  if t.key ~= '' then idem(t.queue, t.key, t.id, status == 'succeeded' and 'completed' or 'failed') end
  bump(t.queue, t.from, -1)
  bump(t.queue, status, 1)
  publish(END_EVENT[status], t.id, t.queue, t.type, t.attempt, t.worker)
end

-- The earlier attempts of this life as JSON lines, `line` added; the oldest go once there are nine.
local function remember(key, line)
  local lines = call('HGET', key, 'history') or ''
  local _, n = string.gsub(lines, '\n', '')
  while n >= 9 do
    lines = sub(lines, find(lines, '\n', 1, true) + 1)
    n = n - 1
  end
  return lines .. line .. '\n'
end

-- What an administrator did, in the same breath as the deed; `audited` shows before the first write that it can be written.
local function audited(actor) return actor == '' or call('XLEN', P .. ':stream:audit') end
local function audit(actor, action, task_id, request_id, detail)
  if actor == '' then return end
  call('XADD', P .. ':stream:audit', 'MAXLEN', '~', 10000, '*', 'actor', actor, 'action', action, 'task_id', task_id,
    'ts', iso(), 'request_id', request_id, 'detail', detail or '')
end

-- A field of a flat name, value, name, value … list.
local function value_of(fields, name)
  for i = 1, #fields, 2 do
    if fields[i] == name then return fields[i + 1] end
  end
end

local function reason(err) return type(err) == 'table' and err.err or tostring(err) end

-- Runs fn(index of its first argument) for each item of a batch under its own pcall, then writes the ledger.
local function each(first, count, stride, fn)
  local answers = {}
  for n = 0, count - 1 do
    local ok, answer = pcall(fn, first + n * stride)
    answers[n + 1] = ok and answer or 'ERROR ' .. reason(answer)
  end
  flush()
  return answers
end
