"""icrc.py SCAPY FILE [PCAP|- [LEAST]]: compares the ICRC of each packet in FILE (lines `source destination port payload-in-hex`) with the one that
scapy, in the folder SCAPY, computes. With PCAP, writes the packets there as whole IP packets. Fewer than LEAST packets (10000) are too few."""
import logging
import sys

sys.path.insert(0, sys.argv[1])
logging.getLogger("scapy").setLevel(logging.ERROR)
from scapy.compat import raw
from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Raw
from scapy.utils import wrpcap

packets, wrong = [], 0
for number, line in enumerate(open(sys.argv[2])):
    src, dst, port, payload = line.split()
    payload = bytes.fromhex(payload)
    ip = IPv6(src=src, dst=dst) if ":" in src else IP(src=src, dst=dst, id=0, flags="DF")
    udp = ip / UDP(sport=int(port), dport=4791)
    # The trailer is a field of scapy's BTH; None has it computed.
    bth = BTH(payload[:12] + bytes(4))
    bth.icrc = None
    theirs = raw(udp / bth / Raw(payload[12:-4]))
    if theirs[-4:] != payload[-4:] or theirs[-len(payload):-4] != payload[:-4]:
        wrong += 1
        if wrong < 5:
            print(f"packet {number}: ours {payload[-4:].hex()}, scapy's {theirs[-4:].hex()}: {line[:120]}")
    packets.append(udp / Raw(payload))
if len(sys.argv) > 3 and sys.argv[3] != "-":
    wrpcap(sys.argv[3], packets, linktype=101)
print(f"{len(packets)} packets, {wrong} wrong")
sys.exit(wrong != 0 or len(packets) < int(sys.argv[4] if len(sys.argv) > 4 else 10000))
