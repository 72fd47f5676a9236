//! Why a part does not compile, or parts do not link: each error carries the figure, the limit and
//! the way out.

use thiserror::Error;

/// What to do where there are more edges than entry pointers.
fn entries_way_out(weights: usize) -> String {
    match weights {
        0 => "leave out a result in `exports`, or link fewer parts".into(),
        n => format!(
            "{n} of them are the constants of a part each: bake them (constants = \"baked\", which costs no \
             entry), or link fewer parts"
        ),
    }
}

/// What to do where a memory is too small.
fn memory_way_out(tokens: u64) -> String {
    match tokens {
        0 | 1 => "take a larger product, or a model of smaller dimensions".into(),
        n => format!("{n} tokens a call: take fewer, or a larger product"),
    }
}

/// The errors of `compile` and `link`.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CompileError {
    /// An operation or a combination of operands for which there is no rule.
    #[error("{label}: no rule compiles this `{op}`: {what}")]
    Unsupported {
        /// Where it stands in the model.
        label: String,
        /// The HIR op's name.
        op: &'static str,
        /// What about it has no rule, and what would have.
        what: String,
    },
    /// A parameter that the plan should hold and does not.
    #[error("the plan has no weight `{role}`, which `{function}` takes: plan the part's weights again")]
    MissingWeight {
        /// The weight's name within the part.
        role: String,
        /// The function.
        function: String,
    },
    /// A weight planned for another shape.
    #[error("weight `{role}` is planned as {planned:?} but the function takes {wanted:?}")]
    WeightShape {
        /// The weight's name within the part.
        role: String,
        /// Shape in the plan.
        planned: Vec<u64>,
        /// Shape in the function.
        wanted: Vec<u64>,
    },
    /// A weight stored in a way its use cannot read.
    #[error(
        "weight `{role}` is stored as {stored}, but its use needs {needed}: change its format in the recipe"
    )]
    Storage {
        /// The weight's name within the part.
        role: String,
        /// How the plan stores it.
        stored: &'static str,
        /// What the op that reads it takes.
        needed: &'static str,
    },
    /// `Options::exports` names a result that the function has not.
    #[error("`{function}` has no result `{name}` to export; it has {has}")]
    UnknownExport {
        /// What was asked for.
        name: String,
        /// The function.
        function: String,
        /// The results there are.
        has: String,
    },
    /// A memory is too small for what is live at one time.
    #[error(
        "`{kind}` needs {need} bytes of {memory} at instruction {at} ({label}), and {product} has {limit}: {}",
        memory_way_out(*tokens)
    )]
    Overflow {
        /// The part.
        kind: String,
        /// `LRM` or `L2`.
        memory: &'static str,
        /// Bytes that would have to be live.
        need: u64,
        /// Bytes there are.
        limit: u64,
        /// Instruction that does not fit.
        at: usize,
        /// The op that it belongs to.
        label: String,
        /// The product.
        product: String,
        /// Tokens a call.
        tokens: u64,
    },
    /// A call of no tokens.
    #[error("`{kind}`: a call takes at least one token")]
    NoTokens {
        /// The part.
        kind: String,
    },
    /// More scratch scalars than there are.
    #[error("{label}: more than {limit} scratch scalars are live: compile fewer nested loops")]
    Scalars {
        /// The op.
        label: String,
        /// Scratch scalars there are.
        limit: usize,
    },
    /// More edges than entry pointers.
    #[error(
        "the kernel has {} edges and {product} has {limit} entry pointers: {}; \
         {}", names.len(), names.join(", "), entries_way_out(*weights)
    )]
    Entries {
        /// How many of them are constants of a part.
        weights: usize,
        /// The edges in order.
        names: Vec<String>,
        /// Entry pointers.
        limit: u32,
        /// The product.
        product: String,
    },
    /// Parts whose seams do not meet.
    #[error("part {part} (`{kind}`) {what}")]
    Seam {
        /// Index of the part.
        part: usize,
        /// Its kind.
        kind: String,
        /// What does not meet.
        what: String,
    },
    /// A field of the encoding too narrow for a figure.
    #[error("{what}: {figure} is more than {limit}")]
    Field {
        /// What the figure is.
        what: String,
        /// The figure.
        figure: u64,
        /// The largest that the encoding holds.
        limit: u64,
    },
}
