//! Where a part's weights come from in a delivery, as data: the names that publishers use, the forms in
//! which experts come, and what is converted.

use crate::error::ModelError;
use crate::hir::{Dtype, Function};
use crate::stack::{Part, Stack};
use serde::{Deserialize, Serialize};

/// How a delivery names a model's weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Naming {
    /// Prefixes under which the weights may stand; each ends in a dot or is empty.
    pub prefixes: Vec<String>,
    /// Roles that have no prefix (`lm_head.weight`).
    pub bare: Vec<String>,
    /// Before a layer's roles: this, the layer's number and a dot.
    pub layers: String,
    /// Weights that come in other forms than one tensor of their own name and shape.
    pub rules: Vec<NameRule>,
    /// Prefixes of tensors that a delivery has and this model knowingly does not read.
    pub ignored: Vec<String>,
}

/// What is particular about a weight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NameRule {
    /// The weight's name within its part.
    pub role: String,
    /// Endings that may follow the role in a whole tensor's name; the empty one is the role itself.
    pub endings: Vec<String>,
    /// Names of an expert's tensors, stacked along their axis 0 in this order; `{e}` is the expert's number.
    /// Empty where the weight does not come expert by expert.
    pub per_expert: Vec<String>,
    /// From the published tensor to the weight: a function of the one parameter `published` with the one
    /// result `weight`.
    pub converter: Option<Function>,
}

/// One form in which a weight may be delivered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum SourceForm {
    /// One tensor of the published shape, under one of these names.
    Whole {
        /// Names, the usual one first.
        names: Vec<String>,
    },
    /// A tensor or a few for each expert.
    PerExpert {
        /// Number of experts: the published shape's axis 0.
        experts: u64,
        /// Shape of each piece.
        piece_shape: Vec<u64>,
        /// For each prefix, the names of the pieces that make up an expert, stacked along axis 0 in this
        /// order; `{e}` stands for the expert's number.
        templates: Vec<Vec<String>>,
    },
}

/// The name of expert `e`'s tensor from a template of `SourceForm::PerExpert`.
pub fn expert_name(template: &str, e: u64) -> String {
    template.replace("{e}", &e.to_string())
}

/// Where one weight of a part comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WeightSource {
    /// Name within the part (`linear_attn.conv1d.weight`).
    pub role: String,
    /// Dtype that the model states for it; a delivery may store another float dtype.
    pub dtype: Dtype,
    /// Shape as the part's function takes it.
    pub shape: Vec<u64>,
    /// Shape as published.
    pub published_shape: Vec<u64>,
    /// Forms, the published one first.
    pub forms: Vec<SourceForm>,
    /// Converts the published tensor; `None` where it is taken as it is.
    pub converter: Option<Function>,
}

/// The sources of a part's weights, in the order of the function's weights.
///
/// # Errors
/// `ModelError::NoLayer`.
pub fn sources(stack: &Stack, part: Part) -> Result<Vec<WeightSource>, ModelError> {
    let function = stack.function(part)?;
    let known = |shape: Option<Vec<u64>>| shape.unwrap_or_default();
    Ok(function
        .weights()
        .map(|weight| {
            let shape = known(weight.ty.known_shape());
            let rule = stack.naming.rules.iter().find(|r| r.role == weight.name);
            let converter = rule.and_then(|r| r.converter.clone());
            let published_shape = match &converter {
                Some(c) => known(c.params[0].ty.known_shape()),
                None => shape.clone(),
            };
            WeightSource {
                role: weight.name.clone(),
                dtype: weight.ty.dtype,
                forms: stack.naming.forms(part, &weight.name, rule, &published_shape),
                shape,
                published_shape,
                converter,
            }
        })
        .collect())
}

impl Naming {
    /// Whether a tensor of a delivery is one that the model knowingly does not read.
    pub fn ignored(&self, tensor: &str) -> bool {
        self.ignored.iter().any(|p| tensor.starts_with(p.as_str()))
    }

    fn forms(&self, part: Part, role: &str, rule: Option<&NameRule>, published: &[u64]) -> Vec<SourceForm> {
        let bare = self.bare.iter().any(|b| b == role);
        let place = match part {
            Part::Layer(i) => format!("{}{i}.", self.layers),
            Part::Embed | Part::Head => String::new(),
        };
        let prefixes: Vec<String> = match bare {
            true => vec![place],
            false => self.prefixes.iter().map(|p| format!("{p}{place}")).collect(),
        };
        let own = [String::new()];
        let endings = rule.map_or(&own[..], |r| &r.endings);
        let names =
            prefixes.iter().flat_map(|p| endings.iter().map(move |e| format!("{p}{role}{e}"))).collect();
        let mut forms = vec![SourceForm::Whole { names }];
        if let (Some(rule), [experts, rows, rest @ ..]) = (rule, published)
            && !rule.per_expert.is_empty()
        {
            let pieces = rule.per_expert.len() as u64;
            let template = |p: &String| rule.per_expert.iter().map(|t| format!("{p}{t}")).collect();
            forms.push(SourceForm::PerExpert {
                experts: *experts,
                piece_shape: [&[rows / pieces], rest].concat(),
                templates: prefixes.iter().map(template).collect(),
            });
        }
        forms
    }
}
