-- Does: give a worker back what is already its own: started for it, but the reply never arrived. Changes nothing.
-- KEYS: 1 ledger of the queue (routing)
-- ARGV: 7 worker · 8 at most · queues…
-- Returns: tasks, as fetch returns them, with the same attempt and fence
-- Publishes: nothing
local tasks = {}
for i = 9, #ARGV do
  local queue = ARGV[i]
  for band = 9, 0, -1 do
    local stream = stream_of(queue, band)
    local room = tonumber(ARGV[8]) - #tasks
    local length = room > 0 and try('XLEN', stream)
    if type(length) == 'number' and length > 0 then
      local got = try('XREADGROUP', 'GROUP', 'workers', ARGV[7], 'COUNT', room, 'STREAMS', stream, '0')
      for _, entry in ipairs(type(got) == 'table' and not got.err and got[1][2] or {}) do
        local id, f = entry[1], entry[2] or {}
        local r = f[2] and try('HMGET', TASK .. f[2], 'status', 'entry_id', 'worker_id', 'attempt', 'fence', 'created_at', 'started_at',
            'trace', 'available_at') or {}
        if r[1] == 'running' and r[2] == id and r[3] == ARGV[7] and whole(r[4]) and whole(r[5]) and whole(r[6]) and whole(f[12]) and whole(f[16]) then
          tasks[#tasks + 1] = { band, id, f[2], f[6], f[8], r[4], f[12], f[16], f[18], r[5], r[6], queue, 1, whole(r[7]) and r[7] or NOW_MS,
            r[8] or nil, r[8] and whole(r[9]) and r[9] or nil }
        end
      end
    end
  end
end
return tasks
