-- Does: put claimed tasks on their streams; one whose time to live has passed ends instead. Each under its own pcall.
-- KEYS: 1 schedule · 2 claims
-- ARGV: 7 wait before another try with one that cannot be placed (ms) · ids…
-- Returns: {released, problems, ended}
-- Publishes: TASK_QUEUED (was delayed), TASK_RETRIED (was retrying), TASK_EXPIRED, TASK_DEAD_LETTERED (no record to run)
local released, problems, ended, woken = 0, {}, {}, {}
-- A scheduled task without a record that can be run becomes a dead letter with what is left of it.
local function set_aside(id, r, why)
  local known = type(r[2]) == 'string' and #r[2] <= 64 and find(r[2], '^[a-z0-9][a-z0-9_-]*$')
  local t = { id = id, queue = known and r[2] or '', type = r[3] or '', payload = r[4] or '{}', attempt = whole(r[5]) and r[5] or '0',
    max_attempts = r[6] or '1', priority = r[7] or '5', timeout_ms = r[8] or '0', key = r[9] or '',
    error = 'quarantined: ' .. why, error_class = 'Quarantined', retryable = '0' }
  local record = { 'status', 'dead_lettered', 'finished_at', NOW_MS, 'error_class', t.error_class, 'error_message', t.error, 'letter', bury(t) }
  if not r[1] then
    record[#record + 1] = 'queue'
    record[#record + 1] = ''
    for name, value in pairs({ task_id = id, task_type = '', fence = '0', attempt = '0', max_attempts = '1', priority = '5', created_at = NOW_MS }) do
      record[#record + 1] = name
      record[#record + 1] = value
    end
  end
  call('HSET', TASK .. id, unpack(record))
  call('EXPIRE', TASK .. id, RETENTION)
  if known then
    bump(t.queue, r[1], -1)
    bump(t.queue, 'dead_lettered', 1)
    bump(t.queue, 'quarantined', 1)
    publish('TASK_DEAD_LETTERED', id, t.queue, t.type, t.attempt)
  end
  call('ZREM', KEYS[2], id)
  problems[#problems + 1] = id .. ': ' .. why
end

local function release(id)
  -- No claim, no release: a late request of an earlier leader changes nothing.
  if not call('ZSCORE', KEYS[2], id) then return end
  local key = TASK .. id
  local r = call('HMGET', key, 'status', 'queue', 'task_type', 'payload', 'attempt', 'max_attempts', 'priority', 'timeout_ms',
    'idempotency_key', 'expires_at')
  local status, queue = r[1], r[2]
  if not status then return set_aside(id, r, 'scheduled, but the task has no record') end
  if status ~= 'pending' and status ~= 'retrying' then
    call('ZREM', KEYS[2], id)
    return
  end
  if not (queue and #queue <= 64 and find(queue, '^[a-z0-9][a-z0-9_-]*$') and r[3] and r[4] and whole(r[5]) and whole(r[6]) and find(r[7] or '', '^%d$')
    and whole(r[8])) then
    return set_aside(id, r, 'scheduled, but its record cannot be read')
  end
  sound(queue)
  local t = { id = id, queue = queue, type = r[3], attempt = r[5], key = r[9] or '', from = status }
  local expires = tonumber(r[10] or '') or 0
  if status == 'pending' and expires > 0 and expires <= NOW then
    finish(t, 'expired')
    ended[#ended + 1] = { id, queue, r[3], 'expired' }
    call('ZREM', KEYS[2], id)
    return
  end
  local entry = call('XADD', stream_of(queue, r[7]), '*', 'task_id', id, 'queue', queue, 'task_type', r[3], 'payload', r[4],
    'attempt', int(r[5] + 1), 'max_attempts', r[6], 'priority', r[7], 'timeout_ms', r[8], 'idempotency_key', t.key)
  call('HSET', key, 'status', 'queued', 'entry_id', entry)
  call('EXPIRE', key, RETENTION)
  idem(queue, t.key, id, 'processing')
  bump(queue, status, -1)
  bump(queue, 'queued', 1)
  publish(status == 'retrying' and 'TASK_RETRIED' or 'TASK_QUEUED', id, queue, r[3], r[5])
  call('ZREM', KEYS[2], id)
  released = released + 1
  woken[queue] = true
end

for i = 8, #ARGV do
  local ok, err = pcall(release, ARGV[i])
  if not ok then
    problems[#problems + 1] = ARGV[i] .. ': ' .. reason(err)
    call('ZADD', KEYS[1], int(NOW + ARGV[7]), ARGV[i])
    call('ZREM', KEYS[2], ARGV[i])
  end
end
flush()
for queue in pairs(woken) do wake(queue) end
return { released, problems, ended }
