-- Does: one step through one band of a queue: cancels what waits and drops stray entries; what runs goes on and finishes normally.
-- KEYS: 1 the stream
-- ARGV: 7 queue · 8 first id to look at · 9 at most · 10 dry run (1) · 11 last id to look at ("+": whatever there is)
-- Returns: {id to go on from ("" = the end), matched, changed, up to 10 task ids}
-- Publishes: TASK_CANCELLED
local matched, changed, sample, last = 0, 0, {}, ''
sound(ARGV[7])
local entries = call('XRANGE', KEYS[1], ARGV[8], ARGV[11], 'COUNT', ARGV[9])
for _, entry in ipairs(entries) do
  local id, f = entry[1], entry[2]
  last = id
  local task_id = f[1] == 'task_id' and f[2] or ''
  local r = try('HMGET', TASK .. task_id, 'status', 'entry_id', 'task_type', 'attempt', 'idempotency_key')
  if r.err then r = {} end
  if not (r[1] == 'running' and r[2] == id) then
    matched = matched + 1
    if #sample < 10 then sample[#sample + 1] = task_id end
    if ARGV[10] ~= '1' then
      if r[1] == 'queued' and r[2] == id then
        finish({ id = task_id, queue = ARGV[7], type = r[3], attempt = r[4], key = r[5] or '', from = 'queued' }, 'cancelled')
      elseif not r[1] and not uncounted(ARGV[7]) then
        -- Its record is lost; what the ledger knew of it ends with it.
        bump(ARGV[7], 'queued', -1)
        bump(ARGV[7], 'cancelled', 1)
      end
      drop(KEYS[1], id)
      changed = changed + 1
    end
  end
end
flush()
return { #entries == tonumber(ARGV[9]) and last or '', matched, changed, sample }
