-- Does: give started tasks whose handler never began back to the peers: RUNNING → QUEUED, attempt − 1, next fence, a new entry.
-- KEYS: 1 ledger of the first task's queue (routing)
-- ARGV: 7 worker · 8 n, then per task: task_id queue band entry_id fence
-- Returns: per task OK, LOST, or ERROR text
-- Publishes: TASK_QUEUED, TASK_CANCELLED (somebody asked for it meanwhile)
local woken = {}
local function hand_back(i)
  local id, queue, band, entry, fence = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  local key, stream = TASK .. id, stream_of(queue, band)
  local r = call('HMGET', key, 'fence', 'status', 'attempt', 'task_type', 'payload', 'max_attempts', 'timeout_ms', 'idempotency_key', 'cancel_requested')
  if r[1] ~= fence or r[2] ~= 'running' then return 'LOST' end
  sound(queue)
  if r[9] == '1' then
    finish({ id = id, queue = queue, type = r[4], attempt = r[3], key = r[8] or '', from = 'running', worker = ARGV[7] }, 'cancelled')
    drop(stream, entry)
    return 'OK'
  end
  local new = call('XADD', stream, '*', 'task_id', id, 'queue', queue, 'task_type', r[4], 'payload', r[5], 'attempt', r[3],
    'max_attempts', r[6], 'priority', band, 'timeout_ms', r[7], 'idempotency_key', r[8])
  local attempt = int(r[3] - 1)
  call('HSET', key, 'status', 'queued', 'attempt', attempt, 'fence', int(r[1] + 1), 'entry_id', new)
  call('HDEL', key, 'started_at', 'worker_id')
  call('EXPIRE', key, RETENTION)
  bump(queue, 'running', -1)
  bump(queue, 'queued', 1)
  bump(queue, 'handed_back', 1)
  publish('TASK_QUEUED', id, queue, r[4], attempt)
  woken[queue] = true
  drop(stream, entry)
  return 'OK'
end

local answers = each(9, tonumber(ARGV[8]), 5, hand_back)
for queue in pairs(woken) do wake(queue) end
return answers
