//! Conversion of a delivered tensor to the model's layout.
//!
//! The converter is a function of the HIR; the evaluator runs it on the elements' numbers instead of
//! their values. What comes out says where each element comes from, so elements of any dtype, NaN too,
//! keep their bits.

use crate::error::PackError;
use mica_models::eval::{Options, Tensor, evaluate};
use mica_models::hir::{Function, Op};
use std::collections::BTreeMap;

/// Whether a converter leaves every element in its place.
pub(crate) fn keeps_order(converter: &Function) -> bool {
    converter.nodes.iter().all(|node| matches!(node.op, Op::Reshape { .. }))
}

/// The weight's bytes, of `shape`, from the published tensor's; `width` bytes an element.
pub(crate) fn convert(
    role: &str,
    converter: &Function,
    shape: &[u64],
    published: &[u8],
    width: usize,
) -> Result<Vec<u8>, PackError> {
    let order = order(role, converter, shape)?;
    let from = published_shape(role, converter)?;
    if from.iter().product::<usize>() * width != published.len() {
        let reason = format!("{} bytes are no {from:?} of {width} bytes", published.len());
        return Err(PackError::Converter { role: role.into(), reason });
    }
    let mut bytes = Vec::with_capacity(order.len() * width);
    for number in order {
        bytes.extend_from_slice(&published[number as usize * width..][..width]);
    }
    Ok(bytes)
}

/// Of each element of the weight, of `shape`, its number in the published tensor.
pub(crate) fn order(role: &str, converter: &Function, shape: &[u64]) -> Result<Vec<f64>, PackError> {
    let failed = |reason: String| PackError::Converter { role: role.into(), reason };
    for node in &converter.nodes {
        match node.op {
            Op::Reshape { .. }
            | Op::Transpose { .. }
            | Op::Slice { .. }
            | Op::Concat { .. }
            | Op::RepeatInterleave { .. } => {}
            _ => return Err(PackError::ConverterComputes { role: role.into(), op: node.op.name() }),
        }
    }
    let from = published_shape(role, converter)?;
    let ([input], [(result, _)]) = (&converter.params[..], &converter.results[..]) else {
        return Err(failed(ONE_OF_ONE.into()));
    };
    let numbers = Tensor::f64(&from, (0..from.iter().product()).map(|n: usize| n as f64).collect());
    let inputs = BTreeMap::from([(input.name.clone(), numbers)]);
    let no_weights = BTreeMap::new();
    let mut results = evaluate(converter, &inputs, &no_weights, Options::default())
        .map_err(|error| failed(error.to_string()))?;
    let weight = results.remove(result).ok_or_else(|| failed("it has no result".into()))?;
    if !weight.shape.iter().map(|&n| n as u64).eq(shape.iter().copied()) {
        return Err(failed(format!("it gives {:?}, and the weight is {shape:?}", weight.shape)));
    }
    Ok(weight.as_f64().ok_or_else(|| failed("it gives integers".into()))?.to_vec())
}

const ONE_OF_ONE: &str = "it is no function of one tensor with one result";

/// The shape of the tensor that a converter takes.
fn published_shape(role: &str, converter: &Function) -> Result<Vec<usize>, PackError> {
    let failed = |reason: &str| PackError::Converter { role: role.into(), reason: reason.into() };
    let [input] = &converter.params[..] else { return Err(failed(ONE_OF_ONE)) };
    let shape = input.ty.known_shape().ok_or_else(|| failed("its parameter's shape is open"))?;
    Ok(shape.iter().map(|&n| n as usize).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use mica_models::hir::{Builder, Dtype, Type, ValueId};

    fn converter(body: impl Fn(&mut Builder, ValueId) -> ValueId) -> Function {
        let mut b = Builder::new("converter");
        let published = b.param("published", Type::new(Dtype::BF16, &[2, 3]));
        let weight = body(&mut b, published);
        b.result("weight", weight);
        b.finish().unwrap()
    }

    #[test]
    fn elements_move_whole() {
        let transpose = converter(|b, x| b.transpose(x, &[1, 0]).unwrap());
        let moved = convert("w", &transpose, &[3, 2], b"aabbccddeeff", 2).unwrap();
        assert_eq!(moved, b"aaddbbeeccff");
        assert!(!keeps_order(&transpose));
        assert!(keeps_order(&converter(|b, x| b.reshape(x, &[6]).unwrap())));
    }

    #[test]
    fn what_is_refused() {
        let transpose = converter(|b, x| b.transpose(x, &[1, 0]).unwrap());
        let double = converter(|b, x| b.add(x, x).unwrap());
        for (converter, shape, bytes, said) in [
            (&double, [2, 3], 12, "computes (add)"),
            (&transpose, [2, 3], 12, "gives [3, 2], and the weight is [2, 3]"),
            (&transpose, [3, 2], 11, "11 bytes are no [2, 3] of 2 bytes"),
        ] {
            let message = convert("w", converter, &shape, &vec![0; bytes], 2).unwrap_err().to_string();
            assert!(message.contains(said), "{message}");
        }
    }
}
