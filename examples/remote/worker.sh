#!/bin/sh
# A worker in shell, with curl and python3 (which only reads and writes JSON):  sh worker.sh http://127.0.0.1:8787 [TASKS]
#
# Runs demo.shout, one task at a time: its input's `text` in capitals, after `seconds`. Beats beside the work. When a beat
# is refused for good, or none was answered for four fifths of the lease, the work is killed with all that it started,
# because the task belongs to somebody else then, or may soon; also when it is canceled, past its time limit, or left
# behind by this process. When it is drained it leaves and ends; with TASKS also after that many. SIGTERM, SIGINT and
# SIGHUP hand back what runs.
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
box=$folder/answer
id='' asking='' work='' beating='' report=''

ask() { # PATH BODY [SECONDS] → $status and $answer; fails unless it is 200. Without a whole answer the status is 000
  rm -f "$box"
  # In the background, because a shell that waits hears a signal at once, and one whose command runs does not.
  curl -sS --max-time "${3:-40}" -o "$box" -w '%{http_code}' -H 'content-type: application/json' -H "$who" \
    -d "$2" "$url$1" >"$box.status" &
  asking=$!
  if wait "$asking"; then status=$(cat "$box.status"); else status=000; fi
  asking='' answer=$(cat "$box" 2>/dev/null)
  [ "$status" = 200 ]
}

may_pass() { # whether the same, asked later, may be answered otherwise
  case $status in 000 | 408 | 429 | 5??) return 0 ;; *) return 1 ;; esac
}

give_up() {
  echo "refused: $status $answer" >&2
  exit 1
}

register() {
  until ask /internal/workers '{"worker_id": "shell", "actions": ["demo.shout"], "runtimes": ["shell"]}'; do
    may_pass || give_up
    sleep 1
  done
  id=$(printf %s "$answer" | of 'a["worker_id"]')
  beat_seconds=$(printf %s "$answer" | of 'a["heartbeat_seconds"] / 2')
  # Less one second, because clocks are read in whole ones.
  alone_seconds=$(printf %s "$answer" | of 'max(1, int(a["lease_seconds"] * 4 / 5) - 1)')
  echo "registered $id"
}

kill_work() { # with all that it started, also when it leads no group yet
  kill -9 "-$work" "$work" 2>/dev/null
}

beats() { # while the work runs; the time since which nobody answered is counted from before the call
  box=$folder/beat
  while sleep "$beat_seconds"; do
    if ! kill -0 $$ 2>/dev/null; then # nobody is left who would report: do not keep the task from others
      kill_work
      rm -rf "$folder"
      return
    fi
    began=$(date +%s)
    if ask /internal/heartbeat "$lease" "$beat_seconds" 2>/dev/null; then
      good_until=$((began + alone_seconds))
      [ "$(printf %s "$answer" | of 'a["cancel_requested"]')" = True ] || continue
      echo canceled >"$folder/why"
    elif ! may_pass || [ "$(date +%s)" -ge "$good_until" ]; then
      echo lost >"$folder/why"
    else
      continue
    fi
    kill_work
    return
  done
}

say() { # STATUS → $report
  report=$(python3 - "$lease" "$1" "$folder" <<'PYTHON'
import json, pathlib, sys
lease, status, folder = json.loads(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
if status == "completed":
    report = {"status": status, "outputs": json.loads((folder / "output").read_text())}
else:
    report = {"status": status, "error": {"message": (folder / "error").read_text()[-4000:] or status}}
print(json.dumps(lease | report))
PYTHON
  )
}

leave() {
  ask /internal/leave "{\"worker_id\": \"$id\"}" 5
  exit 0
}

stop() { # what ended is reported, what runs is handed back; without an answer the leave says as much
  trap '' TERM INT HUP
  [ -z "$asking" ] || kill "$asking" 2>/dev/null
  if [ -n "$work" ]; then
    kill "$beating" 2>/dev/null
    kill_work
    [ -n "$report" ] || say lost
  fi
  [ -z "$report" ] || ask /internal/task-complete "$report" 5
  [ -z "$id" ] || leave
  exit 0
}

trap stop TERM INT HUP
register
while [ "$left" -ne 0 ]; do
  if ! ask /internal/exchange "{\"worker_id\": \"$id\", \"limit\": 1, \"wait_seconds\": 20}"; then
    case $answer in
      *worker_not_registered*) register ;;
      *) may_pass || give_up; sleep 1 ;;
    esac
    continue
  fi
  if [ "$(printf %s "$answer" | of 'len(a["tasks"])')" -eq 0 ]; then
    # Drained: nothing more is given to it, and nothing runs.
    [ "$(printf %s "$answer" | of 'a["draining"]')" = True ] && break
    continue
  fi
  task=$(printf %s "$answer" | of 'json.dumps(a["tasks"][0])')
  lease=$(printf %s "$task" | of 'json.dumps({k: a[k] for k in ("task_id", "attempt", "lease_token")})')
  # The first beat comes before the work: the answer may be old by now, and the lease with it.
  good_until=$(($(date +%s) + alone_seconds))
  ask /internal/heartbeat "$lease" "$beat_seconds" || { sleep 1; continue; }
  rm -f "$folder/why"
  printf %s "$task" | of 'json.dumps(a["input"])' >"$folder/input"
  # The time limit is an alarm, which the work takes with it: 142 says that it rang.
  timeout_seconds=$(printf %s "$task" | of 'a["timeout_seconds"] or 0')
  python3 -c 'import os, signal, sys; os.setsid(); signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1]))
os.execvp("sh", ["sh", *sys.argv[2:]])' "$timeout_seconds" "$0" --action "$folder/input" \
    >"$folder/output" 2>"$folder/error" &
  work=$!
  beats &
  beating=$!
  wait "$work" 2>/dev/null
  case $? in 0) outcome=completed ;; 142) outcome=timed_out ;; *) outcome=failed ;; esac
  kill "$beating" 2>/dev/null
  kill -9 "-$work" 2>/dev/null # what it left behind
  case $(cat "$folder/why" 2>/dev/null) in
    lost) work='' && echo stopped && continue ;;
    canceled) outcome=canceled ;;
  esac
  say "$outcome"
  work=''
  # Repeated until it is decided: a report that was accepted before is accepted again, a late one is refused for good.
  until ask /internal/task-complete "$report"; do
    may_pass || { echo "refused"; break; }
    sleep 1
  done
  report=''
  left=$((left - 1))
done
leave
