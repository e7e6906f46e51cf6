#!/usr/bin/env bash
# Runs in the guest: guest-wire.sh FOLDER ROWS EXPECTED. Our urxe0 in the namespace "peer" against the kernel's vrxe with Debian's
# library, over veth. Our library is in FOLDER/lib, C programs in FOLDER/bin, for vrxe those named kernel-*. A line of the
# file ROWS is a run, both of whose ends must end well, or a state of the network:
#   pingpong|perftest|program SERVER FAMILY PROGRAM ARGS...
#   netem LOSS|off|dropped
# Programs in FOLDER must print what EXPECTED/PROGRAM.client.txt and .server.txt say, where those are.
# SERVER is `ours` or `kernel`; FAMILY is that of the GIDs, 4, 6, or 46 for programs that take several. One line `ok ROW` or
# `not ok ROW: WHY` each, and `figure ROW: TEXT` for what perftest measured.
set -uo pipefail

lib=$1/lib bin=$1/bin rows=$2
out=/run/wire-out
port=19000
export C_TESTS_SECONDS=100

# Where the programs meet, which loses nothing.
ip link add ctl0 type veth peer name ctl1 netns peer
ip addr add 10.9.2.1/24 dev ctl0
ip link set ctl0 up
ip -n peer addr add 10.9.2.2/24 dev ctl1
ip -n peer link set ctl1 up
ip addr add fd00:9:1::1/64 dev veth0 nodad
ip -n peer addr add fd00:9:1::2/64 dev veth1 nodad
ip netns exec peer sleep 100000 &
holder=$!
# Until the kernel has tried out the interfaces' own addresses, rows of GID tables come and go.
for _ in $(seq 200); do
  if ! { ip -6 addr show; ip -n peer -6 addr show; } | grep -q tentative &&
    [ "$(ip -n peer -6 addr show scope link | grep -c inet6)" -eq 2 ]; then break; fi
  sleep 0.05
done

ours() { exec ip netns exec peer env ANYVERBS_SOFT=1 LD_LIBRARY_PATH="$lib" "$@"; }
kernel() { exec "$@"; }

# of GIDS: the index of each family's GID, from lines `INDEX GID`.
gids_of() { awk -v four="$1" -v six="$2" '$2 == four { a = $1 } $2 == six { b = $1 } END { print a, b }'; }
for _ in $(seq 100); do
  read -r kernel4 kernel6 < <(
    for i in $(seq 0 15); do echo "$i $(cat "/sys/class/infiniband/vrxe/ports/1/gids/$i")"; done 2>/dev/null |
      gids_of 0000:0000:0000:0000:0000:ffff:0a09:0101 fd00:0009:0001:0000:0000:0000:0000:0001
  )
  [ -n "$kernel6" ] && break
  sleep 0.05
done
read -r ours4 ours6 < <(
  (ours ibv_devinfo -v -d urxe0) | sed -n 's/.*GID\[ *\([0-9]*\)\]:[[:space:]]*\([^,[:space:]]*\).*/\1 \2/p' |
    gids_of ::ffff:10.9.1.2 fd00:9:1::2
)
echo "GIDs: kernel $kernel4 $kernel6, ours $ours4 $ours6"

gid() {
  case $2 in
    4) eval echo "\$${1}4" ;;
    6) eval echo "\$${1}6" ;;
    *) eval echo "\$${1}4,\$${1}6" ;;
  esac
}
device() { if [ "$1" = ours ]; then echo urxe0; else echo vrxe; fi; }

# run SIDE SECONDS FILE COMMAND...: in the background.
run() {
  local side=$1 seconds=$2 file=$3
  shift 3
  ($side timeout -k 5 "$seconds" "$@") >"$file" 2>&1 &
}

# listening PID PORT
listening() { grep -qi ":$(printf %04x "$2") .* 0A " "/proc/$1/net/tcp" "/proc/$1/net/tcp6" 2>/dev/null; }

# differs END: from what is expected. Whether a flushed request was a receive, Debian's provider does not tell.
differs() {
  diff <(plain <"$expected/$program.$1.txt") <(plain <$out.$1)
}
plain() { sed -e '/^port /d' -e 's/\(Flushed Error\), .*/\1/'; }

