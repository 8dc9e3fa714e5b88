-- Does: look at tasks one by one, each with every place it could be in, at one moment. Changes nothing.
-- KEYS: 1 record of the first task (routing)
-- ARGV: 7… ids
-- Returns: per task what is wrong ("" = nothing), as "kind: text"
-- Publishes: nothing
-- Stream ids in order, and of each stream the last one that was delivered.
local function before(a, b)
  local am, as = string.match(a, '^(%d+)-(%d+)$')
  local bm, bs = string.match(b, '^(%d+)-(%d+)$')
  am, bm = tonumber(am), tonumber(bm)
  return am < bm or (am == bm and tonumber(as) < tonumber(bs))
end
local delivered = {}
local function last_delivered(stream)
  if not delivered[stream] then
    delivered[stream] = '0-0'
    local groups = try('XINFO', 'GROUPS', stream)
    for _, group in ipairs(groups.err and {} or groups) do
      if value_of(group, 'name') == 'workers' then delivered[stream] = value_of(group, 'last-delivered-id') end
    end
  end
  return delivered[stream]
end
local letters_from = try('HGET', P .. ':audit:server', 'letters_from')
letters_from = type(letters_from) == 'string' and letters_from or '0-0'

local function check(id)
  local r = call('HMGET', TASK .. id, 'status', 'queue', 'priority', 'entry_id', 'discarded', 'letter_gone', 'letter', 'fence', 'attempt')
  local status, queue = r[1], r[2]
  if not status then return '' end
  if not (queue and find(r[3] or '', '^%d$') and (LIVE[status] or TERMINAL[status]) and whole(r[8]) and whole(r[9])) then
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
    if status == 'queued' and not pending.err and #pending == 0 and not before(last_delivered(stream), r[4]) then
      return 'unreachable: queued, but its entry was delivered and acknowledged already'
    end
  else
    if there then return 'leftover: ' .. status .. ', but its entry is still on ' .. stream end
    if scheduled > 0 then return 'leftover: ' .. status .. ', but still scheduled' end
    if status == 'dead_lettered' and r[5] ~= '1' and not r[6] then
      local letter = r[7] and r[7] ~= '' and call('XRANGE', DEAD, r[7], r[7])[1]
      if letter and value_of(letter[2], 'task_id') == id then return '' end
      if not (r[7] and before(r[7], letters_from)) then return 'letter-gone: dead-lettered, but its letter was removed' end
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
