-- Does: put claimed tasks on their streams; one whose time to live has passed ends instead. Each under its own pcall.
-- KEYS: 1 schedule · 2 claims
-- ARGV: 7 wait before another try with one that cannot be placed (ms) · ids…
-- Returns: {released, problems, ended}
-- Publishes: TASK_QUEUED (was delayed), TASK_RETRIED (was retrying), TASK_EXPIRED, TASK_DEAD_LETTERED (no record to run)
local released, problems, ended, woken = 0, {}, {}, {}
local function release(id)
  -- No claim, no release: a late request of an earlier leader changes nothing.
  if not call('ZSCORE', KEYS[2], id) then return end
  local key = TASK .. id
  local r = call('HMGET', key, 'status', 'queue', 'task_type', 'payload', 'attempt', 'max_attempts', 'priority', 'timeout_ms',
    'idempotency_key', 'expires_at')
  local status, queue = r[1], r[2]
  if status ~= 'pending' and status ~= 'retrying' then
    if not status then
      -- Its queue is not known any more: what is left is a letter and a record that say so.
      local t = { id = id, queue = '', type = '', payload = '{}', attempt = '0', max_attempts = '1', priority = '5', timeout_ms = '0',
        key = '', error = 'quarantined: scheduled, but the task has no record', error_class = 'Quarantined', retryable = '0' }
      call('HSET', key, 'status', 'dead_lettered', 'fence', '0', 'attempt', '0', 'created_at', NOW_MS, 'finished_at', NOW_MS, 'task_id', id,
        'queue', '', 'task_type', '', 'max_attempts', '1', 'priority', '5', 'error_class', t.error_class, 'error_message', t.error,
        'letter', bury(t))
      call('EXPIRE', key, RETENTION)
      problems[#problems + 1] = id .. ': scheduled, but it has no record'
    end
    call('ZREM', KEYS[2], id)
    return
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
