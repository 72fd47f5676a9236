//! What can go wrong while a function is evaluated.

/// An error of evaluation. Shapes and types are as printed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EvalError {
    /// An activation that was not passed.
    #[error("{function}: activation `{name}` is missing, expected {expected}")]
    MissingInput {
        /// Function evaluated.
        function: String,
        /// The activation.
        name: String,
        /// Its type.
        expected: String,
    },
    /// An input that is no activation of the function.
    #[error("{function}: there is no activation `{name}`, expected {expected}")]
    UnknownInput {
        /// Function evaluated.
        function: String,
        /// The name passed.
        name: String,
        /// The activations' names.
        expected: String,
    },
    /// An activation of a wrong shape or element kind.
    #[error("{function}: activation `{name}` is {found}, expected {expected}")]
    WrongInput {
        /// Function evaluated.
        function: String,
        /// The activation.
        name: String,
        /// What was passed.
        found: String,
        /// Its type, or what an open dimension admits.
        expected: String,
    },
    /// A weight that a module declares and the resource, or the call's parameters, do not have.
    #[error("module `{module}`: weight `{name}` is missing, expected {expected}")]
    UnboundWeight {
        /// The module that declares it.
        module: String,
        /// The weight, with its scope.
        name: String,
        /// Its type.
        expected: String,
    },
    /// A weight that the source does not have.
    #[error("weight `{name}` is missing")]
    MissingWeight {
        /// The weight.
        name: String,
    },
    /// A weight that could not be read.
    #[error("weight `{name}` could not be read: {reason}")]
    Weight {
        /// The weight.
        name: String,
        /// What its source says.
        reason: String,
    },
    /// A weight of a wrong size.
    #[error("weight `{name}` has {found} elements, expected {expected}")]
    WeightSize {
        /// The weight.
        name: String,
        /// Elements that the source gave.
        found: usize,
        /// Elements asked for.
        expected: usize,
    },
    /// A weight whose type at its source is not the declared one.
    #[error("weight `{name}` is {found}, expected {expected}")]
    WeightType {
        /// The weight.
        name: String,
        /// Type at the source.
        found: String,
        /// Type declared.
        expected: String,
    },
    /// An operand's value that an operation refuses.
    #[error("{function}: {op} at `{label}`: expected {expected}")]
    Op {
        /// Function evaluated.
        function: String,
        /// Operation.
        op: &'static str,
        /// Label of the node.
        label: String,
        /// What the operation asks for.
        expected: String,
    },
    /// A state or a cache that cannot be carried to the next step.
    #[error(transparent)]
    Carry(#[from] crate::decode::CarryError),
    /// A wrong name or a function that does not flatten.
    #[error(transparent)]
    Hir(#[from] crate::hir::HirError),
}
