-- Does: write tasks that passed validation: record, entry or schedule member, idempotency key, counters. Each for itself; a refused one leaves nothing.
-- KEYS: 1 ledger of the first task's queue (routing)
-- ARGV: 7 max_depth · 8 max_scheduled · 9 max_queues · 10 default timeout_ms · 11 max_payload · 12 default attempts · 13 n, then per task:
--   task_id queue task_type payload key max_attempts(0) priority(-1) timeout_ms(0) delay_ms metadata ttl_ms ask trace; ask: 0 the type is
--   known, 1 it is unknown if workers of the queue announced others only, 2 it is unknown unless announced
-- Returns: per task {code, task_id, status or detail}: OK DUPLICATE IN_PROGRESS FULL SCHEDULE_FULL QUEUE_LIMIT UNKNOWN TOO_LARGE ERROR
-- Publishes: TASK_QUEUED
local MAX_DEPTH, MAX_SCHEDULED, MAX_QUEUES = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local woken = {}

local function earlier_task(id, queue, key)
  local record = call('GET', P .. ':idempotency:' .. queue .. ':' .. key)
  local named = record and string.match(record, '"task_id":%s*"(%x+)"')
  if not named then return end
  local status = call('HGET', TASK .. named, 'status')
  -- A record whose task is gone is taken over (decision 10).
  if not status then return end
  if named == id then return { 'OK', id, status } end
  return { TERMINAL[status] and 'DUPLICATE' or 'IN_PROGRESS', named, status }
end

local function submit(i)
  local id, queue, task_type, payload, key = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  local attempts, priority, timeout = ARGV[i + 5], ARGV[i + 6], ARGV[i + 7]
  local delay, metadata, ttl = tonumber(ARGV[i + 8]), ARGV[i + 9], tonumber(ARGV[i + 10])
  local ledger = P .. ':ledger:' .. queue
  local c = call('HMGET', ledger, 'queued', 'running', 'pending', 'retrying', 'submitted')
  local policy = try('HMGET', P .. ':queue:' .. queue .. ':policy', 'max_depth', 'max_payload_bytes', 'max_attempts', 'default_priority',
    'default_timeout_ms')
  if policy.err then policy = {} end
  -- This very submission was written before and its answer was lost.
  if call('EXISTS', TASK .. id) == 1 then return { 'OK', id, call('HGET', TASK .. id, 'status') } end
  if key ~= '' then
    local earlier = earlier_task(id, queue, key)
    if earlier then return earlier end
  end
  local mine = bumps[queue] or {}
  local queued, pending = count(c[1]) + (mine.queued or 0), count(c[3]) + (mine.pending or 0)
  if #payload > (whole(policy[2]) or tonumber(ARGV[11])) then return { 'TOO_LARGE', id, policy[2] or ARGV[11] } end
  local ask = ARGV[i + 11]
  if ask ~= '0' then
    local types = P .. ':queue:' .. queue .. ':task_types'
    if not call('ZSCORE', types, task_type) and (ask == '2' or call('ZCARD', types) > 0) then return { 'UNKNOWN', id, '' } end
  end
  local known = c[5] or mine.submitted
  if not known and call('SCARD', P .. ':queues') >= MAX_QUEUES then return { 'QUEUE_LIMIT', id, '' } end
  local depth = queued + count(c[2])
  if delay <= 0 and depth >= (whole(policy[1]) or MAX_DEPTH) then return { 'FULL', id, int(depth) } end
  if delay > 0 and pending + count(c[4]) >= MAX_SCHEDULED then return { 'SCHEDULE_FULL', id, '' } end

  attempts = attempts ~= '0' and attempts or int(whole(policy[3], 1, 1000) or ARGV[12])
  priority = priority ~= '-1' and priority or int(whole(policy[4], 0, 9) or 5)
  timeout = timeout ~= '0' and timeout or int(whole(policy[5], 1, 3600000) or ARGV[10])
  local due, status, entry = int(NOW + delay), 'queued', ''
  if delay > 0 then
    status = 'pending'
    call('ZADD', SCHEDULE, due, id)
  else
    entry = call('XADD', stream_of(queue, priority), '*', 'task_id', id, 'queue', queue, 'task_type', task_type, 'payload', payload,
      'attempt', '1', 'max_attempts', attempts, 'priority', priority, 'timeout_ms', timeout, 'idempotency_key', key)
  end
  -- What every script looks at comes first and is always there: a lookup in a small hash reads it from its start.
  call('HSET', TASK .. id, 'status', status, 'entry_id', entry, 'fence', '0', 'attempt', '0', 'cancel_requested', '0',
    'expires_at', ttl > 0 and int(NOW + ttl) or '0', 'created_at', NOW_MS, 'available_at', due, 'task_id', id, 'queue', queue,
    'task_type', task_type, 'max_attempts', attempts, 'priority', priority, 'timeout_ms', timeout, 'idempotency_key', key,
    'metadata', metadata, 'payload', payload)
  if ARGV[i + 12] ~= '' then call('HSET', TASK .. id, 'trace', ARGV[i + 12]) end
  local wait_s = math.ceil(delay / 1000)
  call('EXPIRE', TASK .. id, RETENTION + wait_s)
  if key ~= '' then
    call('SET', P .. ':idempotency:' .. queue .. ':' .. key,
      '{"task_id":"' .. id .. '","state":"processing","updated_at":"' .. iso() .. '"}', 'EX', int(IDEM_TTL + wait_s))
  end
  try('ZADD', P .. ':tasks:recent', NOW_MS, id)
  if not known then call('SADD', P .. ':queues', queue) end
  bump(queue, 'submitted', 1)
  bump(queue, status, 1)
  if delay <= 0 then
    publish('TASK_QUEUED', id, queue, task_type, 0)
    woken[queue] = true
  end
  return { 'OK', id, status }
end

local answers = {}
for n = 0, ARGV[13] - 1 do
  local ok, answer = pcall(submit, 14 + n * 13)
  if not ok and ARGV[13] == '1' then error(answer) end
  answers[n + 1] = ok and answer or { 'ERROR', ARGV[14 + n * 13], reason(answer) }
end
try('ZREMRANGEBYRANK', P .. ':tasks:recent', 0, -10001)
flush()
for queue in pairs(woken) do wake(queue) end
return answers
