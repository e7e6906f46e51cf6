//! Figures by name, their medians and spread, and the table of them beside their floors.
use std::{collections::BTreeMap, fmt, fs, path::Path};

/// One line of the table: a figure, its floor, and the limit that their ratio must keep.
#[derive(Clone)]
pub struct Row<'a> {
    pub what: &'a str,
    /// Names whose end is the unit: `_ns`, `_gbs`, `_mps` (millions a second), `_ir` (instructions) or none.
    pub figure: &'a str,
    /// Empty: the limit is the figure's own.
    pub floor: &'a str,
    pub floor_is: &'a str,
    pub limit: Option<Limit>,
}

/// What a ratio must keep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// figure / floor at most this.
    Most(f64),
    /// figure / floor at least this.
    Least(f64),
}

pub const fn row<'a>(
    what: &'a str,
    figure: &'a str,
    floor: &'a str,
    floor_is: &'a str,
    limit: Option<Limit>,
) -> Row<'a> {
    Row { what, figure, floor, floor_is, limit }
}

/// The values of each figure, in the order in which they were measured.
#[derive(Default)]
pub struct Samples(BTreeMap<String, Vec<f64>>);

impl Samples {
    /// Adds the `NAME VALUE` lines of a program's output, each name behind `prefix`.
    pub fn read(&mut self, prefix: &str, text: &str) {
        for line in text.lines() {
            if let Some((name, value)) = line.split_once(' ')
                && let Ok(value) = value.trim().parse()
            {
                self.add(format!("{prefix}{name}"), value);
            }
        }
    }

    pub fn add(&mut self, name: String, value: f64) {
        self.0.entry(name).or_default().push(value);
    }

    /// Figures.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The median of a figure's values.
    pub fn median(&self, name: &str) -> Result<f64, String> {
        let values = self.0.get(name).ok_or_else(|| format!("no program printed {name}"))?;
        Ok(median(values))
    }

    /// Holds every row to its limit.
    pub fn judge(&self, rows: &[Row<'_>]) -> Result<Vec<Judged>, String> {
        rows.iter().map(|row| self.judge_one(row)).collect()
    }

    fn judge_one(&self, row: &Row<'_>) -> Result<Judged, String> {
        let figure = self.value(row.figure)?;
        let floor = match row.floor {
            "" => None,
            name => Some(self.value(name)?),
        };
        let held = floor.as_ref().map_or(figure.median, |floor| figure.median / floor.median);
        let kept = row.limit.map(|limit| limit.kept(held));
        let ratio = floor.as_ref().map(|_| held);
        let [what, floor_is] = [row.what, row.floor_is].map(String::from);
        Ok(Judged { what, figure, floor, floor_is, ratio, limit: row.limit, kept })
    }

    fn value(&self, name: &str) -> Result<Value, String> {
        Ok(Value { median: self.median(name)?, spread: self.spread(name), unit: unit(name) })
    }

    /// How far the middle half of a figure's values lies apart, as a share of the median, where there are enough.
    fn spread(&self, name: &str) -> Option<f64> {
        let values = self.0.get(name).filter(|v| v.len() > 2)?;
        let mut sorted = values.clone();
        sorted.sort_by(f64::total_cmp);
        let quarter = |n: usize| sorted[(sorted.len() - 1) * n / 4];
        Some((quarter(3) - quarter(1)) / median(values))
    }

    /// Each figure by name: its values.
    pub fn figures(&self) -> impl Iterator<Item = (&str, &[f64])> {
        self.0.iter().map(|(name, values)| (name.as_str(), values.as_slice()))
    }

    /// Writes medians, least and greatest values and their number as JSON.
    pub fn write(&self, file: &Path) -> Result<(), String> {
        let lines: Vec<String> = self.0.iter().map(|(name, values)| {
            let least = values.iter().copied().fold(f64::INFINITY, f64::min);
            let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let (median, n) = (median(values), values.len());
            format!(
                "  \"{name}\": {{\"median\": {median:.4}, \"least\": {least:.4}, \"most\": {most:.4}, \"n\": {n}}}"
            )
        }).collect();
        fs::write(file, format!("{{\n{}\n}}\n", lines.join(",\n")))
            .map_err(|e| format!("{}: {e}", file.display()))
    }
}

impl Limit {
    /// Whether a ratio keeps it.
    fn kept(self, ratio: f64) -> bool {
        match self {
            Limit::Most(most) => ratio <= most,
            Limit::Least(least) => ratio >= least,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Most(most) => write!(f, "at most {most}"),
            Limit::Least(least) => write!(f, "at least {least}"),
        }
    }
}

/// A figure as it is shown.
#[derive(Debug, PartialEq)]
pub struct Value {
    pub median: f64,
    /// See `Samples::spread`.
    pub spread: Option<f64>,
    pub unit: &'static str,
}

impl Value {
    pub fn spread(&self) -> String {
        self.spread.map_or("-".into(), |share| format!("{:.0} %", 100.0 * share))
    }
}

impl fmt::Display for Value {
    /// Two digits behind the point, fewer where there are many before it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = if self.median >= 1000.0 { 0 } else { 2 };
        write!(f, "{:.digits$} {}", self.median, self.unit)
    }
}

