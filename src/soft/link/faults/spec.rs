//! What is to go wrong, as users write it: `loss=1%,dup=0.1%,delay=200us,seed=7`.
use std::fmt;
use std::str::FromStr;

/// The longest delay that is taken for meant, nanoseconds.
const MAX_DELAY: u64 = 10_000_000_000;

/// How often something happens, as a share of 2^64.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rate(u64);

impl Rate {
    /// `percent` in a hundred, 0 to 100.
    fn of(percent: f64) -> Self {
        // The cast saturates: 100 % is all of them.
        Self((percent / 100.0 * 2f64.powi(64)) as u64)
    }

    /// Whether it happens to the throw `random`, of which any is as likely.
    pub const fn hits(self, random: u64) -> bool {
        random < self.0 || self.0 == u64::MAX
    }

    /// It never happens.
    pub const fn is_never(self) -> bool {
        self.0 == 0
    }
}

/// What is to go wrong; nothing by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spec {
    /// Packets that are lost.
    pub loss: Rate,
    /// Packets that arrive twice.
    pub dup: Rate,
    /// Packets that arrive behind those after them.
    pub reorder: Rate,
    /// Packets that arrive damaged.
    pub corrupt: Rate,
    /// Requests that are answered with RNR though a receive is posted.
    pub rnr: Rate,
    /// How much later everything arrives, nanoseconds.
    pub delay: u64,
    /// After how many work requests a queue pair fails.
    pub kill_qp_after: Option<u64>,
    /// What all chance comes from.
    pub seed: u64,
}

impl Default for Spec {
    fn default() -> Self {
        let never = Rate::default();
        Self {
            loss: never,
            dup: never,
            reorder: never,
            corrupt: never,
            rnr: never,
            delay: 0,
            kill_qp_after: None,
            seed: 1,
        }
    }
}

/// The item of a specification that is wrong, and what would be right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadItem {
    item: String,
    expected: &'static str,
}

impl fmt::Display for BadItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\": expected {}", self.item.escape_debug(), self.expected)
    }
}

const ITEMS: &str = "loss=, dup=, reorder=, corrupt=, rnr= with a percentage (1%), delay= with a time (200us), kill_qp_after= or seed= with a number, separated by commas";
const PERCENTAGE: &str = "a percentage from 0% to 100%, as 1% or 0.01%";
const TIME: &str = "a time with its unit, at most 10s, as 500ns, 200us, 5ms or 1s";
const NUMBER: &str = "a number";

impl FromStr for Spec {
    type Err = BadItem;

    /// Items with commas between them; blanks around them do not count, of an item given twice the last one counts.
    fn from_str(text: &str) -> Result<Self, BadItem> {
        let mut spec = Self::default();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let bad = |expected| BadItem { item: item.into(), expected };
            let (name, value) = item.split_once('=').ok_or(bad(ITEMS))?;
            let rate = || percentage(value.trim()).ok_or(bad(PERCENTAGE));
            let number = || value.trim().parse().map_err(|_| bad(NUMBER));
            match name.trim() {
                "loss" => spec.loss = rate()?,
                "dup" => spec.dup = rate()?,
                "reorder" => spec.reorder = rate()?,
                "corrupt" => spec.corrupt = rate()?,
                "rnr" => spec.rnr = rate()?,
                "delay" => spec.delay = time(value.trim()).ok_or(bad(TIME))?,
                "kill_qp_after" => spec.kill_qp_after = Some(number()?),
                "seed" => spec.seed = number()?,
                _ => return Err(bad(ITEMS)),
            }
        }
        Ok(spec)
    }
}

impl Spec {
    /// Nothing goes wrong.
    pub fn is_nothing(&self) -> bool {
        Self { seed: 1, ..*self } == Self::default()
    }
}

fn percentage(text: &str) -> Option<Rate> {
    let percent: f64 = plain(text.strip_suffix('%')?)?;
    (0.0..=100.0).contains(&percent).then(|| Rate::of(percent))
}

fn time(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return None,
    };
    let ns = plain(digits)? * unit;
    (ns <= MAX_DELAY as f64).then_some(ns as u64)
}

/// Digits and a point; not all else that numbers can be written as.
fn plain(text: &str) -> Option<f64> {
    text.bytes().all(|b| b.is_ascii_digit() || b == b'.').then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_items_are_read() {
        let spec: Spec =
            "loss=1%, dup=0.1%,reorder=2%,corrupt=0.01%,rnr=50%,delay=200us,kill_qp_after=100,seed=7"
                .parse()
                .unwrap();
        assert_eq!((spec.delay, spec.kill_qp_after, spec.seed), (200_000, Some(100), 7));
        let rates = [spec.loss, spec.dup, spec.reorder, spec.corrupt, spec.rnr];
        for (rate, percent) in rates.into_iter().zip([1.0, 0.1, 2.0, 0.01, 50.0]) {
            let share = rate.0 as f64 / 2f64.powi(64) * 100.0;
            assert!((share - percent).abs() < 1e-9, "{share} {percent}");
        }
        assert!(!spec.is_nothing());
    }

    #[test]
    fn nothing_is_a_specification_and_a_seed_alone_is_nothing() {
        for text in ["", " ", ",", "loss=0%", "delay=0us", "seed=9", "loss=3%,loss=0%"] {
            assert!(text.parse::<Spec>().unwrap().is_nothing(), "{text:?}");
        }
    }

    #[test]
    fn all_or_nothing_is_exact() {
        let (all, none) = (Rate::of(100.0), Rate::of(0.0));
        for random in [0, 1, u64::MAX / 2, u64::MAX] {
            assert!(all.hits(random) && !none.hits(random));
        }
        assert!(Rate::of(50.0).hits(u64::MAX / 2 - 1) && !Rate::of(50.0).hits(u64::MAX / 2 + 2));
    }

    #[test]
    fn a_wrong_item_is_named_with_what_is_right() {
        for (text, item, expected) in [
            ("loss=1", "loss=1", PERCENTAGE),
            ("dup=1%,loss=-1%", "loss=-1%", PERCENTAGE),
            ("loss=101%", "loss=101%", PERCENTAGE),
            ("loss=1e1%", "loss=1e1%", PERCENTAGE),
            ("loss=%", "loss=%", PERCENTAGE),
            ("loss=nan%", "loss=nan%", PERCENTAGE),
            ("delay=5", "delay=5", TIME),
            ("delay=11s", "delay=11s", TIME),
            ("delay=1h", "delay=1h", TIME),
            ("kill_qp_after=-1", "kill_qp_after=-1", NUMBER),
            ("seed=", "seed=", NUMBER),
            ("lose=1%", "lose=1%", ITEMS),
            ("loss", "loss", ITEMS),
            ("loss=1%;dup=1%", "loss=1%;dup=1%", PERCENTAGE),
            ("\u{1b}[2J=1", "\u{1b}[2J=1", ITEMS),
        ] {
            let bad = text.parse::<Spec>().expect_err(text);
            assert_eq!(bad, BadItem { item: item.into(), expected });
            let line = bad.to_string();
            assert!(!line.contains('\u{1b}') && line.contains(expected), "{line}");
        }
    }
}
