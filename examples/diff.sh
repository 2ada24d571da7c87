# Where does a measured step differ from the simulated one? run-1f1b/ is what PyTorch's profiler recorded of four
# processes on one machine, a file per rank; plan-1f1b.yaml is what they were meant to do.
set -eu

echo "== a plan against a run"
pptrace diff plan-1f1b.yaml run-1f1b --top 5 -o report.html -o both.pftrace -o both.tar || echo "exit code $?"
echo
echo "== all their traces, for the Perfetto UI"
tar tf both.tar
echo
echo "== a gate: a second recording may take 3 % longer"
pptrace diff run-1f1b run-1f1b --fail-over 3% > /dev/null && echo "passed"
