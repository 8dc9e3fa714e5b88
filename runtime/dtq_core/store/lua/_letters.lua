-- Does: write one dead letter, keep the letters within their bounds, and end a task whose attempts are used up.
local function policy_of(queue, field)
  local value = try('HGET', P .. ':queue:' .. queue .. ':policy', field)
  return type(value) == 'string' and value or nil
end

-- Returns the letter's id. Without a queue (nobody knows it any more) the letter is in no index.
local function bury(t)
  local index = P .. ':queue:' .. t.queue .. ':dead'
  local before = call('XLEN', DEAD)
  call('ZCARD', index)
  local id = call('XADD', DEAD, 'MAXLEN', '~', DLQ_MAXLEN > 0 and DLQ_MAXLEN or 10000, '*', 'task_id', t.id, 'queue', t.queue,
    'task_type', t.type, 'payload', t.payload, 'attempt', t.attempt, 'max_attempts', t.max_attempts, 'priority', t.priority,
    'timeout_ms', t.timeout_ms, 'idempotency_key', t.key, 'failed_at_ms', NOW_MS, 'attempts_made', t.attempt,
    'last_error', t.error, 'last_error_class', t.error_class, 'retryable', t.retryable, 'worker_id', t.worker or '',
    'original_queue', t.queue)
  local trimmed = before + 1 - call('XLEN', DEAD)
  if trimmed > 0 then
    -- A letter below this one went because letters are bounded, any other because somebody removed it.
    local oldest = call('XRANGE', DEAD, '-', '+', 'COUNT', 1)[1][1]
    try('HSET', P .. ':audit:server', 'letters_from', oldest)
    call('ZREMRANGEBYSCORE', index, '-inf', '(' .. sub(oldest, 1, find(oldest, '-', 1, true) - 1))
  end
  if t.queue == '' then return id end
  if trimmed > 0 then bump(t.queue, 'letters_trimmed', trimmed) end
  call('ZADD', index, sub(id, 1, find(id, '-', 1, true) - 1), t.id)
  -- The queue's own limit, where its policy has one: its oldest letters go, and their tasks say so.
  local limit = whole(policy_of(t.queue, 'dlq_maxlen'))
  local over = limit and math.min(call('ZCARD', index) - limit, 10) or 0
  for _ = 1, over do
    local gone = call('ZPOPMIN', index)
    for _, letter in ipairs(call('XRANGE', DEAD, gone[2], gone[2])) do
      if letter[2][2] == gone[1] then call('XDEL', DEAD, letter[1]) end
    end
    if call('EXISTS', TASK .. gone[1]) == 1 then call('HSET', TASK .. gone[1], 'letter_gone', 'limit') end
    bump(t.queue, 'letters_trimmed', 1)
  end
  return id
end

local SWITCH = { ['1'] = true, ['true'] = true, yes = true, on = true, ['0'] = false, ['false'] = false, no = false, off = false }
-- t also has payload max_attempts priority timeout_ms error error_class retryable ('1' or '0').
local function give_up(t, ...)
  local on = SWITCH[string.lower(policy_of(t.queue, 'dlq_enabled') or '')]
  if on == nil then on = DLQ_MAXLEN > 0 end
  local status = on and 'dead_lettered' or 'failed'
  if on then call('HSET', TASK .. t.id, 'letter', bury(t)) end
  finish(t, status, 'error_class', t.error_class, 'error_message', t.error, 'retryable', t.retryable, ...)
  return status
end
