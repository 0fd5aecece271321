-- about: read the facts about a queue as a whole: the time, whether it is paused, its levels, its declaration.
-- KEYS   stats (hash)
-- ARGV   (none)
-- REPLY  {now, paused, levels, declaration, name, value, name, value, ...}: now ms · paused 0 or 1 · levels behind the
--        first · declaration: the number of the valid declaration, or 0 · the declared options, in the words of
--        `declare`, and if it has them `terms`: the structure of the queue's terms, `concurrency`: of `set_concurrency`
-- COST   5 us
return about_queue(stats)
