//! Static rates: `enum ibv_rate` to multiples of 2.5 Gb/s and to Mb/s, and back.
use std::ffi::c_int;

use crate::abi::*;

export!(ibv_rate_to_mult => "ibv_rate_to_mult" @@ "IBVERBS_1.0");
export!(mult_to_ibv_rate => "mult_to_ibv_rate" @@ "IBVERBS_1.0");
export!(ibv_rate_to_mbps => "ibv_rate_to_mbps" @@ "IBVERBS_1.1");
export!(mbps_to_ibv_rate => "mbps_to_ibv_rate" @@ "IBVERBS_1.1");

/// No multiple of 2.5 Gb/s.
const NONE: c_int = -1;

/// Rate, multiple of 2.5 Gb/s, Mb/s.
const RATES: [(u32, c_int, c_int); 23] = [
    (IBV_RATE_2_5_GBPS, 1, 2_500),
    (IBV_RATE_10_GBPS, 4, 10_000),
    (IBV_RATE_30_GBPS, 12, 30_000),
    (IBV_RATE_5_GBPS, 2, 5_000),
    (IBV_RATE_20_GBPS, 8, 20_000),
    (IBV_RATE_40_GBPS, 16, 40_000),
    (IBV_RATE_60_GBPS, 24, 60_000),
    (IBV_RATE_80_GBPS, 32, 80_000),
    (IBV_RATE_120_GBPS, 48, 120_000),
    (IBV_RATE_14_GBPS, NONE, 14_062),
    (IBV_RATE_56_GBPS, NONE, 56_250),
    (IBV_RATE_112_GBPS, NONE, 112_500),
    (IBV_RATE_168_GBPS, NONE, 168_750),
    (IBV_RATE_25_GBPS, NONE, 25_781),
    (IBV_RATE_100_GBPS, NONE, 103_125),
    (IBV_RATE_200_GBPS, NONE, 206_250),
    (IBV_RATE_300_GBPS, NONE, 309_375),
    (IBV_RATE_28_GBPS, 11, 28_125),
    (IBV_RATE_50_GBPS, 20, 53_125),
    (IBV_RATE_400_GBPS, 160, 425_000),
    (IBV_RATE_600_GBPS, 240, 637_500),
    (IBV_RATE_800_GBPS, 320, 850_000),
    (IBV_RATE_1200_GBPS, 480, 1_275_000),
];

/// Multiple of 2.5 Gb/s; -1 where the rate is none or unknown.
extern "C" fn ibv_rate_to_mult(rate: u32) -> c_int {
    RATES.iter().find(|r| r.0 == rate).map_or(NONE, |r| r.1)
}

/// The rate of this multiple of 2.5 Gb/s; `IBV_RATE_MAX` where there is none.
extern "C" fn mult_to_ibv_rate(mult: c_int) -> u32 {
    RATES.iter().find(|r| r.1 == mult && mult != NONE).map_or(IBV_RATE_MAX, |r| r.0)
}

/// Mb/s; -1 for an unknown rate.
extern "C" fn ibv_rate_to_mbps(rate: u32) -> c_int {
    RATES.iter().find(|r| r.0 == rate).map_or(NONE, |r| r.2)
}

/// The rate of this many Mb/s; `IBV_RATE_MAX` where there is none.
extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> u32 {
    RATES.iter().find(|r| r.2 == mbps).map_or(IBV_RATE_MAX, |r| r.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_convert_there_and_back() {
        for (rate, mult, mbps) in RATES {
            assert_eq!(ibv_rate_to_mbps(rate), mbps);
            assert_eq!(mbps_to_ibv_rate(mbps), rate);
            assert_eq!(ibv_rate_to_mult(rate), mult);
            assert_eq!(mult_to_ibv_rate(mult), if mult == NONE { IBV_RATE_MAX } else { rate });
        }
    }

    #[test]
    fn unknown_rates_are_maximum_or_minus_one() {
        assert_eq!(ibv_rate_to_mult(IBV_RATE_MAX), -1);
        assert_eq!(ibv_rate_to_mbps(99), -1);
        assert_eq!(mult_to_ibv_rate(3), IBV_RATE_MAX);
        assert_eq!(mbps_to_ibv_rate(-1), IBV_RATE_MAX);
    }
}