# pair KIND SERVER FAMILY PROGRAM ARGS...
pair() {
  local kind=$1 server=$2 family=$3 program=$4 client=kernel host=10.9.2.2 where=$holder s c
  shift 4
  if [ "$server" = kernel ]; then client=ours host=10.9.2.1 where=$$; fi
  port=$((port + 1))
  rm -f $out.*
  case $kind in
    pingpong | perftest)
      local index=-g
      [ $kind = perftest ] && index=-x
      run $server 100 $out.server "$program" -d "$(device $server)" $index "$(gid $server $family)" -p $port "$@"
      s=$!
      for _ in $(seq 600); do
        if listening $where $port || [ ! -e /proc/$s ]; then break; fi
        sleep 0.05
      done
      run $client 90 $out.client "$program" -d "$(device $client)" $index "$(gid $client $family)" -p $port "$@" $host
      c=$!
      ;;
    program)
      local name_s=$bin/$program name_c=$bin/kernel-$program
      [ $server = kernel ] && name_s=$bin/kernel-$program name_c=$bin/$program
      run $server 100 $out.server env C_TESTS_DEVICE="$(device $server)" C_TESTS_GID="$(gid $server $family)" \
        "$name_s" "$@" server $host
      s=$!
      for _ in $(seq 600); do
        if grep -q ^port $out.server 2>/dev/null || [ ! -e /proc/$s ]; then break; fi
        sleep 0.05
      done
      run $client 90 $out.client env C_TESTS_DEVICE="$(device $client)" C_TESTS_GID="$(gid $client $family)" \
        "$name_c" "$@" client "$(sed -n 's/^port //p' $out.server)" $host
      c=$!
      ;;
    *) why="no such kind" && return 1 ;;
  esac
  wait $c
  c=$?
  [ $c -eq 0 ] || { sleep 2; kill $s 2>/dev/null; }
  wait $s
  s=$?
  why="client $c, server $s: $(tail -n 6 $out.client) | $(tail -n 6 $out.server)"
  [ $c -eq 0 ] && [ $s -eq 0 ] && ! grep -q 'invalid data' $out.server $out.client || return 1
  if [ $kind = program ] && [ -e "$expected/$program.client.txt" ]; then
    why=$(differs client; differs server)
    [ -z "$why" ] || return 1
  fi
  # The line of figures behind the head of the table; a program that measured nothing has none.
  [ $kind != perftest ] || figure=$(awk '/^ *#bytes/ { t = 1; next } t && $1 > 0 && $2 > 0 { $1 = $1; print; n++ } END { exit !n }' $out.client)
}

brief() { printf %s "$1" | tr '\n' ' ' | tail -c 700; }

# On both ends, so each way.
netem() {
  local lost=0
  case $1 in
    off) tc qdisc del dev veth0 root && ip netns exec peer tc qdisc del dev veth1 root ;;
    dropped)
      lost=$( (tc -s qdisc show dev veth0; ip netns exec peer tc -s qdisc show dev veth1) |
        grep -A1 netem | grep -c 'dropped [1-9]')
      [ "$lost" -eq 2 ]
      ;;
    *) tc qdisc replace dev veth0 root netem loss "$1" && ip netns exec peer tc qdisc replace dev veth1 root netem loss "$1" ;;
  esac
}

expected=$3
while read -r row; do
  why='' figure=''
  # shellcheck disable=SC2086 # a row is words
  set -- $row
  if [ "$1" = netem ]; then
    netem "$2" && echo "ok $row" || echo "not ok $row: tc"
    continue
  fi
  # soft-RoCE's requester has races of its own, which losses and a busy machine make likely.
  good=
  for try in 1 2 3; do
    pair "$@" </dev/null && good=yes && break
    if [ $try -lt 3 ]; then echo "again $row: $(brief "$why")"; fi
  done
  if [ -z "$good" ]; then
    echo "not ok $row: $(brief "$why")"
    continue
  fi
  echo "ok $row"
  [ -z "$figure" ] || echo "figure $row: $figure"
done <"$rows"
kill $holder
echo "wire done"
