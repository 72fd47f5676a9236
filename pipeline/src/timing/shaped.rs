//! A model's kernel from shapes alone: compiled and linked with no weight's value, at any number of layers.

use crate::check::Refused;
use crate::check::constants;
use crate::check::generated::Index;
use crate::check::published::{PartWeights, Published};
use crate::check::subject::Subject;
use crate::queries::{exported, unrounded};
use crate::workspace::Machine;
use mica_compile::{Options, Seams};
use mica_device::object::{Kernel, Object};
use mica_device::segment::SegmentPlan;
use mica_models::Part;

/// A kernel whose constants are planned and not there.
pub struct Shaped {
    /// The linked kernel.
    pub kernel: Kernel,
    /// What lies in each part's constants.
    pub plans: Vec<SegmentPlan>,
    /// Names of the parts.
    pub parts: Vec<String>,
}

impl Shaped {
    /// The kernel of a whole model, of `tokens` tokens a call; `capacity` is for how many positions its caches are compiled.
    ///
    /// # Errors
    /// What planning, compiling and linking say.
    pub fn new(
        subject: &Subject<'_>,
        machine: &Machine,
        capacity: u64,
        tokens: u64,
    ) -> Result<Shaped, Refused> {
        let stack = &subject.stack;
        let recipe = subject.recipe_or_synthetic()?;
        let delivered = match subject.is_delivered() {
            true => Some(subject.published()?.0),
            false => None,
        };
        let parts = stack.parts();
        let mut plans = Vec::new();
        // parts that run the same code, by kind and plan
        let mut made: Vec<(String, SegmentPlan, Object)> = Vec::new();
        let mut of_part = Vec::new();
        for &part in &parts {
            let f = stack.function(part).map_err(Refused::because)?;
            let kind = match part {
                Part::Embed => "embed".to_string(),
                Part::Layer(i) => stack.kind(i).map_err(Refused::because)?.name.clone(),
                Part::Head => "head".to_string(),
            };
            let plan = match &delivered {
                Some(d) => constants::plan(&PartWeights::new(d, stack, part)?, "", &recipe)?,
                None => {
                    let shapes = Published::Generated(Box::new(Index::random(stack, part, 0)?));
                    constants::plan(&PartWeights::new(&shapes, stack, part)?, "", &recipe)?
                }
            };
            let at = match made.iter().position(|(k, p, _)| *k == kind && *p == plan) {
                Some(at) => at,
                None => {
                    let mut f = f.clone();
                    if !subject.stored_rounding() {
                        unrounded(&mut f);
                    }
                    let options = Options { frac: machine.frac, capacity, exports: exported(&f), tokens };
                    let object = mica_compile::compile(&kind, &f, &plan, &machine.product, &options)
                        .map_err(Refused::because)?;
                    made.push((kind, plan.clone(), object));
                    made.len() - 1
                }
            };
            of_part.push(at);
            plans.push(plan);
        }
        let objects: Vec<&Object> = of_part.iter().map(|&at| &made[at].2).collect();
        let kernel = mica_compile::link_with(&objects, &machine.product, Seams::Whole, machine.constants)
            .map_err(Refused::because)?;
        Ok(Shaped { kernel, plans, parts: parts.iter().map(ToString::to_string).collect() })
    }

    /// The plans, as a count takes them.
    pub fn plans(&self) -> Vec<&SegmentPlan> {
        self.plans.iter().collect()
    }
}
