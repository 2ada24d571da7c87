"""An encoder with a separate grid of processes: on the decoder's GPUs, and on separate GPUs.

InternViT-6B has 25 attention heads, so the eight GPUs that split a layer of the decoder cannot split its layers.
"""

import pptrace

GRIDS = {
    "the decoder's": (4, {}),
    "tp 1, dp 16, same GPUs": (4, {"tp": 1, "dp": 16}),
    "tp 1, dp 8": (5, {"pp": 1, "tp": 1, "dp": 8}),
    "tp 1, dp 16": (5, {"pp": 1, "tp": 1, "dp": 16}),
    "pp 2, tp 1, dp 8": (6, {"pp": 2, "tp": 1, "dp": 8}),
    "as before, leaders": (6, {"pp": 2, "tp": 1, "dp": 8, "bridge": "leaders"}),
}
GIB, MIB = 2**30, 2**20

print("                                                         GiB at the peak of    MiB of a message")
print("encoder's grid          GPUs     step  tokens/s per GPU  encoder  decoder       forward  back")
for name, (ranks, grid) in GRIDS.items():
    sets = [f"parallel.encoder.{key}={size}" for key, size in grid.items()]
    try:
        run = pptrace.simulate("modules.yaml", sets=sets, pp=ranks)
    except pptrace.PptraceError as error:
        print(f"{name:22}  {error}")
        continue
    metrics, encoder_ranks = run.metrics, grid.get("pp", 0)
    gpus = run.prepared.resolved.experiment.parallel.processes
    peaks = metrics.memory.peak_bytes / GIB
    sizes = [peaks[: max(encoder_ranks, 1)].max(), peaks[encoder_ranks:].max()]
    marked = " !" if metrics.memory.over_capacity else "  "
    row = f"{name:22}  {gpus:4}  {metrics.step_ns / 1e9:5.2f} s  {metrics.tokens_per_s / gpus:16,.0f}"
    row += f"  {sizes[0]:7.1f}  {sizes[1]:7.1f}{marked}"
    if encoder_ranks:
        forward, back = run.prepared.workload.edge_bytes[:, encoder_ranks - 1] / MIB
        row += f"  {forward:10.1f}  {back:4.1f}"
    print(row.rstrip())
print()
print("leaders: one GPU of each replica gets messages, and broadcasts them, as Megatron-LM's BridgeCommunicator.")
print("!: more than the 79.6 GiB of a GPU. A GPU of the decoder gets messages from all encoders of its replica.")
