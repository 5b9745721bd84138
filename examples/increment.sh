#!/bin/sh
# Add one to a counter that others may be adding to as well: read, compare and set, again on a conflict.
#
#     examples/increment.sh BUCKET KEY
set -u
bucket=$1 key=$2

while :; do
    entry=$(kvctl get "$bucket" "$key" -o tsv)
    case $? in
        0) revision=$(printf '%s' "$entry" | cut -f3) number=$(printf '%s' "$entry" | cut -f6)
           kvctl update "$bucket" "$key" $((number + 1)) "$revision" > /dev/null ;;
        3) kvctl create "$bucket" "$key" 1 > /dev/null ;;
        *) exit 1 ;;
    esac
    case $? in
        0) exit 0 ;;
        4) ;; # somebody else was faster
        *) exit 1 ;;
    esac
done
