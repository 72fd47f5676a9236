//! Reports as text and as data, whole, on made-up runs.

use super::fixture::*;
use super::{Texts, render};

fn text_of(id: i64) -> Option<String> {
    ["9", "0", " was", "4", "it's\n"].get(usize::try_from(id).ok()?).map(|&text| text.to_owned())
}

#[test]
fn a_passing_report() {
    let report = Fixture::new(TIGHT).score();
    insta::assert_snapshot!(render(&report, &Texts { prompt: Some("44 , he"), token: &text_of }));
}

#[test]
fn a_failing_report_says_where() {
    let report = Fixture::new(UNQUANTIZED)
        .with(|f| {
            scale(&mut f.forced.layers[1], 1.01);
            swap_token(&mut f.free.logits, 1);
            f.free.logits[2 * VOCAB] = f64::NAN;
            f.free.routing[1][1] = 1;
        })
        .score();
    insta::assert_snapshot!(render(&report, &Texts { prompt: Some("44 , he"), token: &text_of }));
}

#[test]
fn a_report_without_captures_tokenizer_and_next_ids() {
    let report = Fixture::new(TIGHT)
        .with(|f| {
            f.parts = None;
            f.next_ids.clear();
            f.branches.clear();
        })
        .score();
    insta::assert_snapshot!(render(&report, &Texts::none()));
}

/// Changes whenever the meaning of a report does: then `VERSION` has to be raised.
#[test]
fn the_golden_report() {
    let report = Fixture::new(TIGHT).with(|f| f.free.routing[1][1] = 1).score();
    let json = serde_json::to_string_pretty(&report).unwrap();
    insta::assert_snapshot!(format!("VERSION {}\n{json}", crate::VERSION));
}
