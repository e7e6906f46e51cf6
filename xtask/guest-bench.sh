#!/usr/bin/env bash
# Runs in the guest: guest-bench.sh LIB REPETITIONS. perftest between urxe0 in two namespaces, with our library in LIB, and
# between two devices of the kernel's rxe with Debian's, in turns; both ways are a veth of MTU 9000, each end is bound to a
# processor of its own. Prints `NAME VALUE`
# lines; NAME begins with `urxe_` or `rxe_` and ends in `_ns` (one way) or `_gbs`. `udp_send64_ns` is a datagram of the same size between
# two sockets that do nothing else, on the way of urxe0: what no program that sends and receives by sockets goes below.
# The rxe of this kernel works in the first namespace only: rules send its packets over the veth all the same.
set -uo pipefail

lib=$1 repetitions=$2
out=/run/bench-out
port=19500

ip netns add u0
ip netns add u1
ip link add uv0 netns u0 type veth peer name uv1 netns u1
ip link add kv0 type veth peer name kv1
for i in 0 1; do
  ip -n u$i link set lo up
  ip -n u$i addr add 10.9.4.$((i + 1))/24 dev uv$i
  ip -n u$i link set uv$i up mtu 9000
  ip addr add 10.9.3.$((i + 1))/32 dev kv$i
  ip link set kv$i up mtu 9000
  echo 1 >/proc/sys/net/ipv4/conf/kv$i/accept_local
  echo 0 >/proc/sys/net/ipv4/conf/kv$i/rp_filter
done
echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
for i in 0 1; do
  here=10.9.3.$((i + 1)) there=10.9.3.$((2 - i))
  ip route add $there dev kv$i src $here table $((100 + i))
  ip rule add pref $((10 + i)) iif lo from $here to $there lookup $((100 + i))
  ip neigh replace $there lladdr "$(cat /sys/class/net/kv$((1 - i))/address)" dev kv$i
  rdma link add kr$i type rxe netdev kv$i
done
# Behind the rules above, the table of what is this host's.
ip rule add pref 50 lookup local
ip rule del pref 0

gid_of() {
  for n in $(seq 0 15); do
    case $(cat /sys/class/infiniband/kr$1/ports/1/gids/$n 2>/dev/null) in *:ffff:0a09:030$(($1 + 1))) echo $n && return ;; esac
  done
}
kernel_gids=("$(gid_of 0)" "$(gid_of 1)")

# A port that no run before has had: a measurement is a subshell of its own.
next_port() {
  port=$(($(cat $out.port 2>/dev/null || echo $port) + 1))
  echo $port | tee $out.port
}

# end KIND I COMMAND...
end() {
  local kind=$1 i=$2
  shift 2
  if [ "$kind" = urxe ]; then
    exec ip netns exec u$i taskset -c "$i" env ANYVERBS_SOFT=1 LD_LIBRARY_PATH="$lib" timeout -k 5 60 "$@" -d urxe0 -x 0 -p $port
  fi
  exec taskset -c "$i" timeout -k 5 60 "$@" -d kr$i -x "${kernel_gids[$i]}" -p $port
}

# measure KIND NAME COLUMN PROGRAM ARGS...: the value in that column of the client's only line. Once more where there is none: in a second of
# the emulated processor rxe may complete nothing.
measure() {
  local said
  said=$(measure_once "$@") || said=$(measure_once "$@") || said="no figure for $1 $2:
$(tail -n 5 $out.client $out.server)"
  echo "$said"
}

measure_once() {
  local kind=$1 name=$2 column=$3 to=10.9.3.1 s
  shift 3
  [ "$kind" = urxe ] && to=10.9.4.1
  port=$(next_port)
  (end "$kind" 0 "$@" -F) >$out.server 2>&1 &
  s=$!
  for _ in $(seq 600); do
    if grep -qi ":$(printf %04x $port) .* 0A " /proc/$s/net/tcp /proc/$s/net/tcp6 2>/dev/null || [ ! -e /proc/$s ]; then break; fi
    sleep 0.05
  done
  # The client's arguments end with the host.
  (end "$kind" 1 "$@" -F $to) >$out.client 2>&1 || { sleep 1; kill $s 2>/dev/null; }
  wait $s
  awk -v name="${kind}_$name" -v column="$column" \
    '/^ *#bytes/ { t = 1; next } t && $1 > 0 && $2 > 0 { v = $column; n++ }
     END { if (n == 1 && v > 0) print name, name ~ /_ns$/ ? v * 1000 : v * 1048576 / 1e9; else exit 1 }' $out.client
}

udp_echo() {
  local echo=(timeout -k 5 30 "$lib/../bin/udp") s how="10.9.4.1 $(next_port) each 500 80 1"
  ip netns exec u0 taskset -c 0 "${echo[@]}" server $how >$out.server 2>&1 &
  s=$!
  ip netns exec u1 taskset -c 1 "${echo[@]}" client $how >$out.client 2>&1
  kill $s
  wait $s 2>/dev/null
  sed -n 's/^ns /udp_send64_ns /p' $out.client | grep . || { echo "no figure for udp:" && tail -n 5 $out.client; }
}

# Columns: typical of the latencies; average of the bandwidths, in MiB a second.
for _ in $(seq "$repetitions"); do
  # Short ones vary most.
  for _ in 1 2 3; do
    for kind in urxe rxe; do measure $kind send64_ns 5 ib_send_lat -s 64 -n 2000; done
    udp_echo
  done
  for how in write send read; do
    for kind in urxe rxe; do measure $kind ${how}64k_gbs 4 ib_${how}_bw -s 65536 -m 4096 -D 1; done
    for kind in urxe rxe; do measure $kind ${how}1m_gbs 4 ib_${how}_bw -s 1048576 -m 4096 -D 1; done
  done
done
echo "bench done"
