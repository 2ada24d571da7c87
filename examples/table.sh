# A table written by hand, a rank per line, simulated by the core alone: no plugin takes part.
set -eu
export PPTRACE_DISABLE_PLUGINS=all

pptrace validate table.csv
echo
pptrace simulate --schedule table.csv
echo
pptrace simulate --schedule table.csv --p2p blocking
