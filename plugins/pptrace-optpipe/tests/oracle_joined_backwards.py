"""The shortest step with split and joined backwards, by a model that shares no code and no order with the search.

Per stage and microbatch, CP-SAT chooses between one backward and two, in any order of microbatches.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

from ortools.sat.python import cp_model

if TYPE_CHECKING:
    from pptrace_optpipe.problem import Problem


def shortest_step(problem: Problem) -> int:
    """Return the proved optimum of a problem with one stage per rank and without copies and recomputation."""
    cp = cp_model.CpModel()
    horizon = 3 * problem.ranks * max(problem.work(rank) for rank in range(problem.ranks))
    step = cp.new_int_var(0, horizon, "step")
    keys = list(product(range(problem.stages), range(problem.microbatches)))
    times = {(name, *key): cp.new_int_var(0, horizon, name) for name in ("f", "i", "i end", "w", "w end")
             for key in keys}  # fmt: skip
    streams: list[list[Any]] = [[] for _ in range(problem.stages)]
    memory: list[list[tuple[Any, int]]] = [[] for _ in range(problem.stages)]
    for stage, microbatch in keys:
        f, i, i_end, w, w_end = (times[name, stage, microbatch] for name in ("f", "i", "i end", "w", "w end"))
        joined = cp.new_bool_var("joined")
        cp.add(i_end == i + problem.b[stage]).only_enforce_if(joined)
        cp.add(w_end == i_end).only_enforce_if(joined)
        cp.add(i_end == i + problem.i[stage]).only_enforce_if(~joined)
        cp.add(w >= i_end).only_enforce_if(~joined)
        cp.add(w_end == w + problem.w[stage]).only_enforce_if(~joined)
        cp.add(step >= w_end)
        streams[stage] += [
            cp.new_fixed_size_interval_var(f, problem.f[stage], "f"),
            cp.new_optional_fixed_size_interval_var(i, problem.b[stage], joined, "b"),
            cp.new_optional_fixed_size_interval_var(i, problem.i[stage], ~joined, "i"),
            cp.new_optional_fixed_size_interval_var(w, problem.w[stage], ~joined, "w"),
        ]
        lengths = [cp.new_int_var(0, horizon, "length") for _ in range(2)]
        memory[stage] += [
            (cp.new_interval_var(f, lengths[0], i_end, "whole"), problem.activation[stage]),
            (cp.new_interval_var(i_end, lengths[1], w_end, "part"), problem.weight_activation[stage]),
        ]
        if stage:
            sent = times["f", stage - 1, microbatch] + problem.f[stage - 1] + problem.forward_transfer[stage - 1]
            cp.add(f >= sent)
            cp.add(times["i", stage - 1, microbatch] >= i_end + problem.backward_transfer[stage - 1])
        if stage == problem.stages - 1:
            cp.add(i >= f + problem.f[stage])
    for stage in range(problem.stages):
        cp.add_no_overlap(streams[stage])
        intervals, sizes = zip(*memory[stage], strict=True)
        cp.add_cumulative(intervals, sizes, problem.limit[stage])
    cp.minimize(step)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(cp) == cp_model.OPTIMAL
    return int(solver.objective_value)
