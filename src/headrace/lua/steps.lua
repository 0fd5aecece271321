-- steps: read the records of a run.
-- KEYS   (none)
-- ARGV   id, enq
-- REPLY  the records in their order, each {name, kind, began, ended, attempt, value, due}, and of some: the traceparent
--        of the delivery that a sleep or wait ended, if that was traced; its place; the signal's sender, and when · last {build}: of the worker that
--        began the run, if that had one
-- COST   10 us + 1 us per record, at most 1,000 and 1 MiB of them
-- enq: as in step; the records of an earlier job of this id are left out. Times are ms; ended 0: not yet; due 0: never.
-- kind: step; once, of a step that runs once; undoable, of a step that has ended, and can be undone; undone; sleep; wait;
-- signal, that no wait has taken; of the name '' undoing, or dying: the run is undone, and then goes on, or dies.
require_hashes(steps)
local run = runs.read(steps, id)
if not run or run.enq ~= '' and enq ~= '' and run.enq ~= enq then return {} end
return runs.listed(steps, id, run)
