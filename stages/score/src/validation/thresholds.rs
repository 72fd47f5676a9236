//! The bounds of the walkthrough's validations, each of which `workspace.toml` may override by name.
//!
//! A field without `tight` is the published walkthrough's own bound, which can be loose; the others are this
//! project's. They are inputs of scoring alone: changing one judges again and simulates nothing.

use super::Kind;
use serde::{Deserialize, Serialize};

/// Declares one validation's bounds: field, default, meaning.
macro_rules! bounds {
    ($(#[$doc:meta])* $name:ident { $($field:ident = $default:literal, $meaning:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $(#[doc = $meaning] pub $field: f64,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }
    };
}

bounds! {
    /// Of `router`.
    Router {
        score_error = 2e-3, "Largest error of a chosen expert's score, exclusive in the published gate.";
        tight_score_error = 1e-4, "The same, ours.";
        reference_error = 1e-6, "Largest relative error of our float64 evaluator against the published one.";
    }
}

bounds! {
    /// Of `moe-routed`, `moe-block` and `moe-block-real`, whose cosine is set one by one.
    Moe {
        cosine = 0.999, "Least cosine of the block's output, at every token.";
        norm_ratio = 0.02, "Largest distance of its norm ratio from 1.";
        branch = 0.5, "Least movement of the output by the shared expert, in the reference's movement.";
        tight_cosine = 0.99999, "Least cosine of the output and of each component.";
        tight_norm_ratio = 0.001, "Largest distance of the output's norm ratio from 1.";
        component_norm_ratio = 0.005, "The same of each component.";
        tight_branch = 0.01, "Largest distance of the branch's movement from the reference's, relative to it.";
        reference_error = 1e-6, "Largest relative error of our float64 evaluator against the published one.";
    }
}

bounds! {
    /// Of the routed half alone.
    MoeRouted {
        cosine = 0.98, "Least cosine of the output, at every token.";
        norm_ratio = 0.02, "Largest distance of its norm ratio from 1.";
        tight_cosine = 0.99999, "Least cosine of the output, ours.";
        tight_norm_ratio = 0.001, "Largest distance of its norm ratio from 1, ours.";
        component_norm_ratio = 0.005, "The same of each component; the routed half has none.";
        reference_error = 1e-6, "Largest relative error of our float64 evaluator against the published one.";
    }
}

bounds! {
    /// Of whole layers and of stacks of them.
    Layers {
        cosine = 0.98, "Least cosine of each layer's output, at every step.";
        norm_ratio = 0.05, "Largest distance of its norm ratio from 1.";
        tight_cosine = 0.99999, "Least cosine of outputs, components, states and cached rows.";
        tight_norm_ratio = 0.001, "Largest distance of the outputs' norm ratios from 1.";
        component_norm_ratio = 0.005, "The same of components, states and rows, small beside the residual.";
        reference_error = 1e-6, "Largest relative error of our float64 evaluator against the published one.";
    }
}

bounds! {
    /// Of a mixer alone. Its output is small beside the residual that it is added to, and with no residual in
    /// it a single step's length is off by as much as its direction: up to 1.3e-3 in float16 activations.
    Mixer {
        cosine = 0.98, "Least cosine of the output, at every step.";
        norm_ratio = 0.05, "Largest distance of its norm ratio from 1.";
        tight_cosine = 0.99999, "Least cosine of output, states and cached rows.";
        tight_norm_ratio = 0.002, "Largest distance of the output's norm ratio from 1.";
        component_norm_ratio = 0.005, "The same of states and rows.";
        reference_error = 1e-6, "Largest relative error of our float64 evaluator against the published one.";
    }
}

impl From<Mixer> for Layers {
    fn from(m: Mixer) -> Self {
        Self {
            cosine: m.cosine,
            norm_ratio: m.norm_ratio,
            tight_cosine: m.tight_cosine,
            tight_norm_ratio: m.tight_norm_ratio,
            component_norm_ratio: m.component_norm_ratio,
            reference_error: m.reference_error,
        }
    }
}

bounds! {
    /// Of `embed`.
    Embed {
        max_error = 0.0, "Largest distance of an element from the row in the residual's format.";
    }
}

bounds! {
    /// Of `lm-head`.
    LmHead {
        tight_cosine = 0.99999, "Least cosine of a token's logits to the reference's.";
        tight_norm_ratio = 0.001, "Largest distance of their norm ratio from 1.";
        reference_error = 1e-6, "Largest relative error of our float64 evaluator against the published one.";
    }
}

bounds! {
    /// Of `perplexity`, the device against the float64 evaluator on the same weights. Both choose experts
    /// themselves, so a close decision that falls otherwise is in the figures.
    Perplexity {
        ratio = 0.01, "Largest distance of the perplexities' ratio from 1.";
        divergence = 1e-3, "Largest mean divergence of the device's distributions, in nats a position.";
        top_1 = 0.98, "Least share of positions at which the device's choice attains the reference's maximum.";
    }
}

bounds! {
    /// Of `reference`.
    Reference {
        reference_error = 1e-6, "Largest relative error of our float64 evaluator against the published one.";
    }
}

/// The bounds of every validation, by its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Bounds {
    /// `router`.
    pub router: Router,
    /// `moe-routed`.
    pub moe_routed: MoeRouted,
    /// `moe-block`.
    pub moe_block: Moe,
    /// `moe-block-real`.
    pub moe_block_real: Moe,
    /// `reference`.
    pub reference: Reference,
    /// `deltanet`.
    pub deltanet: Mixer,
    /// `linear-layer`.
    pub linear_layer: Layers,
    /// `resume`.
    pub resume: Mixer,
    /// `attention`.
    pub attention: Mixer,
    /// `attention-layer`.
    pub attention_layer: Layers,
    /// `hybrid`.
    pub hybrid: Layers,
    /// `embed`.
    pub embed: Embed,
    /// `lm-head`.
    pub lm_head: LmHead,
    /// `perplexity`.
    pub perplexity: Perplexity,
}

