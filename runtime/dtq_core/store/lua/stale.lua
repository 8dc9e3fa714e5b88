-- Does: look whether a queue has entries whose owner has been silent for the visibility timeout. Changes nothing.
-- KEYS: 1 ledger of the queue (routing)
-- ARGV: 7 queue · 8 visibility (ms)
-- Returns: 1 if there is one, else 0
-- Publishes: nothing
for band = 9, 0, -1 do
  local stream = stream_of(ARGV[7], band)
  local length = try('XLEN', stream)
  if type(length) == 'number' and length > 0 then
    local found = try('XPENDING', stream, 'workers', 'IDLE', ARGV[8], '-', '+', 1)
    if not found.err and #found > 0 then return 1 end
  end
end
return 0
