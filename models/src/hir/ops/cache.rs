//! Writing rows into a cache of fixed capacity.

use crate::eval::{Data, Tensor};
use crate::hir::cost::{Cost, bytes};
use crate::hir::types::{Dtype, Type};

pub(super) fn infer(x: &[&Type]) -> Result<Type, String> {
    let [cache, new, cur_pos, s] = x else {
        return Err(format!("4 operands (cache, new, cur_pos, s), not {}", x.len()));
    };
    if [cur_pos, s].iter().any(|t| t.dtype != Dtype::I64 || !t.shape.is_empty()) {
        return Err("cur_pos and s that are scalar i64".to_string());
    }
    let fits =
        |c: &Type, n: &Type| !c.shape.is_empty() && !n.shape.is_empty() && c.shape[1..] == n.shape[1..];
    match cache.dtype == new.dtype && fits(cache, new) {
        true => Ok((*cache).clone()),
        false => Err("cache [N, ..] and new [M, ..] of one dtype that differ on axis 0 only".to_string()),
    }
}

pub(super) fn cost(operands: &[Type]) -> Cost {
    // `s` is runtime data: what bounds the window is the length of `new`. Where that is open, nothing does.
    let rows = match operands[1].known_shape() {
        Some(_) => bytes(&operands[1]).min(bytes(&operands[0])),
        None => bytes(&operands[0]),
    };
    Cost { flops: 0, read: rows, written: rows }
}

/// The cache with `s` rows of `new` at `cur_pos`; refuses a window that does not fit.
pub(super) fn evaluate(x: &[&Tensor]) -> Result<Tensor, String> {
    let (cache, new) = (x[0], x[1]);
    let (position, s) = (x[2].integers()[0], x[3].integers()[0]);
    let (capacity, rows) = (cache.shape[0], new.shape[0]);
    let position = usize::try_from(position).map_err(|_| format!("cur_pos of 0 or more, not {position}"))?;
    let s = usize::try_from(s)
        .ok()
        .filter(|s| (1..=rows).contains(s))
        .ok_or_else(|| format!("s in 1..={rows} (the rows of `new`), not {s}"))?;
    if position.checked_add(s).is_none_or(|end| end > capacity) {
        return Err(format!("cur_pos + s of at most {capacity} (the capacity), not {position} + {s}"));
    }
    let row: usize = cache.shape[1..].iter().product();
    let mut out = cache.clone();
    match (&mut out.data, &new.data) {
        (Data::F64(c), Data::F64(n)) => {
            c[position * row..(position + s) * row].copy_from_slice(&n[..s * row])
        }
        (Data::I64(c), Data::I64(n)) => {
            c[position * row..(position + s) * row].copy_from_slice(&n[..s * row])
        }
        _ => return Err("cache and new of one dtype".to_string()),
    }
    Ok(out)
}
