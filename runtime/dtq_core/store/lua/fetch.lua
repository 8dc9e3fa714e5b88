-- Does: take new entries p9 → p0 of the given queues, at most `capacity` tasks, and start each. Never blocks.
-- KEYS: 1 ledger of the first queue (routing)
-- ARGV: 7–9 gate · 10 lane · 11 nonce · 12 capacity · 13 number of queues · queues… · task types this worker knows…
-- Returns: {more, paused queues, deferred, problems, ended, tasks}; or {"DRAINING"}, or {"REPLAY"}: this nonce was served, adopt what it took
-- Publishes: TASK_STARTED, TASK_EXPIRED, TASK_CANCELLED, TASK_DEAD_LETTERED, TASK_FAILED, TASK_DUPLICATE_ABSORBED
local capacity, queues = tonumber(ARGV[12]), tonumber(ARGV[13])
for i = 14 + queues, #ARGV do KNOWN[ARGV[i]] = true end

-- A worker that announced its drain starts nothing any more, even if this call was under way; the token goes to a peer.
local row = try('HGET', P .. ':worker:' .. WORKER, 'status')
if row == 'draining' or row == 'stopped' then
  for i = 14, 13 + queues do
    if count(try('HGET', P .. ':ledger:' .. ARGV[i], 'queued')) > 0 then wake(ARGV[i]) end
  end
  return { 'DRAINING' }
end
local served = P .. ':fetch:' .. WORKER .. ':' .. ARGV[10]
if call('GET', served) == ARGV[11] then return { 'REPLAY' } end

local function read(stream, count)
  local got = try('XREADGROUP', 'GROUP', 'workers', WORKER, 'COUNT', count, 'STREAMS', stream, '>')
  if type(got) == 'table' and got.err and find(got.err, 'NOGROUP', 1, true) then
    call('XGROUP', 'CREATE', stream, 'workers', '0')
    got = try('XREADGROUP', 'GROUP', 'workers', WORKER, 'COUNT', count, 'STREAMS', stream, '>')
  end
  return got
end

local touched, paused = 0, {}
-- `waiting` entries are known of: once they are taken the lower bands are left out. Entries made by hand are not counted,
-- so where none is known of, and in one call of eight, every band is looked at.
local function sweep(queue, waiting)
  local enough = touched + (waiting > 0 and NOW % 8 > 0 and waiting or 500)
  for band = 9, 0, -1 do
    if touched >= enough and #tasks > 0 then return end
    local stream = stream_of(queue, band)
    local length = try('XLEN', stream)
    if type(length) == 'table' then
      problems[#problems + 1] = stream .. ': ' .. length.err
    elseif length > 0 then
      repeat
        local room = math.min(capacity - #tasks, 500 - touched)
        if room <= 0 then return end
        local got = read(stream, room)
        if type(got) == 'table' and got.err then
          problems[#problems + 1] = stream .. ': ' .. got.err
          break
        end
        local entries = got and got[1][2] or {}
        touched = touched + #entries
        for _, entry in ipairs(entries) do deliver(queue, band, stream, entry[1], entry[2], false) end
      until #entries < room or (touched >= enough and #tasks > 0)
    end
  end
end

local more = 0
local function serve(queue)
  local waiting = count(call('HGET', P .. ':ledger:' .. queue, 'queued'))
  if call('EXISTS', P .. ':queue:' .. queue .. ':paused') == 1 then
    paused[#paused + 1] = queue
    return
  end
  if #tasks < capacity and touched < 500 then sweep(queue, waiting) end
  if (#tasks >= capacity or touched >= 500) and waiting + ((bumps[queue] or {}).queued or 0) > 0 then
    more = 1
    wake(queue)
  end
end
for i = 14, 13 + queues do for_queue(serve, ARGV[i]) end
if #tasks > 0 then call('SET', served, ARGV[11], 'EX', 600) end
return answer(more, paused)
