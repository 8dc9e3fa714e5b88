-- Does: drop dead letters; each task's record stays DEAD_LETTERED and says that its letter was discarded.
-- KEYS: 1 dead letters
-- ARGV: 7 actor (empty: the caller writes one audit entry for all) · 8 request id · 9 n, then per letter: task_id letter queue metadata
-- Returns: per letter OK, CHANGED (it is no longer there), or ERROR text
-- Publishes: nothing
local function discard(i)
  local id, letter, queue, metadata = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local status = call('HGET', TASK .. id, 'status')
  if queue ~= '' then
    call('ZSCORE', P .. ':queue:' .. queue .. ':dead', id)
    sound(queue)
  end
  audited(ARGV[7])
  if call('XDEL', KEYS[1], letter) == 0 then return 'CHANGED' end
  if status == 'dead_lettered' then
    call('HSET', TASK .. id, 'discarded', '1', 'metadata', metadata)
    call('EXPIRE', TASK .. id, RETENTION)
  end
  if queue ~= '' then
    call('ZREM', P .. ':queue:' .. queue .. ':dead', id)
    bump(queue, 'discarded', 1)
  end
  audit(ARGV[7], 'dlq.discard', id, ARGV[8])
  return 'OK'
end

return each(10, tonumber(ARGV[9]), 4, discard)
