#!/usr/bin/env bash
# Runs in the guest: guest-pingpong.sh FOLDER. Our urxe0 in the namespace "peer" against the kernel's vrxe with Debian's library,
# in both roles; our library is in FOLDER/lib. One line `ok NAME` or `not ok NAME: WHY` a run.
set -uo pipefail

lib=$1/lib
gid=0
# The index of vrxe's IPv4 GID, ::ffff:10.9.1.1.
for i in $(seq 0 15); do
  case $(cat "/sys/class/infiniband/vrxe/ports/1/gids/$i" 2>/dev/null) in
    0000:0000:0000:0000:0000:ffff:0a09:0101) gid=$i ;;
  esac
done

ours() { ip netns exec peer env ANYVERBS_SOFT=1 LD_LIBRARY_PATH="$lib" "$@"; }
port=19000

# pair NAME PROGRAM SERVER(ours|kernel) ARGS...
pair() {
  local name=$1 program=$2 role=$3 server client code out=/run/out
  shift 3
  port=$((port + 1))
  local kernel_side=("$program" -d vrxe -g "$gid" -p "$port" "$@") our_side=("$program" -d urxe0 -g 0 -p "$port" "$@")
  if [ "$role" = ours ]; then
    ours timeout 60 "${our_side[@]}" >$out.server 2>&1 &
  else
    timeout 60 "${kernel_side[@]}" >$out.server 2>&1 &
  fi
  server=$!
  for _ in $(seq 200); do
    if [ "$role" = ours ]; then ip netns exec peer ss -Htln "sport = :$port"; else ss -Htln "sport = :$port"; fi | grep -q . && break
    sleep 0.05
  done
  if [ "$role" = ours ]; then
    timeout 50 "${kernel_side[@]}" 10.9.1.2 >$out.client 2>&1
  else
    ours timeout 50 "${our_side[@]}" 10.9.1.1 >$out.client 2>&1
  fi
  client=$?
  [ $client -eq 0 ] || { sleep 1; kill $server 2>/dev/null; }
  wait $server
  code=$?
  if [ $client -eq 0 ] && [ $code -eq 0 ] && ! grep -q 'invalid data' $out.server $out.client; then
    echo "ok $name"
  else
    echo "not ok $name: client $client, server $code: $(tail -n3 $out.client $out.server | tr '\n' ' ')"
  fi
}

for role in ours kernel; do
  pair "rc, server $role" ibv_rc_pingpong $role -c -n 200
  pair "rc 65536 bytes, server $role" ibv_rc_pingpong $role -c -n 50 -s 65536
  pair "rc mtu 4096, server $role" ibv_rc_pingpong $role -c -n 100 -s 16384 -m 4096
  pair "rc events, server $role" ibv_rc_pingpong $role -c -n 100 -e
  pair "uc, server $role" ibv_uc_pingpong $role -c -n 100 -r 16
  pair "ud, server $role" ibv_ud_pingpong $role -c -n 200 -s 1024
  pair "ud events, server $role" ibv_ud_pingpong $role -c -n 100 -s 512 -e
done
echo "guest done"
