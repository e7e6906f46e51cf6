//! The rows as a picture: how many times as fast as its reference each one is, and where its limit lies.
use super::table::{Judged, Limit};

const LINE: f64 = 22.0;
const LEFT: f64 = 300.0;
const WIDTH: f64 = 560.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 64.0;
/// The axis is logarithmic: so many doublings to each side of the reference.
const DOUBLINGS: f64 = 5.0;

/// An SVG of all rows that have a reference.
pub fn draw(rows: &[Judged]) -> String {
    let rows: Vec<(&Judged, f64)> = rows.iter().filter_map(|row| Some((row, speed(row)?))).collect();
    let (wide, bottom) = (LEFT + WIDTH + RIGHT, TOP + LINE * rows.len() as f64);
    let high = bottom + 34.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {wide} {high}\" width=\"{wide}\" height=\"{high}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{wide}\" height=\"{high}\" fill=\"#ffffff\"/>\n\
         <text x=\"12\" y=\"24\" font-size=\"15\" fill=\"#222222\">urxe0 between two processes of one host</text>\n\
         <text x=\"12\" y=\"42\" fill=\"#555555\">times as fast as the reference of the row; | is the limit, to its left a row is short</text>\n"
    );
    for doubling in -(DOUBLINGS as i32)..=DOUBLINGS as i32 {
        let (at, times) = (x(2f64.powi(doubling)), 2u32.pow(doubling.unsigned_abs()));
        let (name, shade) = match doubling {
            0 => ("1".to_string(), "#888888"),
            1.. => (times.to_string(), "#e4e4e4"),
            _ => (format!("1/{times}"), "#e4e4e4"),
        };
        out += &format!(
            "<line x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{bottom}\" stroke=\"{shade}\"/>\n\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555555\">{name}</text>\n",
            bottom + 18.0
        );
    }
    for (i, (row, speed)) in rows.iter().enumerate() {
        out += &line(row, *speed, TOP + LINE * i as f64);
    }
    out + "</svg>\n"
}

fn line(row: &Judged, speed: f64, y: f64) -> String {
    let color = match row.kept {
        Some(true) => "#1b7f79",
        Some(false) => "#d1662b",
        None => "#9aa5ad",
    };
    let (from, to) = (x(1.0).min(x(speed)), x(1.0).max(x(speed)));
    let text = y + LINE * 0.68;
    let mut out = format!(
        "<text x=\"{:.1}\" y=\"{text:.1}\" text-anchor=\"end\" fill=\"#222222\">{}</text>\n\
         <rect x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{color}\"><title>{}</title></rect>\n",
        LEFT - 10.0,
        escaped(&row.what),
        y + 4.0,
        (to - from).max(1.0),
        LINE - 8.0,
        escaped(&format!("{}, {}: {}", row.figure, row.floor_is, row.ratio())),
    );
    if let Some(limit) = row.limit {
        let at = x(faster(limit_of(limit), limit));
        out += &format!(
            "<line x1=\"{at:.1}\" y1=\"{:.1}\" x2=\"{at:.1}\" y2=\"{:.1}\" stroke=\"#222222\" stroke-width=\"2\"/>\n",
            y + 1.0,
            y + LINE - 1.0
        );
    }
    out + &format!(
        "<text x=\"{:.1}\" y=\"{text:.1}\" fill=\"#222222\">{}</text>\n",
        LEFT + WIDTH + 10.0,
        escaped(format!("{} {}", row.figure, row.verdict()).trim_end())
    )
}

/// Figure beside reference as a speed: above 1 is faster.
fn speed(row: &Judged) -> Option<f64> {
    let ratio = row.ratio?;
    // Without a limit the unit tells which way is better.
    let like = row.limit.unwrap_or(if row.figure.unit.ends_with("/s") {
        Limit::Least(1.0)
    } else {
        Limit::Most(1.0)
    });
    Some(faster(ratio, like))
}

fn faster(ratio: f64, like: Limit) -> f64 {
    match like {
        Limit::Most(_) => 1.0 / ratio,
        Limit::Least(_) => ratio,
    }
}

fn limit_of(limit: Limit) -> f64 {
    match limit {
        Limit::Most(value) | Limit::Least(value) => value,
    }
}

/// Where a speed stands on the axis; what is beyond its end stands there.
fn x(speed: f64) -> f64 {
    LEFT + WIDTH * (0.5 + speed.log2().clamp(-DOUBLINGS, DOUBLINGS) / (2.0 * DOUBLINGS))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::table::tests::judged;

    #[test]
    fn a_short_row_ends_left_of_its_limit() {
        let rows = judged();
        let wanted = "<text x=\"290.0\" y=\"15.0\" text-anchor=\"end\" fill=\"#222222\">2 c</text>\n\
             <rect x=\"524.0\" y=\"4.0\" width=\"56.0\" height=\"14.0\" fill=\"#d1662b\"><title>8.00 GB/s, dee: 0.50</title></rect>\n\
             <line x1=\"575.9\" y1=\"1.0\" x2=\"575.9\" y2=\"21.0\" stroke=\"#222222\" stroke-width=\"2\"/>\n\
             <text x=\"870.0\" y=\"15.0\" fill=\"#222222\">8.00 GB/s SHORT</text>\n";
        assert_eq!(line(&rows[1], speed(&rows[1]).unwrap(), 0.0), wanted);
    }

    #[test]
    fn latency_below_its_reference_is_faster() {
        let rows = judged();
        assert_eq!(speed(&rows[0]), Some(100.0 / 90.0));
        assert_eq!(speed(&rows[2]), Some(2.0));
        assert_eq!((x(1.0), x(1e9), x(1e-9)), (LEFT + WIDTH / 2.0, LEFT + WIDTH, LEFT));
    }

    #[test]
    fn rows_without_a_reference_are_not_drawn_and_names_are_escaped() {
        let picture = draw(&judged());
        assert_eq!(picture.matches("<title>").count(), 3);
        assert!(picture.contains("2 c &amp; &lt;d&gt;") && !picture.contains("<d>"));
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
    }
}
