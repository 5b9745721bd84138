#!/bin/sh
# Keep the current rows of a bucket in a Delta table: each run adds what changed since the last one.
#
#     examples/bucket-to-delta.sh BUCKET URI
#
# Any reader of Delta tables reads it; the bucket's history is not needed, and a run that is killed is run again.
set -eu
kvctl pipeline capture "$1" --to "$2" --mode latest --once
kvctl pipeline verify "$2"
