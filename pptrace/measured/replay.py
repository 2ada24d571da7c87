"""Replay of measured durations, and the message policy that is nearest to a measured step."""

from __future__ import annotations

from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.config.choices import PolicyName
from pptrace.errors import DeadlockError, PptraceError, ScheduleError
from pptrace.measured.computations import Computations, extent, extract_computations
from pptrace.plugins.construction import build_policy, checked_options
from pptrace.sim.simulation import lower_step, simulate
from pptrace.steps.message_calls import Policy
from pptrace.steps.schedule import Schedule
from pptrace.steps.workload import Workload
from pptrace.timeline.timeline import window

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pptrace.config.schema import Experiment
    from pptrace.network.contract import Network
    from pptrace.plugins.offers import MessagePolicyOffer
    from pptrace.plugins.providers import Provided
    from pptrace.plugins.registry import Registry
    from pptrace.run.inputs import StepInputs
    from pptrace.sim.engines import Contention
    from pptrace.sim.simulation import LoweredStep
    from pptrace.sim.task_graph import ActionTimes
    from pptrace.timeline.timeline import Timeline

_MOST_NAMED = 4
"""Actions of a cycle that an error names."""


class Resimulation(Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """An order that is lowered once and runs once for each set of times."""

    schedule: Schedule
    workload: Workload
    """Costs of actions without times."""
    policy: Policy
    partial: bool = False
    """Whether actions may be missing; nothing waits for them."""
    network: Network | None = None
    """The network of a simulation; None for a replay, whose times include transfers and gaps."""
    contention: Contention | None = None
    """Effects of simultaneous messages on each other."""
    experiment: Experiment | None = None

    @cached_property
    def _spans_ns(self) -> dict[bytes, int]:
        return {}

    @classmethod
    def of_order(cls, order: Schedule, policy: Policy | None = None, *, partial: bool = False) -> Self:
        """Return the replay of an order under a message policy, by default ``async``."""
        costs = Workload.uniform(order.stages, edges=len(order.placement.edges), f_ns=0, b_ns=0)
        return cls(schedule=order, workload=costs, policy=policy or Policy(), partial=partial)

    @classmethod
    def of_simulation(cls, inputs: StepInputs) -> Self:
        """Return a simulation that runs with other durations."""
        return cls(
            schedule=inputs.schedule, workload=inputs.workload, policy=inputs.policy, network=inputs.network,
            contention=inputs.contention, experiment=inputs.resolved.experiment,
        )  # fmt: skip

    def has_setting_of(self, other: Resimulation) -> bool:
        """Return whether another simulation differs by the order of actions alone."""
        settings = [
            simulation.experiment and simulation.experiment.model_dump(exclude={"schedule"})
            for simulation in (self, other)
        ]
        same_stages = self.schedule.placement == other.schedule.placement
        return settings[0] == settings[1] and self.policy == other.policy and same_stages

    @cached_property
    def _lowered(self) -> LoweredStep:
        return lower_step(
            self.schedule, self.workload, self.network, self.policy, contention=self.contention, segmented=False,
            partial=self.partial,
        )  # fmt: skip

    def run(self, times: ActionTimes) -> Timeline:
        """Return the step with these times; of a simulation, with these durations.

        Raises:
            ScheduleError: the actions deadlock without a policy, so they are not of one run.
            PptraceError: they deadlock under the policy, which may not support the order; wrong costs.
        """
        if self.network is not None:
            unset = np.full_like(times.transfer_ns, -1)
            times = replace(times, transfer_ns=unset, gap_ns=np.zeros_like(times.gap_ns))
        try:
            return self._lowered.run(times).timeline
        except DeadlockError as error:
            if self.policy.name is not PolicyName.ASYNC:
                raise
            cycle = ", ".join(error.cycle[:_MOST_NAMED])
            message = "a step's actions cannot have happened together, for some wait for each other"
            raise ScheduleError(f"{message} ({cycle} and others): are all files of one run?") from error

    def span_ns(self, times: ActionTimes) -> int:
        """Return the span of the computations of :meth:`run`."""
        columns = [times.place, times.duration_ns]
        if self.network is None:
            columns += [times.gap_ns, times.transfer_ns]
        key = b"".join(column.tobytes() for column in columns)
        if key not in self._spans_ns:
            _, self._spans_ns[key] = extent(self.run(times))
        return self._spans_ns[key]


class Replayed(NamedTuple):
    """A step and its replay."""

    step: Computations
    timeline: Timeline
    replayed_ns: int
    """The span of the computations in the replay."""
    step_ns: int
    """Length of the whole step, with messages before the first computation and after the last."""

    @property
    def explained(self) -> float:
        """The replay's length as a share of the step's."""
        return self.replayed_ns / self.step.span_ns if self.step.span_ns else 1.0


def replay(
    timeline: Timeline, policy: Callable[[Schedule], Policy] | None = None, *, lacks_ranks: bool = False
) -> Replayed:
    """Replay a step with its order, durations, transfers and host gaps.

    Waits for missing computations keep their length.

    Args:
        timeline: the step.
        policy: returns the message policy of an order. By default messages do not wait for each other, and each
            keeps its blocked time.
        lacks_ranks: whether recordings of ranks are missing.

    Raises:
        ScheduleError: an action precedes its inputs, or the step has no actions.
        ConstraintError: the policy cannot insert the messages of the order.
    """
    step = extract_computations(timeline, lacks_ranks=lacks_ranks)
    if not len(step.order):
        raise ScheduleError("the step has no actions")
    chosen = None if policy is None else policy(step.order)
    replayed = Resimulation.of_order(step.order, chosen, partial=step.partial).run(
        step.times(with_blocked=chosen is None)
    )
    (_, replayed_ns), (opened, closed) = extent(replayed), window(timeline)
    return Replayed(step, replayed, replayed_ns, int(closed - opened))


_TIE = 0.001
"""The share of a step up to which two policies are a tie."""
_V_SHAPED = Schedule.from_rows([
    ["0F0", "0F1", "3F0", "3I0", "3F1", "3I1", "3W0", "3W1", "0B0", "0B1"],
    ["1F0", "2F0", "1F1", "2F1", "2I0", "1I0", "2I1", "1I1", "2W0", "2W1", "1W0", "1W1"],
])  # fmt: skip
"""An order of chunks in a V, with split backwards."""
_LOOPED = Schedule.from_rows([
    ["0F0", "0F1", "2F0", "2F1", "0F2", "2B0", "0F3", "2B1", "2F2", "0B0",
     "2F3", "0B1", "2B2", "2B3", "0B2", "0B3"],
    ["1F0", "1F1", "3F0", "3B0", "3F1", "3B1", "1F2", "1B0", "1F3", "1B1",
     "3F2", "3B2", "3F3", "3B3", "1B2", "1B3"],
])  # fmt: skip
"""Interleaved 1F1B, whose messages cross: a policy of messages in order can deadlock."""


class Nearest(NamedTuple):
    """A policy and its error."""

    policy: Policy
    error_ns: int
    """The mean absolute error of starts."""
    options: Mapping[str, Any] = MappingProxyType({})
    """The options of the policy, where the recording names it."""


def nearest_policy(
    step: Computations, registry: Registry, *, measured: bool, any_order: bool = True,
    p2p: Mapping[str, Any] | None = None,
) -> Nearest:  # fmt: skip
    """Return the policy that a recording names, else that whose replay has the least mean error of starts.

    Ties, to a thousandth of the step, go to policies of frameworks for a measured step, else to ``async``.

    Args:
        step: the step.
        registry: the plugins with the policies.
        measured: whether the step was recorded.
        any_order: whether to skip policies that do not support every order.
        p2p: the policy that the recording names, as :attr:`Measurement.p2p`. It counts if a plugin has it.
    """
    if step.partial:
        return Nearest(Policy(), 0)
    provided = registry.message_policies.get(str(p2p.get("policy"))) if p2p else None
    if p2p and provided is not None:
        named = _start_error(step, provided, p2p.get("options") or {}, any_order=False)
        if named is not None:
            return named
    candidates = [
        _start_error(step, provided, {}, any_order=any_order) for provided in registry.message_policies.values()
    ]
    known = [candidate for candidate in candidates if candidate is not None]
    if not known:
        return Nearest(Policy(), 0)
    limit_ns = min(candidate.error_ns for candidate in known) + _TIE * step.span_ns
    near = [candidate for candidate in known if candidate.error_ns <= limit_ns]
    rules, default = {name.value for name in PolicyName}, Policy().label
    return min(
        near,
        key=lambda candidate: ((candidate.policy.label in rules) == measured, candidate.policy.label != default),
    )


def _start_error(
    step: Computations, provided: Provided[MessagePolicyOffer], values: Mapping[str, Any], *, any_order: bool
) -> Nearest | None:
    """Return the mean error of starts under a policy; None where it does not support the order or the options."""
    try:
        options = checked_options(provided, values, "p2p.options")
        if any_order:
            for order in (_V_SHAPED, _LOOPED):
                policy = build_policy(provided, order, options)
                simulate(order, Workload.uniform(4, edges=3, f_ns=1, b_ns=1), policy=policy)
        policy = build_policy(provided, step.order, options)
        replayed = extract_computations(
            Resimulation.of_order(step.order, policy).run(step.times(with_blocked=False))
        )
    except PptraceError:
        return None
    errors_ns = (replayed.start_ns - replayed.begin_ns) - (step.start_ns - step.begin_ns)
    return Nearest(policy, round(float(np.abs(errors_ns).mean())), values)
