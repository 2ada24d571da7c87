"""Two encoders before a decoder: side by side on separate GPUs, on common GPUs, and on the decoder's GPUs."""

import pptrace

VISION = {"pp": 1, "tp": 1, "dp": 8}
PLACES = {
    "side by side, 8 and 8 GPUs": (6, {"encoders": {"vision": VISION, "audio": {"pp": 1, "tp": 1, "dp": 8}}}),
    "side by side, 8 and 1 GPUs": (6, {"encoders": {"vision": VISION, "audio": {"pp": 1, "tp": 1, "dp": 1}}}),
    "one after the other, 8 GPUs": (5, {"encoder": VISION}),
    "vision on 8 GPUs, audio not": (5, {"encoders": {"vision": VISION, "audio": {"tp": 2}}}),
    "both on the decoder's GPUs": (4, {"encoders": {"vision": {"tp": 1}, "audio": {"tp": 2}}}),
}
GIB, MIB = 2**30, 2**20

print("                                            tokens/s                     GiB at the peak of  MiB of a")
print("encoders                      GPUs    step   per GPU  encoders busy       encoders  decoder   message")
for name, (ranks, grids) in PLACES.items():
    run = pptrace.simulate("encoders.yaml", parallel={"pp": ranks, "tp": 8, "dp": 2, **grids})
    metrics, parallel = run.metrics, run.prepared.resolved.experiment.parallel
    count, gpus = sum(parallel.branches), parallel.processes
    peaks = metrics.memory.peak_bytes / GIB
    busy = ", ".join(f"{row['busy_ns'] / metrics.step_ns:.0%}" for row in run.table()[:count])
    messages = ", ".join(f"{size / MIB:.0f}" for size in run.prepared.workload.edge_bytes[0, :count])
    row = f"{name:28}  {gpus:4}  {metrics.step_ns / 1e9:4.2f} s  {metrics.tokens_per_s / gpus:8,.0f}  {busy:18}"
    row += f"  {f'{peaks[:count].max():.1f}' if count else '':>7}  {peaks[count:].max():7.1f}"
    row += f"{'  ' if not metrics.memory.over_capacity else ' !'}{messages:>7}"
    print(row.rstrip())
print()
print("busy: share of the step, vision first; a message goes from a GPU of an encoder to one of the decoder.")
print("!: more than the 79.6 GiB of a GPU.")
