//! Values of the evaluator: dense row-major tensors of float64 or of integers.

/// Elements of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// Real numbers, whatever float dtype the model states.
    F64(Vec<f64>),
    /// Integers.
    I64(Vec<i64>),
}

/// A dense row-major tensor; an empty shape is a scalar.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Elements, as many as the product of the shape.
    pub data: Data,
}

impl Tensor {
    /// Real numbers.
    ///
    /// # Panics
    /// If the number of elements is not the product of the shape.
    pub fn f64(shape: &[usize], data: Vec<f64>) -> Tensor {
        assert_eq!(data.len(), shape.iter().product::<usize>(), "elements of {shape:?}");
        Tensor { shape: shape.to_vec(), data: Data::F64(data) }
    }
    /// Integers.
    ///
    /// # Panics
    /// If the number of elements is not the product of the shape.
    pub fn i64(shape: &[usize], data: Vec<i64>) -> Tensor {
        assert_eq!(data.len(), shape.iter().product::<usize>(), "elements of {shape:?}");
        Tensor { shape: shape.to_vec(), data: Data::I64(data) }
    }
    /// An integer scalar: a position, a token.
    pub fn scalar(n: i64) -> Tensor {
        Tensor::i64(&[], vec![n])
    }
    /// Zeros.
    pub fn zeros(shape: &[usize]) -> Tensor {
        Tensor::f64(shape, vec![0.0; shape.iter().product()])
    }
    /// Number of elements.
    pub fn elements(&self) -> usize {
        match &self.data {
            Data::F64(v) => v.len(),
            Data::I64(v) => v.len(),
        }
    }
    /// The real numbers; `None` of an integer tensor.
    pub fn as_f64(&self) -> Option<&[f64]> {
        match &self.data {
            Data::F64(v) => Some(v),
            Data::I64(_) => None,
        }
    }
    /// The integers; `None` of a real tensor.
    pub fn as_i64(&self) -> Option<&[i64]> {
        match &self.data {
            Data::I64(v) => Some(v),
            Data::F64(_) => None,
        }
    }
    /// The real numbers of an operand whose dtype inference has checked.
    pub(crate) fn reals(&self) -> &[f64] {
        self.as_f64().expect("a float operand, by inference")
    }
    /// The integers of an operand whose dtype inference has checked.
    pub(crate) fn integers(&self) -> &[i64] {
        self.as_i64().expect("an integer operand, by inference")
    }
}

/// Elements before and after an axis: a tensor is `[outer, shape[axis], inner]`.
pub(crate) fn around(shape: &[usize], axis: usize) -> (usize, usize) {
    (shape[..axis].iter().product(), shape[axis + 1..].iter().product())
}
