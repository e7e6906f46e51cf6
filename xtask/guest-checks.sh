# shellcheck shell=bash
# For scripts that run in the guest: one line `ok NAME` or `not ok NAME: WHY` a check. $out begins the names of files of the caller's.

port=19100
gid=1

# check NAME STATUS WHY
check() { if [ "$2" -eq 0 ]; then echo "ok $1"; else echo "not ok $1: $(printf %s "$3" | tr '\n' ' ' | tail -c 600)"; fi; }

# pair NAME SERVER CLIENT PROGRAM ARGS...: both must end well, and say nothing of invalid data.
pair() {
  local name=$1 server_side=$2 client_side=$3 server a b
  shift 3
  port=$((port + 1))
  local command=("$@" -d rxe0 -g $gid -p $port)
  $server_side timeout 60 "${command[@]}" >$out.server 2>&1 &
  server=$!
  for _ in $(seq 200); do
    ss -Htln "sport = :$port" | grep -q . && break
    sleep 0.05
  done
  $client_side timeout 50 "${command[@]}" 127.0.0.1 >$out.client 2>&1
  a=$?
  [ $a -eq 0 ] || { sleep 1; kill $server 2>/dev/null; }
  wait $server
  b=$?
  [ $a -eq 0 ] && [ $b -eq 0 ] && ! grep -q 'invalid data' $out.server $out.client
  check "$name" $? "client $a, server $b: $(tail -n 3 $out.client $out.server)"
}