/// A row with its figures.
pub struct Judged {
    pub what: String,
    pub figure: Value,
    pub floor: Option<Value>,
    pub floor_is: String,
    /// figure / floor, where there is a floor.
    pub ratio: Option<f64>,
    pub limit: Option<Limit>,
    pub kept: Option<bool>,
}

impl Judged {
    /// `pass`, `SHORT`, or nothing where there is no limit.
    pub fn verdict(&self) -> &'static str {
        match self.kept {
            Some(true) => "pass",
            Some(false) => "SHORT",
            None => "",
        }
    }
    pub fn ratio(&self) -> String {
        self.ratio.map_or("-".into(), |ratio| format!("{ratio:.2}"))
    }
}

/// How many rows fall short of their limit.
pub fn short(rows: &[Judged]) -> usize {
    rows.iter().filter(|row| row.kept == Some(false)).count()
}

/// A head, and a line for each row.
pub fn text(rows: &[Judged]) -> String {
    let width = rows.iter().map(|row| row.what.chars().count()).max().unwrap_or(0);
    let mut out = format!(
        "{:<width$} {:>12} {:>7} {:>12} {:>7} {:>7}  floor\n",
        "", "measured", "spread", "floor", "spread", "ratio"
    );
    for row in rows {
        let floor = row.floor.as_ref();
        let line = format!(
            "{:<width$} {:>12} {:>7} {:>12} {:>7} {:>7}  {}",
            row.what,
            row.figure.to_string(),
            row.figure.spread(),
            floor.map_or("-".into(), Value::to_string),
            floor.map_or("-".into(), Value::spread),
            row.ratio(),
            row.floor_is
        );
        let verdict = row.limit.map_or(String::new(), |limit| format!("   {limit}: {}", row.verdict()));
        out += &format!("{line}{verdict}\n");
    }
    out
}

pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn unit(name: &str) -> &'static str {
    match name.rsplit_once('_').map(|(_, unit)| unit) {
        Some("ns") => "ns",
        Some("gbs") => "GB/s",
        Some("mps") => "M/s",
        Some("ir") => "instr.",
        _ => "",
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Two rows that keep their limits, one that does not, one without, and one without a floor.
    pub fn judged() -> Vec<Judged> {
        let mut samples = Samples::default();
        samples.read("", "a_ns 90\nb_ns 100\nc_gbs 8\nd_gbs 16\ne_ir 350\nnot a figure\n");
        samples.read("", "a_ns 80\nb_ns 100\nc_gbs 8\nd_gbs 16\ne_ir 350\n");
        samples.read("", "a_ns 100\nb_ns 110\nc_gbs 8\nd_gbs 16\ne_ir 350\n");
        let rows = [
            row("1 a", "a_ns", "b_ns", "bee", Some(Limit::Most(1.0))),
            row("2 c", "c_gbs", "d_gbs", "dee", Some(Limit::Least(0.95))),
            row("2 c & <d>", "d_gbs", "c_gbs", "cee", None),
            row("11 e", "e_ir", "", "", Some(Limit::Most(400.0))),
        ];
        samples.judge(&rows).unwrap()
    }

    #[test]
    fn rows_are_held_to_their_limits() {
        let rows = judged();
        let kept: Vec<_> = rows.iter().map(|row| row.kept).collect();
        assert_eq!(kept, [Some(true), Some(false), None, Some(true)]);
        assert_eq!(short(&rows), 1);
        assert_eq!(rows[0].figure, Value { median: 90.0, spread: Some(10.0 / 90.0), unit: "ns" });
        assert_eq!((rows[1].ratio, rows[3].ratio), (Some(0.5), None));
    }

    #[test]
    fn the_table_says_all_of_it() {
        let wanted = "              measured  spread        floor  spread   ratio  floor
1 a           90.00 ns    11 %    100.00 ns     0 %    0.90  bee   at most 1: pass
2 c          8.00 GB/s     0 %   16.00 GB/s     0 %    0.50  dee   at least 0.95: SHORT
2 c & <d>   16.00 GB/s     0 %    8.00 GB/s     0 %    2.00  cee
11 e      350.00 instr.     0 %            -       -       -     at most 400: pass
";
        assert_eq!(text(&judged()), wanted);
    }

    #[test]
    fn a_figure_that_nobody_printed_is_named() {
        let missing = Samples::default().judge(&[row("1 a", "a_ns", "b_ns", "", None)]).err();
        assert_eq!(missing.as_deref(), Some("no program printed a_ns"));
    }
}
