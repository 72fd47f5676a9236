//! What can be wrong with a function or a module before anything runs.

use super::types::Type;

/// An error of building, looking up or flattening HIR.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum HirError {
    /// An operation's operands do not fit its rule.
    #[error("{function}: {op} at `{label}` on ({operands}): expected {expected}")]
    Op {
        /// Function being built.
        function: String,
        /// Operation.
        op: &'static str,
        /// Label of the node.
        label: String,
        /// Operand types as printed.
        operands: String,
        /// What the rule asks for.
        expected: String,
    },
    /// A value that this builder never made.
    #[error(
        "{function}: {op} at `{label}` uses value %{value}, expected one of the {known} values made so far"
    )]
    UnknownValue {
        /// Function being built.
        function: String,
        /// Operation or `result`.
        op: &'static str,
        /// Label of the node.
        label: String,
        /// The value's number.
        value: u32,
        /// How many values exist.
        known: usize,
    },
    /// Two activations, two results, or a weight and an activation share a name.
    #[error("{function}: the name `{name}` is used twice, expected {what} names to be disjoint")]
    DuplicateName {
        /// Function or module.
        function: String,
        /// The name.
        name: String,
        /// What kind of name it is.
        what: &'static str,
    },
    /// One weight name with two types.
    #[error("{function}: weight `{name}` has types {first} and {second}, expected one type a name")]
    WeightType {
        /// Function or module.
        function: String,
        /// The weight.
        name: String,
        /// Type of the first use.
        first: Box<Type>,
        /// Type of the second use.
        second: Box<Type>,
    },
    /// One open dimension with two ranges, or an empty one.
    #[error("{function}: dimension `{name}` is {lo}..{hi} here, expected {expected}")]
    Dim {
        /// Function being built.
        function: String,
        /// The dimension's name.
        name: String,
        /// Lower bound of this use.
        lo: u64,
        /// Exclusive upper bound of this use.
        hi: u64,
        /// What was expected: the range of the first use, or a range that is not empty.
        expected: String,
    },
    /// A name that a module does not have.
    #[error("module `{module}` has no {what} `{name}`, expected one of: {known}")]
    NoSuch {
        /// Module that was asked.
        module: String,
        /// `function` or `child`.
        what: &'static str,
        /// The name asked for.
        name: String,
        /// Names it has, comma-separated.
        known: String,
    },
    /// A module that is run without saying which function, and has no entry.
    #[error("module `{module}` has no entry, expected the name of one of its functions: {functions}")]
    NoEntry {
        /// The module.
        module: String,
        /// Its functions, comma-separated.
        functions: String,
    },
    /// A wrong number of operands of a call.
    #[error("{function}: call of `{callee}` gets {given} operands, expected {expected}: {names}")]
    Arity {
        /// Function being built.
        function: String,
        /// Function called.
        callee: String,
        /// Operands given.
        given: usize,
        /// Operands expected.
        expected: usize,
        /// Names of the expected operands.
        names: String,
    },
}
