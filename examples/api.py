"""The same from Python: which schedule and how many chunks suit the model best?"""

import pptrace

run = pptrace.simulate("llama3-70b.yaml")
print(run)
print()

for name, chunks in (("gpipe", 1), ("1f1b", 1), ("interleaved-1f1b", 2), ("interleaved-1f1b", 5)):
    other = pptrace.simulate("llama3-70b.yaml", schedule=name, vp=chunks)
    peak = other.metrics.memory.peak_bytes.max() / 2**30
    print(
        f"{name:>16} x{chunks}: {other.metrics.step_ns / 1e9:.2f} s, MFU {other.metrics.mfu:.1%}, {peak:.0f} GiB"
    )
print()

# Every slice is in columns, which numpy takes as they are; timeline[i] is one row for reading.
timeline = run.timeline
took = timeline.end_ns - timeline.start_ns
longest = int(took.argmax())
print(f"{len(timeline):,} slices on {timeline.lanes} lanes; the longest is {timeline[longest].action}")
worst = max(run.table(), key=lambda row: row["idle_ns"])
print(f"rank {worst['rank']} idles most: {worst['idle_ns'] / 1e9:.2f} s")

run.save("step.pftrace", only=["microbatches=0:32"])
