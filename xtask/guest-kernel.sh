#!/usr/bin/env bash
# Runs in the guest: guest-kernel.sh FOLDER. The kernel's rxe0 with our library, in FOLDER/lib, beside Debian's own library.
# Its lines are those of guest-checks.sh.
set -uo pipefail

lib=$1/lib
bin=$1/bin
out=/run/kernel-out
# shellcheck source=xtask/guest-checks.sh
. "$(dirname "$0")/guest-checks.sh"
cd /tmp || exit 1

ours() { env LD_LIBRARY_PATH="$lib" "$@"; }
debian() { "$@"; }

# same NAME COMMAND...: prints the same with both libraries, and ends alike.
same() {
  local name=$1 a b
  shift
  debian timeout 60 "$@" >$out.debian 2>&1
  a=$?
  ours timeout 60 "$@" >$out.ours 2>&1
  b=$?
  [ $a -eq $b ] && cmp -s $out.debian $out.ours
  check "$name" $? "exit $a and $b: $(diff $out.debian $out.ours | head -n 5)"
}

same "ibv_devices" ibv_devices
same "ibv_devinfo -l" ibv_devinfo -l
same "no such device" ibv_devinfo -d nothing

ours env ANYVERBS_SOFT=1 ibv_devices >$out.soft 2>&1
[ "$(awk 'NR > 2 { print $1 }' $out.soft | tr '\n' ' ')" = "rxe0 vrxe urxe0 " ]
check "urxe0 beside kernel devices where it is asked for" $? "$(cat $out.soft)"

for one in "$@"; do
  case $one in plugin | native) ;; *) continue ;; esac
  ours() { env LD_LIBRARY_PATH="$lib" ANYVERBS_PROVIDER="$one" "$@"; }
  same "$one, ibv_devinfo -v" ibv_devinfo -v
  same "$one, a bad port" ibv_devinfo -d rxe0 -i 2
  for row in "rc_pingpong -c -n 50" "rc_pingpong -c -n 50 -e" "rc_pingpong -c -n 50 -N" \
    "rc_pingpong -c -n 20 -s 65536 -m 4096" "uc_pingpong -c -n 30 -r 16" "ud_pingpong -c -n 50 -s 1024" \
    "ud_pingpong -c -n 50 -e" "srq_pingpong -c -n 50" "srq_pingpong -c -n 50 -e"; do
    # shellcheck disable=SC2086 # a row is a program and its arguments
    pair "$one, $row" ours ours ibv_$row
  done
  pair "$one, Debian's server" debian ours ibv_rc_pingpong -c -n 50
  pair "$one, Debian's client" ours debian ibv_rc_pingpong -c -n 50 -e
  export C_TESTS_DEVICE=rxe0 C_TESTS_GID=$gid
  for program in rc_loopback atomics overrun; do
    same "$one, $program" "$bin/kernel-$program"
  done
  unset C_TESTS_DEVICE C_TESTS_GID

  # Events of a port reach the program that waits for them.
  ip link add dummy9 type dummy && ip link set dummy9 up && rdma link add brief type rxe netdev dummy9
  ours timeout 30 stdbuf -oL ibv_asyncwatch -d brief >$out.watch 2>&1 &
  watch=$!
  seen() { for _ in $(seq 200); do grep -qi "$1" $out.watch && return; sleep 0.05; done; return 1; }
  seen 'async event FD' && ip link set dummy9 down && seen 'port_err\|port error' && ip link set dummy9 up && seen 'port_active\|port active'
  check "$one, events of a port" $? "$(cat $out.watch)"
  kill $watch 2>/dev/null
  wait $watch
  rdma link delete brief
  ip link delete dummy9
  same "$one, the list without a device that went" ibv_devices
done
echo "kernel done"
