#!/bin/sh
# A worker in shell, with curl and python3 (which only reads and writes JSON):  sh worker.sh http://127.0.0.1:8787 [TASKS]
#
# Runs demo.shout, one task at a time: its input's `text` in capitals, after `seconds`. Beats beside the work. When a beat
# is refused, or none was answered for four fifths of the lease, the work is killed with all that it started, because the
# task belongs to somebody else then, or may soon. With TASKS it ends after that many.
set -u

of() { # PYTHON-EXPRESSION over `a`, the JSON on stdin
  python3 -c "import json, sys; a = json.load(sys.stdin); print($1)"
}

action() { # the work itself: input in a file, output on stdout, both JSON
  sleep "$(of 'a.get("seconds", 0)' <"$1")"
  of 'json.dumps({"text": a["text"].upper()})' <"$1"
}

if [ "${1:-}" = --action ]; then # this script again, leading a process group of its own
  action "$2"
  exit
fi

url=${1:-${HOLDFAST_URL:-http://127.0.0.1:8787}}
left=${2:--1}
if [ -n "${HOLDFAST_TOKEN:-}" ]; then who="authorization: Bearer $HOLDFAST_TOKEN"; else who="x-dev-user: shell"; fi
folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT

post() { # PATH BODY [SECONDS] → the answer; fails unless it is 200
  curl -sS --fail-with-body --max-time "${3:-40}" -H 'content-type: application/json' -H "$who" -d "$2" "$url$1"
}

register() {
  until worker=$(post /internal/workers '{"worker_id": "shell", "actions": ["demo.shout"], "runtimes": ["shell"]}'); do
    sleep 1
  done
  id=$(printf %s "$worker" | of 'a["worker_id"]')
  beat_seconds=$(printf %s "$worker" | of 'a["heartbeat_seconds"] / 2')
  # Less one second, because clocks are read in whole ones.
  alone_seconds=$(printf %s "$worker" | of 'max(1, int(a["lease_seconds"] * 4 / 5) - 1)')
  echo "registered $id"
}

beats() { # while the work runs; the time since which nobody answered is counted from before the call
  while sleep "$beat_seconds"; do
    began=$(date +%s)
    if said=$(post /internal/heartbeat "$lease" "$beat_seconds" 2>/dev/null); then
      good_until=$((began + alone_seconds))
    elif [ -n "$said" ] || [ "$(date +%s)" -ge "$good_until" ]; then
      : >"$folder/stopped"
      kill -9 "-$work"
      return
    fi
  done
}

register
while [ "$left" -ne 0 ]; do
  if ! answer=$(post /internal/exchange "{\"worker_id\": \"$id\", \"limit\": 1, \"wait_seconds\": 20}"); then
    case $answer in *worker_not_registered*) register ;; *) sleep 1 ;; esac
    continue
  fi
  [ "$(printf %s "$answer" | of 'len(a["tasks"])')" -eq 0 ] && continue
  task=$(printf %s "$answer" | of 'json.dumps(a["tasks"][0])')
  lease=$(printf %s "$task" | of 'json.dumps({k: a[k] for k in ("task_id", "attempt", "lease_token")})')
  # The first beat comes before the work: the answer may be old by now, and the lease with it.
  good_until=$(($(date +%s) + alone_seconds))
  post /internal/heartbeat "$lease" "$beat_seconds" >/dev/null || continue
  rm -f "$folder/stopped"
  printf %s "$task" | of 'json.dumps(a["input"])' >"$folder/input"
  python3 -c 'import os, sys; os.setsid(); os.execvp("sh", ["sh", *sys.argv[1:]])' "$0" --action "$folder/input" \
    >"$folder/output" 2>"$folder/error" &
  work=$!
  beats &
  beating=$!
  if wait "$work" 2>/dev/null; then status=completed; else status=failed; fi
  kill "$beating" 2>/dev/null
  if [ -e "$folder/stopped" ]; then
    echo "stopped"
    continue
  fi
  report=$(python3 - "$lease" "$status" "$folder" <<'PYTHON'
import json, pathlib, sys
lease, status, folder = json.loads(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
if status == "completed":
    report = {"status": status, "outputs": json.loads((folder / "output").read_text())}
else:
    report = {"status": status, "error": {"message": (folder / "error").read_text()[-4000:]}}
print(json.dumps(lease | report))
PYTHON
)
  # Repeated until it is answered: a report that was accepted before is accepted again, a late one is refused for good.
  until said=$(post /internal/task-complete "$report"); do
    case $said in *LEASE*) echo "refused"; break ;; esac
    sleep 1
  done
  left=$((left - 1))
done
