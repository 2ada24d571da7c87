"""An overlapped pair by hand: what a forward beside a backward takes, and when the gradient may leave.

The table is overlap.csv, the costs are in overlap.yaml; docs/overlap.md explains them.
"""

import pptrace

PLACES = ("F[1]", "F[3]", "B[1]", "B[4]")

print("layers  all-reduce  computes  gradient leaves  one after the other")
for layers in (1, 2):
    for reduce in (2, 4):
        sets = [f"costs.segments.{place}.time={reduce} ms" for place in PLACES]
        # Twice as many slices as stages are two layers on each.
        run = pptrace.simulate("overlap.yaml", sets=[*sets, f"costs.slices={2 * layers}"])
        rows = [run.timeline[row] for row in range(len(run.timeline))]
        pair = [row for row in rows if row.pair >= 0]
        begin = min(row.start_ns for row in pair)
        computed = max(row.end_ns for row in pair if row.stream.name == "COMPUTE") - begin
        leaves = next(row.start_ns for row in rows if str(row.action) == "1SEND_B0") - begin
        costs = run.prepared.workload
        apart = int(costs.f_ns[1] + costs.b_ns[1])
        times = (f"{ns / 1e6:.0f} ms" for ns in (computed, leaves, apart))
        print("{:6}  {:>10}  {:>8}  {:>15}  {:>19}".format(layers, f"{reduce} ms", *times))
print()
print(pptrace.simulate("overlap.yaml"))
