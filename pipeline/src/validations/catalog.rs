//! The validations by name: of the op vectors, and of a delivery's own weights.

use super::{Span, Subject};
use mica_score::validation::Kind;

/// A validation of the walkthrough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Its name as a target, parameters in brackets.
    pub name: &'static str,
    /// How it is judged.
    pub kind: Kind,
    /// Which function is run.
    pub subject: Subject,
    /// The op vector's file, without its ending; empty of a delivery's own.
    pub vector: &'static str,
    /// Steps, if fewer than the vector has.
    pub steps: Option<usize>,
}

const fn vector(name: &'static str, kind: Kind, subject: Subject, vector: &'static str) -> Case {
    Case { name, kind, subject, vector, steps: None }
}

const LINEAR: Subject = Subject::Mixer { full: false };
const FULL: Subject = Subject::Mixer { full: true };

/// On the op vectors of the published implementation.
pub const OF_VECTORS: &[Case] = &[
    vector("router", Kind::Router, Subject::Router, "router"),
    vector("moe-routed", Kind::MoeRouted, Subject::Routed, "moe_block"),
    vector("moe-block", Kind::MoeBlock, Subject::Moe, "moe_block"),
    vector("reference", Kind::Reference, Subject::Moe, "moe_block"),
    vector("deltanet", Kind::Deltanet, LINEAR, "deltanet_1step"),
    vector("deltanet[steps=4]", Kind::Deltanet, LINEAR, "deltanet_4steps"),
    // key and value dimensions that differ, three value heads a key head
    vector("deltanet[steps=3,rect=1]", Kind::Deltanet, LINEAR, "deltanet_rect_3steps"),
    vector("linear-layer", Kind::LinearLayer, Subject::Layers(Span::All), "linear_layer"),
    vector("linear-layer[layers=2]", Kind::LinearLayer, Subject::Layers(Span::All), "linear_layers_2"),
    Case { steps: Some(2), ..vector("resume", Kind::Resume, LINEAR, "deltanet_4steps") },
    vector("attention", Kind::Attention, FULL, "attention_1token"),
    vector("attention[tokens=2]", Kind::Attention, FULL, "attention_2tokens"),
    vector("attention[tokens=2,prior=5]", Kind::Attention, FULL, "attention_2tokens_after5"),
    vector("attention-layer", Kind::AttentionLayer, Subject::Layers(Span::All), "attention_layer"),
    vector("hybrid", Kind::Hybrid, Subject::Layers(Span::All), "hybrid_aaab"),
];

/// On a delivery's own weights and captured activations.
pub const OF_MODELS: &[Case] = &[
    vector("router", Kind::Router, Subject::Router, ""),
    vector("moe-routed", Kind::MoeRouted, Subject::Routed, ""),
    vector("moe-block-real", Kind::MoeBlockReal, Subject::Moe, ""),
    vector("deltanet", Kind::Deltanet, LINEAR, ""),
    vector("linear-layer", Kind::LinearLayer, Subject::Layers(Span::First { full: false }), ""),
    Case { steps: Some(2), ..vector("resume", Kind::Resume, LINEAR, "") },
    vector("attention", Kind::Attention, FULL, ""),
    vector("attention-layer", Kind::AttentionLayer, Subject::Layers(Span::First { full: true }), ""),
    // one token, as the walkthrough has it: over several, a close choice of experts may fall otherwise in one
    // layer, and the layers after it then compute on other inputs
    Case { steps: Some(1), ..vector("hybrid", Kind::Hybrid, Subject::Layers(Span::Group), "") },
    vector("embed", Kind::Embed, Subject::Embed, ""),
    vector("lm-head", Kind::LmHead, Subject::Head, ""),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_cannot_be_ranges() {
        for cases in [OF_VECTORS, OF_MODELS] {
            let names: BTreeSet<&str> = cases.iter().map(|c| c.name).collect();
            assert_eq!(names.len(), cases.len());
            for name in names {
                assert_eq!(crate::targets::expand_ranges(name).unwrap(), [name]);
            }
        }
    }
}
