#!/usr/bin/env bash
# Boots a throw-away Linux guest that has a real kernel RDMA device and runs one command in it.
#
#   guest.sh [-k KERNEL_PACKAGE] [-t SECONDS] COMMAND [ARG...]
#
# The guest is Debian's own kernel under QEMU's software emulation (no KVM needed). Its root is this machine's root,
# read-only over 9p with a tmpfs on top: every program that is installed or built here runs there unchanged, and nothing
# that it writes survives. COMMAND runs as root in the current folder, with
#   rxe0    soft-RoCE on dummy0, 10.9.0.1/24 and fd00:9::1/64, MTU 9000
#   vrxe    soft-RoCE on veth0, 10.9.1.1/24; its peer veth1 is 10.9.1.2/24 in the network namespace "peer"
# Kernel devices are visible in every namespace: ANYVERBS_SOFT=1 lists urxe0 in "peer".
# Variables named ANYVERBS_*, VERBS_*, RUST*, CARGO_* and HOME are handed on.
# Exit status: COMMAND's own; 124: the guest ran past SECONDS.
set -euo pipefail

kernel=linux-image-amd64 seconds=600
while getopts k:t: option; do
  case $option in
    k) kernel=$OPTARG ;;
    t) seconds=$OPTARG ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || { sed -n '2,15s/^# \{0,1\}//p' "$0"; exit 2; }
PATH=$PATH:/usr/sbin:/sbin
cache=${ANYVERBS_GUEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/anyverbs-guest}
modules="crc32_generic crc32c_generic crc32-pclmul virtio_pci 9pnet_virtio 9p overlay dummy veth sch_netem ib_uverbs rdma_ucm ib_umad rdma_rxe"

# The meta package depends on the real one, whose name has the release.
real_image() { apt-cache depends "$kernel" 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n1; }
image=$(real_image)
[ -n "$image" ] || { apt-get -qq update && image=$(real_image); }
release=${image#linux-image-}
[ -n "$release" ] || { echo "guest.sh: apt knows no kernel package $kernel" >&2; exit 1; }
boot=$cache/$release

make_boot_files() {
  local tree=$boot.new/tree initramfs=$boot.new/initramfs module file
  rm -rf "$boot.new"
  mkdir -p "$tree" "$initramfs"/{bin,dev,proc,sys}
  # apt drops to a user of its own for downloads, who cannot write everywhere; that is only a warning.
  (cd "$tree" && apt-get -qq download "$image" 2>/dev/null && dpkg -x ./*.deb .)
  depmod -b "$tree" "$release"
  for module in $modules; do
    modprobe -d "$tree" -S "$release" --show-depends "$module" 2>/dev/null || true
  done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | sort -u | while read -r file; do
    install -D "$file" "$initramfs/${file#"$tree/"}"
  done
  cp "$tree/lib/modules/$release"/modules.{order,builtin,builtin.modinfo} "$initramfs/lib/modules/$release/"
  depmod -b "$initramfs" "$release"
  cp "$(command -v busybox)" "$initramfs/bin/busybox"
  cat >"$initramfs/init" <<INIT
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm /host /top /root
mount -t devpts pts /dev/pts
mount -t tmpfs shm /dev/shm
ln -sf /proc/self/fd /dev/fd
echo /bin/modprobe >/proc/sys/kernel/modprobe
for m in $modules; do modprobe \$m 2>/dev/null; done
share="trans=virtio,version=9p2000.L,msize=262144"
mount -t 9p -o \$share,cache=loose,ro host /host
mount -t tmpfs top /top
mkdir /top/upper /top/work
mount -t overlay -o lowerdir=/host,upperdir=/top/upper,workdir=/top/work root /root
for d in proc sys dev; do mount --rbind /\$d /root/\$d; done
mount -t tmpfs tmp /root/run
mount -t 9p -o \$share,cache=none job /root/run
chroot /root /bin/bash /run/job
echo \$? >/root/run/status
sync
poweroff -f
INIT
  chmod +x "$initramfs/init"
  (cd "$initramfs" && find . | cpio -o -H newc --quiet | gzip -1) >"$boot.new/initrd"
  mv "$tree/boot/vmlinuz-$release" "$boot.new/vmlinuz"
  rm -rf "$tree" "$initramfs" "$boot"
  mv "$boot.new" "$boot"
}
[ -e "$boot/initrd" ] || { mkdir -p "$cache"; make_boot_files; }

job=$(mktemp -d)
trap 'rm -rf "$job"' EXIT
{
  cat <<'SETUP'
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ip link set lo up
ip link add dummy0 type dummy 2>/dev/null
ip link set dummy0 up mtu 9000
ip addr add 10.9.0.1/24 dev dummy0
ip addr add fd00:9::1/64 dev dummy0 nodad
ip netns add peer
ip link add veth0 type veth peer name veth1 netns peer
ip link set veth0 up mtu 9000
ip addr add 10.9.1.1/24 dev veth0
ip -n peer link set lo up
ip -n peer link set veth1 up mtu 9000
ip -n peer addr add 10.9.1.2/24 dev veth1
rdma link add rxe0 type rxe netdev dummy0
rdma link add vrxe type rxe netdev veth0
SETUP
  declare -px | grep -E '^declare -x (ANYVERBS_|VERBS_|RUST|CARGO_|HOME=)' || true
  # The empty line ends the firmware's last one, which is not shown.
  printf 'cd %q\nexec 2>&1\necho\n' "$PWD"
  printf '%q ' "$@"
  printf '\n'
} >"$job/job"
timeout "$seconds" qemu-system-x86_64 -accel tcg,thread=multi,tb-size=512 -cpu max -smp 2 -m 4096 \
  -kernel "$boot/vmlinuz" -initrd "$boot/initrd" -append "console=ttyS0 quiet loglevel=3 panic=-1 tsc=reliable no_timer_check" \
  -nographic -no-reboot -nic none \
  -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
  -virtfs local,path="$job",mount_tag=job,security_model=none,multidevs=remap </dev/null 2>&1 |
  sed -u -e 's/\r$//' -e '/SeaBIOS/d' -e '/Booting from ROM/d' -e '/reboot: Power down/d' -e 's/\x1b[^mlhJ]*[mlhJ]//g' -e '/^$/d' || true
[ -s "$job/status" ] || exit 124
exit "$(cat "$job/status")"
