//! target/bench.json: where it was measured, the rows, and all figures.
use serde_json::{Map, Value, json};

use super::{
    page::About,
    table::{self, Judged, Limit, Samples},
};

/// `{"about": {}, "rows": [], "figures": {}}`.
pub fn text(about: &About, rows: &[Judged], samples: &Samples) -> String {
    let rows: Vec<Value> = rows.iter().map(row).collect();
    let figures: Map<String, Value> = samples
        .figures()
        .map(|(name, values)| (name.into(), json!({"median": table::median(values), "values": values})))
        .collect();
    let about: Map<String, Value> =
        about.0.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    format!("{:#}\n", json!({"about": about, "rows": rows, "figures": figures}))
}

fn row(row: &Judged) -> Value {
    let value = |value: &table::Value| json!({"median": value.median, "spread": value.spread, "unit": value.unit.trim_end_matches('.')});
    let limit = row.limit.map(|limit| match limit {
        Limit::Most(most) => json!({"most": most}),
        Limit::Least(least) => json!({"least": least}),
    });
    json!({
        "row": row.what,
        "figure": value(&row.figure),
        "floor": row.floor.as_ref().map(value),
        "floor_is": row.floor_is,
        "ratio": row.ratio,
        "limit": limit,
        "kept": row.kept,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_in_it() {
        let mut samples = Samples::default();
        samples.read("", "a_ns 3\na_ns 1\na_ns 2\n");
        let about = About(vec![("kernel".into(), "6.1".into())]);
        let text = text(&about, &table::tests::judged(), &samples);
        let all: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(all["about"], json!({"kernel": "6.1"}));
        assert_eq!(all["figures"], json!({"a_ns": {"median": 2.0, "values": [3.0, 1.0, 2.0]}}));
        assert_eq!(
            all["rows"][1],
            json!({
                "row": "2 c", "figure": {"median": 8.0, "spread": 0.0, "unit": "GB/s"},
                "floor": {"median": 16.0, "spread": 0.0, "unit": "GB/s"}, "floor_is": "dee",
                "ratio": 0.5, "limit": {"least": 0.95}, "kept": false,
            })
        );
        assert_eq!(all["rows"][3]["floor"], Value::Null);
        assert_eq!(all["rows"].as_array().unwrap().len(), 4);
    }
}
