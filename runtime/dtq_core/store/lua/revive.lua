-- Does: put dead letters back on their queues (requeue): DEAD_LETTERED → QUEUED, attempt 0, the fence goes on. Rebuilds a record that is gone.
-- KEYS: 1 dead letters
-- ARGV: 7 actor · 8 request id · 9 n, then per letter: task_id fence ("" = the record is gone) letter ("" = trimmed) metadata queue
--   task_type payload max_attempts priority timeout_ms key
-- Returns: per letter OK, GONE (no letter and no record), CHANGED (somebody was faster), or ERROR text
-- Publishes: TASK_QUEUED with metadata.requeued
local woken = {}
local function revive(i)
  local id, fence, letter, metadata, queue = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  local key = TASK .. id
  local r = call('HMGET', key, 'status', 'fence', 'discarded')
  if (r[2] or '') ~= fence or (r[1] and r[1] ~= 'dead_lettered') or r[3] then return 'CHANGED' end
  local there = letter ~= '' and #call('XRANGE', KEYS[1], letter, letter) > 0
  if not there and (letter ~= '' or not r[1]) then return r[1] and 'CHANGED' or 'GONE' end
  call('ZCARD', P .. ':queue:' .. queue .. ':dead')
  sound(queue)
  audited(ARGV[7])
  local stream = stream_of(queue, ARGV[i + 8])
  local entry = call('XADD', stream, '*', 'task_id', id, 'queue', queue, 'task_type', ARGV[i + 5], 'payload', ARGV[i + 6], 'attempt', '1',
    'max_attempts', ARGV[i + 7], 'priority', ARGV[i + 8], 'timeout_ms', ARGV[i + 9], 'idempotency_key', ARGV[i + 10])
  if not r[1] then
    call('HSET', key, 'task_id', id, 'queue', queue, 'task_type', ARGV[i + 5], 'payload', ARGV[i + 6], 'created_at', NOW_MS,
      'max_attempts', ARGV[i + 7], 'priority', ARGV[i + 8], 'timeout_ms', ARGV[i + 9], 'idempotency_key', ARGV[i + 10],
      'fence', NOW_MS)
    try('ZADD', P .. ':tasks:recent', NOW_MS, id)
  end
  call('HINCRBY', key, 'fence', 1)
  call('HSET', key, 'status', 'queued', 'attempt', '0', 'available_at', NOW_MS, 'entry_id', entry, 'metadata', metadata,
    'cancel_requested', '0', 'expires_at', '0')
  call('HDEL', key, 'started_at', 'finished_at', 'duration_ms', 'worker_id', 'error_class', 'error_message', 'retryable',
    'retry_delay_ms', 'history', 'deferred_at', 'deferrals', 'letter_gone', 'letter')
  call('EXPIRE', key, RETENTION)
  if letter ~= '' then call('XDEL', KEYS[1], letter) end
  call('ZREM', P .. ':queue:' .. queue .. ':dead', id)
  call('SREM', CANCELLED, id)
  call('SADD', P .. ':queues', queue)
  idem(queue, ARGV[i + 10], id, 'processing', true)
  bump(queue, 'requeued', 1)
  bump(queue, 'queued', 1)
  publish('TASK_QUEUED', id, queue, ARGV[i + 5], 0, nil, '{"requeued":true}')
  audit(ARGV[7], 'dlq.requeue', id, ARGV[8])
  woken[queue] = true
  return 'OK'
end

local answers = each(10, tonumber(ARGV[9]), 11, revive)
for queue in pairs(woken) do wake(queue) end
return answers
