#!/usr/bin/env bash
# Runs in the guest: guest-sid.sh ROOT FOLDER. The kernel's rxe0 by the compiled provider of Debian sid in ROOT on our library, which
# lies there in opt/anyverbs/lib; beside sid's own library, and beside this Debian's provider on our library in FOLDER/lib.
# Its lines are those of guest-checks.sh.
set -uo pipefail

root=$1
lib=$2/lib
out=/run/sid-out
# shellcheck source=xtask/guest-checks.sh
. "$(dirname "$0")/guest-checks.sh"
cd /tmp || exit 1

for folder in proc sys dev; do mount --rbind /$folder "$root/$folder"; done
in_sid() { chroot "$root" env "$@"; }
ours() { in_sid LD_LIBRARY_PATH=/opt/anyverbs/lib ANYVERBS_PROVIDER=plugin "$@"; }
native() { in_sid LD_LIBRARY_PATH=/opt/anyverbs/lib ANYVERBS_PROVIDER=native "$@"; }
sid() { in_sid "$@"; }
older() { env LD_LIBRARY_PATH="$lib" ANYVERBS_PROVIDER=plugin "$@"; }

provider=$(basename "$root"/usr/lib/*/libibverbs/librxe-rdmav*.so)
[ "${provider//[!0-9]/}" -ge 65 ]
check "the provider's private ABI is 65 or later" $? "it is $provider"

# uses NAME SIDE FILE: an open device has this file mapped, and our library.
uses() {
  $2 LD_DEBUG=files timeout 60 ibv_devinfo -d rxe0 >$out.files 2>&1 &&
    grep -q "$3" $out.files && grep -q '/opt/anyverbs/lib/libibverbs' $out.files
  check "$1" $? "$(grep -v '^ *[0-9]*:' $out.files; grep -o '/[^ ]*\.so[^ ]*' $out.files | sort -u)"
}
uses "sid's provider is loaded by our library" ours "$provider"

sid timeout 60 ibv_devinfo -v >$out.a 2>&1
a=$?
for side in ours native; do
  $side timeout 60 ibv_devinfo -v >$out.b 2>&1
  b=$?
  [ $a -eq 0 ] && [ $b -eq 0 ] && cmp -s $out.a $out.b
  check "$side, ibv_devinfo -v as with sid's library" $? "exit $a and $b: $(diff $out.a $out.b | head -n 5)"
done

for row in "rc_pingpong -c -n 50" "rc_pingpong -c -n 50 -e" "rc_pingpong -c -n 50 -N" \
  "rc_pingpong -c -n 20 -s 65536 -m 4096" "uc_pingpong -c -n 30 -r 16" "ud_pingpong -c -n 50 -s 1024" \
  "ud_pingpong -c -n 50 -e" "srq_pingpong -c -n 50" "srq_pingpong -c -n 50 -e"; do
  for side in ours native sid; do
    # shellcheck disable=SC2086 # a row is a program and its arguments
    pair "$side, $row" $side $side ibv_$row
  done
done
for other in sid native older; do
  pair "ours and $other" $other ours ibv_rc_pingpong -c -n 50
  pair "$other and ours" ours $other ibv_rc_pingpong -c -n 50 -e
done
echo "sid done"
