-- Does: write how attempts ended, then acknowledge. Guarded by the fence: whoever lost the task writes nothing.
-- KEYS: 1 ledger of the first task's queue (routing)
-- ARGV: 7 worker · 8 result ttl_s · 9 n, then per task: task_id queue band entry_id fence status task_type attempt key duration_ms
--   result error_class error_message retryable retry_delay_ms record (JSON of the attempt, open at its end) trace ("" = as it is)
-- Returns: per task the status written, LOST (another owner, or no record), ALREADY (this very settlement was written), or ERROR text
-- Publishes: TASK_SUCCEEDED, TASK_RETRY_SCHEDULED, TASK_DEAD_LETTERED, TASK_FAILED, TASK_CANCELLED
-- Entries to acknowledge, per stream: last, and all of a stream at once.
local done = {}
local function settle(i)
  local id, queue, band, entry, fence, status = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5]
  local key = TASK .. id
  local r = call('HMGET', key, 'fence', 'status', 'cancel_requested')
  if r[1] ~= fence then return 'LOST' end
  -- A cancel that was accepted beats a retry and a late success (decision 11).
  if r[3] == '1' then status = 'cancelled' end
  -- A status that is none: whoever takes the entry over sets it aside.
  if not (LIVE[r[2]] or TERMINAL[r[2]]) then return 'LOST' end
  if r[2] ~= 'running' or not LEGAL[r[2] .. '>' .. status] then return 'ALREADY' end
  local stream = stream_of(queue, band)
  local acks = done[stream]
  if not acks then
    call('XLEN', stream)
    sound(queue)
    acks = {}
    done[stream] = acks
  end
  local t = { id = id, queue = queue, type = ARGV[i + 6], attempt = ARGV[i + 7], key = ARGV[i + 8], from = r[2], worker = ARGV[7] }
  if status == 'succeeded' then
    finish(t, status, 'duration_ms', ARGV[i + 9])
    if ARGV[i + 10] ~= '' then call('SET', P .. ':result:' .. id, ARGV[i + 10], 'EX', ARGV[8]) end
  elseif status == 'cancelled' then
    finish(t, status, 'duration_ms', ARGV[i + 9])
  elseif status == 'retrying' then
    local delay = tonumber(ARGV[i + 14])
    local due = int(NOW + delay)
    call('ZADD', SCHEDULE, due, id)
    call('HSET', key, 'status', status, 'finished_at', NOW_MS, 'available_at', due, 'duration_ms', ARGV[i + 9],
      'error_class', ARGV[i + 11], 'error_message', ARGV[i + 12], 'retryable', ARGV[i + 13], 'retry_delay_ms', ARGV[i + 14],
      'entry_id', '', 'history', remember(key, ARGV[i + 15] .. ',"finished_at":' .. NOW_MS .. '}'))
    if ARGV[i + 16] ~= '' then call('HSET', key, 'trace', ARGV[i + 16]) end
    call('EXPIRE', key, int(RETENTION + math.ceil(delay / 1000)))
    idem(queue, t.key, id, 'processing')
    bump(queue, t.from, -1)
    bump(queue, 'retrying', 1)
    bump(queue, 'retried', 1)
    publish('TASK_RETRY_SCHEDULED', id, queue, t.type, t.attempt, t.worker)
  else
    local more = call('HMGET', key, 'payload', 'max_attempts', 'priority', 'timeout_ms')
    t.payload, t.max_attempts, t.priority, t.timeout_ms = more[1] or '{}', more[2] or '', more[3] or band, more[4] or ''
    t.error_class, t.error, t.retryable = ARGV[i + 11], ARGV[i + 12], ARGV[i + 13]
    status = give_up(t, 'duration_ms', ARGV[i + 9])
  end
  acks[#acks + 1] = entry
  return status
end

local answers = each(10, tonumber(ARGV[9]), 17, settle)
for stream, entries in pairs(done) do
  if #entries > 0 then
    call('XACK', stream, 'workers', unpack(entries))
    call('XDEL', stream, unpack(entries))
  end
end
return answers
