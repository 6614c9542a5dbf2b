#!/bin/sh
# One fenced write with curl (7.84 or newer): write.sh ROLE PATH KEY JSON ORIGIN...
# Prints the answer. Exit 0: applied. 1: not applied. 75: not known; the same command with the same KEY asks again.
set -eu
role=$1 path=$2 key=$3 json=$4
shift 4
origins=" $* " # nothing else is ever sent to
unknown=no
answer=$(mktemp)
trap 'rm -f "$answer"' EXIT

for try in 1 2 3 4 5 6; do
  [ "$try" = 1 ] || sleep "${wait:-1}"
  wait=1

  # Who leads, and under which token? Any gateway can tell.
  found=
  for origin in "$@"; do
    found=$(curl -sS --fail --max-time 2 "$origin/.well-known/fencegate/leader/$role" || true)
    [ -z "$found" ] || break
  done
  token=$(printf %s "$found" | grep -o '"token":[0-9]*' | head -n 1 | cut -d : -f 2)
  leader=$(printf %s "$found" | grep -o '"url":"[^"]*"' | head -n 1 | cut -d '"' -f 4)
  [ -n "$token" ] || continue
  case "$origins" in *" $leader "*) ;; *) told="not one of the origins given: $leader"; continue ;; esac

  # No -L: a redirect is followed by nobody here. The key is the same on every try.
  told=$(curl -sS --max-time 10 -o "$answer" "$leader$path" \
    -w '%header{x-fencing-outcome} %header{x-fencing-applied} %header{x-fencing-retry} %{http_code} %header{retry-after}' \
    -H "X-Fencing-Token: $token" -H "Idempotency-Key: $key" -H 'Content-Type: application/json' --data-raw "$json") || told=
  case "$told" in
    accepted\ *) cat "$answer"; case "$told" in *" 2"[0-9][0-9]" "*) exit 0 ;; *) exit 1 ;; esac ;;
    ''|' '*|*" unknown "*) unknown=yes ;;   # no answer, not the gateway's, or the gateway does not know either
    *" no never "*) cat "$answer" >&2; [ $unknown = yes ] && exit 75; exit 1 ;;
    *" no "*) ;;                            # not applied: later, or elsewhere
    *) unknown=yes ;;
  esac
  after=${told##* }
  case "$after" in ''|*[!0-9]*) ;; *) wait=$((after > 15 ? 15 : after > 1 ? after : 1)) ;; esac
done
[ $unknown = yes ] && { echo "not known: ask again with the key $key" >&2; exit 75; }
echo "given up, nothing was applied: ${told:-nobody leads}" >&2
exit 1