impl Bounds {
    /// The bounds of one validation, written out: what its score depends on.
    #[must_use]
    pub fn of(&self, kind: Kind) -> String {
        match kind {
            Kind::Router => format!("{:?}", self.router),
            Kind::MoeRouted => format!("{:?}", self.moe_routed),
            Kind::MoeBlock => format!("{:?}", self.moe_block),
            Kind::MoeBlockReal => format!("{:?}", self.moe_block_real),
            Kind::Reference => format!("{:?}", self.reference),
            Kind::Deltanet => format!("{:?}", self.deltanet),
            Kind::LinearLayer => format!("{:?}", self.linear_layer),
            Kind::Resume => format!("{:?}", self.resume),
            Kind::Attention => format!("{:?}", self.attention),
            Kind::AttentionLayer => format!("{:?}", self.attention_layer),
            Kind::Hybrid => format!("{:?}", self.hybrid),
            Kind::Embed => format!("{:?}", self.embed),
            Kind::LmHead => format!("{:?}", self.lm_head),
            Kind::Perplexity => format!("{:?}", self.perplexity),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bound_is_overridden_by_name_and_the_others_stay() {
        let given: Bounds = toml::from_str("[moe-block]\ncosine = 0.9995\n").unwrap();
        let expected = Bounds { moe_block: Moe { cosine: 0.9995, ..Moe::default() }, ..Bounds::default() };
        assert_eq!(given, expected);
    }

    #[test]
    fn unknown_validations_and_bounds_are_refused() {
        for (text, words) in
            [("[moe]\n", "unknown field `moe`"), ("[router]\ncosine = 1.0\n", "unknown field `cosine`")]
        {
            let message = toml::from_str::<Bounds>(text).unwrap_err().to_string();
            assert!(message.contains(words), "{message}");
        }
    }
}
