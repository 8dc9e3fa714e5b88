-- Does: decide about one delivered entry — start it, hand it on, or end it — for fetch and reclaim; each entry under its own pcall.
-- Own arguments: ARGV 7 worker · 8 how long an announcement counts (ms) · 9 visibility (ms).
local WORKER, FRESH_MS, VISIBILITY = ARGV[7], tonumber(ARGV[8]), ARGV[9]
local KNOWN = {}
local tasks, ended, problems, deferred = {}, {}, {}, 0
local cancelled_any = call('SCARD', CANCELLED) > 0

local function quarantine(queue, band, stream, id, fields, why, reclaimed)
  problems[#problems + 1] = set_aside(queue, band, stream, id, fields, why, reclaimed, WORKER)
end

local function handed_over(t, id, fence, created, adopted)
  tasks[#tasks + 1] = { t.priority, id, t.id, t.type, t.payload, t.attempt, t.max_attempts, t.timeout_ms, t.key, fence, created,
    t.queue, adopted, NOW_MS, t.trace, t.trace and (whole(call('HGET', TASK .. t.id, 'available_at')) or '0') }
end

local function start(t, key, fence, created, lost, deferred_at)
  local attempt = t.attempt + 1
  if lost then
    call('HSET', key, 'history', remember(key, '{"attempt":' .. t.attempt .. ',"started_at":' .. (lost[3] or '0')
      .. ',"worker_id":' .. quote(lost[1] or '') .. ',"error_class":"WorkerLost","error_message":"the worker fell silent"}'))
    bump(t.queue, 'redelivered', 1)
  end
  t.attempt = int(attempt)
  call('HSET', key, 'status', 'running', 'attempt', t.attempt, 'fence', int(fence + 1), 'started_at', NOW_MS, 'worker_id', WORKER)
  if attempt > 1 then
    call('HDEL', key, 'finished_at', 'duration_ms', 'error_class', 'error_message', 'retryable', 'retry_delay_ms')
  end
  if deferred_at then call('HDEL', key, 'deferred_at', 'deferrals') end
  idem(t.queue, t.key, t.id, 'processing')
  bump(t.queue, t.from, -1)
  bump(t.queue, 'running', 1)
  bump(t.queue, 'started', 1)
  publish('TASK_STARTED', t.id, t.queue, t.type, t.attempt, WORKER)
  handed_over(t, t.entry, int(fence + 1), created, 0)
end

-- A run that a peer ends is out of reach for its old owner, as if the task had started anew.
local function fence_off(t, key)
  if t.from == 'running' then call('HINCRBY', key, 'fence', 1) end
end

-- A type this worker does not know: put off while a live peer knows it, else it is the end after one attempt (decision 13).
-- After an outage no announcement is fresh, so the peers first get the time to announce theirs again.
local function unknown(t, stream, id, key, owner)
  local announced = tonumber(call('ZSCORE', P .. ':queue:' .. t.queue .. ':task_types', t.type) or '')
  local d = call('HMGET', key, 'deferred_at', 'deferrals')
  local since, n = tonumber(d[1] or NOW), tonumber(d[2] or 0)
  if announced and NOW - since < 300000 and (NOW - announced <= FRESH_MS or NOW - since < FRESH_MS) then
    deferred = deferred + 1
    if t.from == 'running' then
      call('HSET', key, 'deferred_at', int(since))
      call('XCLAIM', stream, 'workers', owner, 0, id, 'IDLE', VISIBILITY, 'JUSTID')
      return
    end
    local due = int(NOW + floor(math.min(30000, 1000 * 1.5 ^ math.min(n, 20))))
    call('HSET', key, 'status', 'pending', 'entry_id', '', 'available_at', due, 'deferred_at', int(since), 'deferrals', int(n + 1))
    call('ZADD', SCHEDULE, due, t.id)
    bump(t.queue, 'queued', -1)
    bump(t.queue, 'pending', 1)
    bump(t.queue, 'deferred', 1)
    drop(stream, id)
    return
  end
  fence_off(t, key)
  t.attempt = int(math.max(t.attempt, 1))
  t.error, t.error_class, t.retryable = 'unknown_task_type:' .. t.type, 'UnknownTaskType', '0'
  ended[#ended + 1] = { t.id, t.queue, t.type, give_up(t, 'attempt', t.attempt, 'worker_id', WORKER) }
  drop(stream, id)
end

local function take(queue, band, stream, id, fields, reclaimed)
  local task_id = fields[1] == 'task_id' and fields[2] or value_of(fields, 'task_id')
  if not task_id or task_id == '' then return quarantine(queue, band, stream, id, fields, 'the entry names no task', reclaimed) end
  local key = TASK .. task_id
  local r = call('HMGET', key, 'status', 'entry_id', 'fence', 'attempt', 'expires_at', 'created_at',
    'deferred_at', 'trace')
  local status = r[1]
  if not status then return quarantine(queue, band, stream, id, fields, 'the task has no record', reclaimed) end
  if TERMINAL[status] or r[2] ~= id then
    if not TERMINAL[status] then
      publish('TASK_DUPLICATE_ABSORBED', task_id, queue, value_of(fields, 'task_type') or '', tonumber(r[4]) or 0, WORKER)
    end
    bump(queue, 'absorbed', 1)
    if cancelled_any then call('SREM', CANCELLED, task_id) end
    return drop(stream, id)
  end
  local fence, attempt, max = whole(r[3]), whole(r[4]), whole(fields[12])
  if not (fence and attempt and max and whole(fields[16]) and whole(r[6]) and fields[6] and fields[8] and fields[16] and fields[18]) then
    return quarantine(queue, band, stream, id, fields, 'the record or the entry cannot be read', reclaimed)
  end
  local t = { id = task_id, queue = queue, type = fields[6], payload = fields[8], attempt = attempt, max_attempts = fields[12],
    priority = band, timeout_ms = fields[16], key = fields[18], from = status, worker = WORKER, entry = id, trace = r[8] or nil }
  local owner = {}
  if status == 'running' then
    owner = call('HMGET', key, 'worker_id', 'cancel_requested', 'started_at')
    if owner[1] == WORKER then
      t.attempt = r[4]
      return handed_over(t, id, r[3], r[6], 1)
    end
    -- Delivered as new although it runs: the group was made anew. It belongs to its owner until that one falls silent.
    if not reclaimed then return call('XCLAIM', stream, 'workers', owner[1] or '', 0, id, 'JUSTID') end
  elseif status ~= 'queued' then
    return quarantine(queue, band, stream, id, fields, 'its record says ' .. status, reclaimed)
  end
  if owner[2] == '1' or (cancelled_any and call('SISMEMBER', CANCELLED, task_id) == 1) then
    call('SREM', CANCELLED, task_id)
    fence_off(t, key)
    finish(t, 'cancelled')
    ended[#ended + 1] = { task_id, queue, t.type, 'cancelled' }
    return drop(stream, id)
  end
  local expires = tonumber(r[5] or '') or 0
  if status == 'queued' and expires > 0 and expires <= NOW then
    finish(t, 'expired')
    ended[#ended + 1] = { task_id, queue, t.type, 'expired' }
    return drop(stream, id)
  end
  if not KNOWN[t.type] then return unknown(t, stream, id, key, owner[1]) end
  if attempt + 1 > max then
    t.error, t.error_class, t.retryable, t.worker = 'the worker was lost during attempt ' .. attempt, 'WorkerLost', '1', owner[1] or ''
    fence_off(t, key)
    ended[#ended + 1] = { task_id, queue, t.type, give_up(t) }
    return drop(stream, id)
  end
  start(t, key, fence, r[6], status == 'running' and owner, r[7])
end

-- What is wrong with one key or one record, and nothing else: a fault of ours in reading it, or a wrong type. Everything else
-- (a missing right, a read-only server, a full one) is about us.
local function is_local(err)
  local text = reason(err)
  return find(text, 'WRONGTYPE', 1, true) or find(text, 'not an integer', 1, true) or find(text, '^user_script')
end

-- Runs take() for one entry. An error that is about this entry quarantines it; any other goes up, and what was started
-- before it comes back through adoption.
local function deliver(queue, band, stream, id, fields, reclaimed)
  local ok, err = pcall(take, queue, band, stream, id, fields, reclaimed)
  if ok then return end
  if not is_local(err) then error(err, 0) end
  local text = reason(err)
  local set, worse = pcall(quarantine, queue, band, stream, id, fields, text, reclaimed)
  -- Not even that is possible (the dead letters are no stream, say): it stays where it is and is met again later.
  if not set then problems[#problems + 1] = stream .. ' ' .. id .. ': ' .. text .. '; ' .. reason(worse) end
end

-- Runs fn(queue) so that what is wrong with one queue stops no other, and the ledger is written whatever happens.
local function for_queue(fn, queue)
  local ok, err = pcall(fn, queue)
  if ok then return end
  flush()
  if not is_local(err) then error(err, 0) end
  problems[#problems + 1] = 'queue ' .. queue .. ': ' .. reason(err)
end

local function answer(more, paused)
  flush()
  return { more, paused, deferred, problems, ended, tasks }
end
