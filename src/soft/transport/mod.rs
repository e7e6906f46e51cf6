//! PSNs, segmentation, ACK, RNR, retry and timers for udp, sans-I/O: packets and `now` in, packets and a deadline out.
