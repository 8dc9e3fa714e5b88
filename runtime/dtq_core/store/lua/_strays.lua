-- Does: deal with entries that fit no readable record; for the gate and for purge.
-- Whether the streams of a queue hold more than its ledger knows of: an entry that somebody added by hand.
local function uncounted(queue)
  local c, mine, held = call('HMGET', P .. ':ledger:' .. queue, 'queued', 'running'), bumps[queue] or {}, 0
  for band = 0, 9 do
    local length = try('XLEN', stream_of(queue, band))
    held = held + (type(length) == 'number' and length or 0)
  end
  return held > count(c[1]) + count(c[2]) + (mine.queued or 0) + (mine.running or 0)
end

-- An entry nobody can handle becomes a dead letter made by hand, so that its neighbours run and nothing is lost. Returns what to log.
local function set_aside(queue, band, stream, id, fields, why, reclaimed, worker)
  local task_id = value_of(fields, 'task_id') or ''
  local known = #task_id == 32 and not find(task_id, '[^0-9a-f]')
  local t = { id = task_id, queue = queue, type = value_of(fields, 'task_type') or '', key = value_of(fields, 'idempotency_key') or '',
    payload = value_of(fields, 'payload') or '{}', attempt = value_of(fields, 'attempt') or '0',
    max_attempts = value_of(fields, 'max_attempts') or '1', priority = band, timeout_ms = value_of(fields, 'timeout_ms') or '0',
    error = 'quarantined: ' .. why, error_class = 'Quarantined', retryable = '0', worker = worker }
  if not find(t.attempt, '^%d+$') then t.attempt = '0' end
  local status = known and try('HGET', TASK .. task_id, 'status')
  local text = stream .. ' ' .. id .. ' task ' .. task_id .. ': ' .. why
  if TERMINAL[status] then
    bump(queue, 'absorbed', 1)
    drop(stream, id)
    return text
  end
  local letter = bury(t)
  if known then
    if type(status) == 'string' then
      call('HSET', TASK .. task_id, 'status', 'dead_lettered', 'finished_at', NOW_MS, 'error_class', t.error_class, 'error_message', t.error,
        'letter', letter)
    end
    -- Without a readable status nobody knows: an entry that was held most likely ran, one too many was made by hand.
    local from = (status == 'queued' or status == 'running') and status or reclaimed and 'running' or 'queued'
    if not status and uncounted(queue) then bump(queue, 'submitted', 1) else bump(queue, from, -1) end
    bump(queue, 'dead_lettered', 1)
    publish('TASK_DEAD_LETTERED', task_id, queue, t.type, t.attempt, worker)
  end
  bump(queue, 'quarantined', 1)
  drop(stream, id)
  return text
end
