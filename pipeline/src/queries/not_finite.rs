//! Weights that are not finite, where the workspace lets them pass: what quantizing counted, for the gates.

use super::{Db, FIGURES_KIND, ModelInput, Result, load, need, quantized, weights_of};
use crate::action::BodyError;
use crate::env::Env;
use mica_cache::{Digest, Recipe};
use mica_quantize::TensorFigures;
use mica_score::NonFiniteWeights;

/// The error figures of a model's parts by digest; of none where a weight that is not finite is refused.
pub struct Tallies(Vec<(String, Digest)>);

impl Tallies {
    /// Those of some parts, each with its name.
    pub fn of<'n>(
        db: &dyn Db,
        model: ModelInput,
        parts: impl IntoIterator<Item = (usize, &'n str)>,
        target: &str,
    ) -> Result<Tallies> {
        let model = weights_of(db, model);
        if !model.allow_non_finite(db) {
            return Ok(Tallies(Vec::new()));
        }
        let figures = |(part, name): (usize, &str)| {
            Ok((name.to_string(), need(target, quantized(db, model, part))?.digest("figures")))
        };
        parts.into_iter().map(figures).collect::<Result<_>>().map(Tallies)
    }

    /// The recipe with them as inputs.
    pub fn named(&self, recipe: Recipe) -> Recipe {
        self.0.iter().fold(recipe, |r, (part, digest)| r.input(&format!("figures of {part}"), *digest))
    }

    /// Reads and adds them up.
    pub fn read(&self, env: &Env) -> std::result::Result<NonFiniteWeights, BodyError> {
        let mut all = NonFiniteWeights::default();
        for (part, digest) in &self.0 {
            let figures: Vec<TensorFigures> = load(env, FIGURES_KIND, *digest)?;
            figures.iter().for_each(|f| all.add(&format!("{part}: {}", f.role), f.non_finite));
        }
        Ok(all)
    }
}
