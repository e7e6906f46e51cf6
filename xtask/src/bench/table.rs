//! Figures by name, their medians and spread, and the table of them beside their floors.
use std::{collections::BTreeMap, fs, path::Path};

/// One line of the table: a figure, its floor, and the limit that their ratio must keep.
#[derive(Clone)]
pub struct Row<'a> {
    pub what: &'a str,
    /// Names whose end is the unit: `_ns`, `_gbs`, `_mps` (millions a second) or none.
    pub figure: &'a str,
    pub floor: &'a str,
    pub floor_is: &'a str,
    pub limit: Option<Limit>,
}

/// What a ratio must keep.
#[derive(Clone, Copy)]
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

    /// Prints a line for each row; how many fall short of their limit.
    pub fn show(&self, rows: &[Row<'_>]) -> Result<usize, String> {
        let width = rows.iter().map(|row| row.what.len()).max().unwrap_or(0);
        println!(
            "{:<width$} {:>12} {:>7} {:>12} {:>7} {:>7}  floor",
            "", "measured", "spread", "floor", "spread", "ratio"
        );
        let mut short = 0;
        for row in rows {
            let (figure, floor) = (self.median(row.figure)?, self.median(row.floor)?);
            let ratio = figure / floor;
            let unit = unit(row.figure);
            let verdict = match row.limit {
                None => String::new(),
                Some(limit) => {
                    let (kept, text) = match limit {
                        Limit::Most(most) => (ratio <= most, format!("at most {most}")),
                        Limit::Least(least) => (ratio >= least, format!("at least {least}")),
                    };
                    short += usize::from(!kept);
                    format!("   {text}: {}", if kept { "pass" } else { "SHORT" })
                }
            };
            println!(
                "{:<width$} {:>12} {:>7} {:>12} {:>7} {ratio:>7.2}  {}{verdict}",
                row.what,
                format!("{figure:.2} {unit}"),
                self.spread(row.figure),
                format!("{floor:.2} {unit}"),
                self.spread(row.floor),
                row.floor_is
            );
        }
        Ok(short)
    }

    /// How far the middle half of a figure's values lies apart, as a share of the median.
    fn spread(&self, name: &str) -> String {
        let Some(values) = self.0.get(name).filter(|v| v.len() > 2) else { return "-".into() };
        let mut sorted = values.clone();
        sorted.sort_by(f64::total_cmp);
        let quarter = |n: usize| sorted[(sorted.len() - 1) * n / 4];
        format!("{:.0} %", 100.0 * (quarter(3) - quarter(1)) / median(values))
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

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn unit(name: &str) -> &'static str {
    match name.rsplit_once('_').map(|(_, unit)| unit) {
        Some("ns") => "ns",
        Some("gbs") => "GB/s",
        Some("mps") => "M/s",
        _ => "",
    }
}
