"""Importers of traces that frameworks and profilers record.

``plugin`` recognises a file's format and reads it. ``chrome``, ``json_events``, ``torch_perfetto``, ``nsys``,
``nccl_profiler``, ``nccl_inspector`` and ``megatron_spans`` read formats to ``events`` and ``recording``.
``pytorch_process`` and the modules on inference find the actions of a profile without annotations.
``timeline_assembly`` aligns the clocks of all ranks.
"""
