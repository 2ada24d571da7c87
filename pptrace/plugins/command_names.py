"""Help of the core's commands for ``pptrace --help``, which imports none of their modules."""

from __future__ import annotations

COMMANDS = {
    "simulate": "Simulate one training step: a summary, and traces with -o.",
    "costs": "Print what actions cost by stage, and write that as a table to be edited.",
    "plan": "Find the best configuration of a model on so many GPUs, with reasons.",
    "whatif": "Say what single changes would bring a step, each simulated.",
    "compare": "Compare schedules as formula, as table and simulated.",
    "crossover": "Find where another of two schedules becomes the faster one.",
    "diff": "Compare two steps, simulated or measured, action by action.",
    "replay": "Simulate what was measured again: how much of it the model explains.",
    "explain": "Say where the time of a step went, and what would shorten it.",
    "calibrate": "Fit costs and network to measured traces.",
    "sweep": "Simulate a grid of steps in parallel: a tidy table, and pictures.",
    "show": "Draw a schedule's idealised table.",
    "validate": "Check a schedule table in a file.",
    "open": "Open a trace in the Perfetto UI.",
    "network": "Show a cluster's links, its routes, and what a pipeline leaves of them.",
    "convert": "Convert tables and traces between formats.",
    "plugins": "List plugins, what they offer, and what failed to load.",
    "new-plugin": "Write a schedule or network plugin to start from.",
    "schema": "Print the JSON Schema of configuration files.",
}
"""Each command is the ``command`` of one module in ``pptrace.cli``."""
