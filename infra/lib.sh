# Shell functions of the server scripts. Source it; it changes nothing by itself. The script that sources it
# sets $state, the directory of its server, from the environment's STATE.
#
#   start NAME LOG CMD...     start CMD detached; its pid goes to $state/NAME.pid, its output to LOG
#   stop NAME [SECONDS]       SIGTERM the recorded process, SIGKILL it after SECONDS (default 15)
#   alive NAME                true while the recorded process runs
#   pid_of NAME               its pid
#   ready SECONDS NAME LOG CMD...   poll CMD until it succeeds; fail when the process dies or time runs out
#   port_free HOST PORT       fail when something else listens there, after PORT_S_MAX (20): it would be taken for ours
#   listening HOST PORT       true when a TCP connection is accepted
#   need CMD...               fail with one line that names the first missing command
#
# A pid file also holds the start time of the process, so that a recycled pid is never signalled.

die() { printf 'error: %s\n' "$*" >&2; exit 1; }

need() {
  local command
  for command in "$@"; do
    command -v "$command" >/dev/null 2>&1 || die "the command '$command' is missing: install it first"
  done
}

started_at() { # start time of a pid in clock ticks; nothing when it is gone or a zombie
  local fields
  fields=$(cat "/proc/$1/stat" 2>/dev/null) || return 0
  fields=${fields##*) } # the name in parentheses may hold spaces
  set -- $fields
  # A zombie whose other threads still end (${18} counts them) holds its sockets and files.
  { [ "$1" = Z ] && [ "${18}" -le 1 ]; } || echo "${20}"
}

alive() {
  local pid ticks
  [ -f "$state/$1.pid" ] && read -r pid ticks <"$state/$1.pid" || return 1
  [ -n "$ticks" ] && [ "$(started_at "$pid")" = "$ticks" ]
}

pid_of() { local pid ticks; read -r pid ticks <"$state/$1.pid" && echo "$pid"; }

start() {
  local name=$1 log=$2 pid
  shift 2
  alive "$name" && return 0
  setsid "$@" </dev/null >>"$log" 2>&1 &
  pid=$!
  echo "$pid $(started_at "$pid")" >"$state/$name.pid"
}

gone_within() { # NAME SECONDS
  local deadline=$((SECONDS + $2))
  while alive "$1"; do
    [ $SECONDS -lt $deadline ] || return 1
    sleep 0.1
  done
}

stop() {
  local name=$1 limit=${2:-15} pid
  if alive "$name"; then
    pid=$(pid_of "$name")
    kill -TERM "$pid" 2>/dev/null || true
    gone_within "$name" "$limit" || { kill -KILL "$pid" 2>/dev/null || true; }
    gone_within "$name" 60 || die "$name (pid $pid) does not stop"
  fi
  rm -f "$state/$name.pid"
}

ready() {
  local limit=$1 name=$2 log=$3 deadline why=
  shift 3
  deadline=$((SECONDS + limit))
  until alive "$name" && "$@" >/dev/null 2>&1; do
    alive "$name" || why="$name died"
    [ $SECONDS -lt $deadline ] || why="$name is not ready after $limit s"
    if [ -n "$why" ]; then
      [ -f "$log" ] && { printf '%s\n' "--- tail of $log" >&2; tail -n 40 "$log" >&2; }
      printf 'error: %s\n' "$why" >&2
      return 1
    fi
    sleep 0.1
  done
}

listening() { (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; }
port_free() {
  # A killed process may hold its sockets for a moment longer.
  local deadline=$((SECONDS + ${PORT_S_MAX:-20}))
  while listening "$1" "$2"; do
    [ $SECONDS -lt $deadline ] || die "another process listens on $1:$2: choose another --port"
    sleep 0.1
  done
}
memory_mb() { awk '/^VmRSS/ { printf "%d", $2 / 1024 }' "/proc/$1/status" 2>/dev/null || echo 0; }
