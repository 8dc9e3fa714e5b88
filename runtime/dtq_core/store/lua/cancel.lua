-- Does: cancel tasks that have not started, with their entry or schedule member; ask the worker of a running one to stop.
-- KEYS: 1 record of the first task (routing)
-- ARGV: 7 actor (empty: no audit) · 8 request id · 9 action · 10 leave running ones alone (1) · ids…
-- Returns: per task CANCELLED, REQUESTED, TERMINAL, RUNNING, GONE, or ERROR text
-- Publishes: TASK_CANCELLED; on the owner's nudge channel: look at your tasks
local function cancel(i)
  local id = ARGV[i]
  local key = TASK .. id
  local r = call('HMGET', key, 'status', 'queue', 'task_type', 'attempt', 'idempotency_key', 'priority', 'entry_id', 'worker_id')
  local status, queue = r[1], r[2]
  if not status or not queue then return 'GONE' end
  if TERMINAL[status] then return 'TERMINAL' end
  if status == 'running' then
    if ARGV[10] == '1' then return 'RUNNING' end
    audited(ARGV[7])
    call('HSET', key, 'cancel_requested', '1')
    audit(ARGV[7], ARGV[9], id, ARGV[8], 'requested')
    try('PUBLISH', P .. ':nudge:' .. (r[8] or ''), id)
    return 'REQUESTED'
  end
  call('ZSCORE', SCHEDULE, id)
  call('ZSCORE', CLAIMED, id)
  audited(ARGV[7])
  local stream = status == 'queued' and stream_of(queue, r[6])
  if stream then call('XLEN', stream) end
  sound(queue)
  finish({ id = id, queue = queue, type = r[3] or '', attempt = r[4] or '0', key = r[5] or '', from = status }, 'cancelled')
  call('ZREM', SCHEDULE, id)
  call('ZREM', CLAIMED, id)
  if stream then
    call('XACK', stream, 'workers', r[7] or '')
    -- An entry that is out of reach is absorbed by whoever meets it.
    if call('XDEL', stream, r[7] or '0-1') == 0 then call('SADD', CANCELLED, id) end
  end
  audit(ARGV[7], ARGV[9], id, ARGV[8])
  return 'CANCELLED'
end

return each(11, #ARGV - 10, 1, cancel)
