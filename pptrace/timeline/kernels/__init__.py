"""Kernels over the rows of a timeline.

Columns are lists or arrays of integers with the same operations, hence without annotations. ``cells`` are
:class:`~pptrace.steps.actions.CellColumns`, ``graph`` is a :class:`~pptrace.steps.schedule.StageGraph`,
``kinds`` the :class:`~pptrace.steps.kinds.KindTable`.
"""
