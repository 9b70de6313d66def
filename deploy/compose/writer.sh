#!/bin/sh
# The application of the demonstration: orders, until it is stopped.
set -eu

cd "$(dirname "$0")"
while :; do
    psql -X -q -v ON_ERROR_STOP=1 -f writer.sql
    sleep 0.2
done
