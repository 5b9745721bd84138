#!/bin/sh
# Add one to a counter that others may be adding to as well: read, compare and set, again on a conflict.
#
#     examples/increment.sh BUCKET KEY
set -u
bucket=$1 key=$2 tab=$(printf '\t')

while :; do
    entry=$(kvctl get "$bucket" "$key" --columns revision,value)
    case $? in
        0) revision=${entry%%"$tab"*} number=${entry#*"$tab"}
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
