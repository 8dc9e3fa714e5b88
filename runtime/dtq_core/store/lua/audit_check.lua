-- Does: look at tasks one by one, each with every place it could be in, at one moment. Changes nothing.
-- KEYS: 1 record of the first task (routing)
-- ARGV: 7… ids
-- Returns: per task what is wrong ("" = nothing), as "kind: text"
-- Publishes: nothing
-- Whether any letter ever went because the letters are bounded: a writer trims the letters of all queues.
local trimmed_any
local function trimmed()
  if trimmed_any == nil then
    trimmed_any = false
    for _, queue in ipairs(call('SMEMBERS', P .. ':queues')) do
      trimmed_any = trimmed_any or (tonumber(call('HGET', P .. ':ledger:' .. queue, 'letters_trimmed') or 0) or 0) > 0
    end
  end
  return trimmed_any
end

local function check(id)
  local r = call('HMGET', TASK .. id, 'status', 'queue', 'priority', 'entry_id', 'discarded', 'letter_gone', 'worker_id', 'fence', 'attempt')
  local status, queue = r[1], r[2]
  if not status then return '' end
  if not (queue and r[3] and (LIVE[status] or TERMINAL[status]) and tonumber(r[8]) and tonumber(r[9])) then
    return 'broken-record: its record cannot be read (status ' .. tostring(status) .. ')'
  end
  local scheduled = (call('ZSCORE', SCHEDULE, id) and 1 or 0) + (call('ZSCORE', CLAIMED, id) and 1 or 0)
  local stream = stream_of(queue, r[3])
  local entry = r[4] and r[4] ~= '' and call('XRANGE', stream, r[4], r[4])[1]
  local there = entry and value_of(entry[2], 'task_id') == id
  if status == 'pending' or status == 'retrying' then
    if scheduled == 0 then return 'lost: ' .. status .. ', but in neither the schedule nor the claims' end
    if scheduled == 2 then return 'two-places: in the schedule and in the claims' end
    if there then return 'two-places: ' .. status .. ', but an entry is on its stream' end
  elseif status == 'queued' or status == 'running' then
    if not there then return 'lost: ' .. status .. ', but its entry is gone from ' .. stream end
    if scheduled > 0 then return 'two-places: ' .. status .. ' and scheduled' end
    local pending = try('XPENDING', stream, 'workers', r[4], r[4], 1)
    if status == 'running' and not pending.err and #pending == 0 then return 'unowned: running, but nobody holds its entry' end
  else
    if there then return 'leftover: ' .. status .. ', but its entry is still on ' .. stream end
    if scheduled > 0 then return 'leftover: ' .. status .. ', but still scheduled' end
    if status == 'dead_lettered' and r[5] ~= '1' and not r[6] then
      local moment = call('ZSCORE', P .. ':queue:' .. queue .. ':dead', id)
      local oldest = call('XRANGE', DEAD, '-', '+', 'COUNT', 1)[1]
      if moment then
        for _, letter in ipairs(call('XRANGE', DEAD, moment, moment)) do
          if value_of(letter[2], 'task_id') == id then return '' end
        end
        if not trimmed() or (oldest and tonumber(string.match(oldest[1], '^%d+')) < tonumber(moment)) then return 'letter-gone: dead-lettered, but its letter was removed' end
      elseif not trimmed() then
        return 'letter-gone: dead-lettered, but it has no letter and none was trimmed'
      end
    end
  end
  return ''
end

local answers = {}
for i = 7, #ARGV do
  local ok, found = pcall(check, ARGV[i])
  answers[i - 6] = ok and found or 'broken-record: ' .. reason(found)
end
return answers
