//! What two values have to satisfy: predicates with the bounds that were asked for, and the worst reading of
//! each over the steps of a run. There is no bound that nobody asked for.

use crate::cli::{ANY, whole};
use mica_models::eval::{Data, Tensor};
use mica_models::hir::Dtype;
use mica_score::metrics::{Choice, Elements, Equality, Places, Similarity};
use mica_score::{Bound, Gate, GateSpec, Reading, ScoreError};

/// The predicates as the command takes them.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(skip)]
pub struct Asked {
    /// Least cosine with the reference.
    #[arg(long, value_name = "MIN", help_heading = "Predicates")]
    pub cosine: Option<f64>,
    /// Largest `|y − r| / |r|`, norms over the whole output.
    #[arg(long, value_name = "MAX", help_heading = "Predicates")]
    pub rel_l2: Option<f64>,
    /// Largest `|y − r|` of an element.
    #[arg(long, value_name = "MAX", help_heading = "Predicates")]
    pub max_abs: Option<f64>,
    /// Largest `|y − r| / |r|` of an element.
    #[arg(long, value_name = "MAX", help_heading = "Predicates")]
    pub max_rel: Option<f64>,
    /// Largest `|y − r|` of an element, in units of the last place of `r` in the output's dtype.
    #[arg(long, value_name = "MAX", help_heading = "Predicates")]
    pub ulp: Option<f64>,
    /// Every element is the very same number, its sign of zero included.
    #[arg(long, help_heading = "Predicates")]
    pub equal: bool,
    /// At most so many elements of either side that are NaN or infinite.
    #[arg(long, value_name = "MAX", value_parser = whole::<u64>(ANY), help_heading = "Predicates")]
    pub nan_inf: Option<u64>,
    /// Largest distance of `|y| / |r|` from 1.
    #[arg(long, value_name = "TOLERANCE", help_heading = "Predicates")]
    pub norm_ratio: Option<f64>,
    /// The K largest elements are the same ones.
    #[arg(long, value_name = "K", value_parser = whole::<usize>(ANY), help_heading = "Predicates")]
    pub topk: Option<usize>,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Predicate {
    Cosine(f64),
    RelL2(f64),
    MaxAbs(f64),
    MaxRel(f64),
    Ulp(f64),
    Equal,
    NanInf(u64),
    NormRatio(f64),
    TopK(usize),
    /// Integers are compared exactly, whatever is asked of real numbers.
    Exact,
}

impl Predicate {
    fn spec(self) -> GateSpec {
        let (name, bound) = match self {
            Predicate::Cosine(least) => ("cosine".to_string(), Bound::AtLeast(least)),
            Predicate::RelL2(most) => ("rel-l2".to_string(), Bound::AtMost(most)),
            Predicate::MaxAbs(most) => ("max-abs".to_string(), Bound::AtMost(most)),
            Predicate::MaxRel(most) => ("max-rel".to_string(), Bound::AtMost(most)),
            Predicate::Ulp(most) => ("ulp".to_string(), Bound::AtMost(most)),
            Predicate::Equal => ("elements that differ".to_string(), Bound::Equals(0.0)),
            Predicate::NanInf(most) => ("nan-inf".to_string(), Bound::AtMost(most as f64)),
            Predicate::NormRatio(tolerance) => {
                ("norm-ratio".to_string(), Bound::Within { center: 1.0, tolerance })
            }
            Predicate::TopK(k) => (format!("missed of top {k}"), Bound::Equals(0.0)),
            Predicate::Exact => ("integers that differ".to_string(), Bound::Equals(0.0)),
        };
        GateSpec::own(name, bound)
    }

    /// The figure of real numbers.
    fn measure(self, y: &[f64], r: &[f64], dtype: Dtype) -> Result<Reading, ScoreError> {
        let elements = r.len() as u64;
        let at =
            |value: f64, at: Option<u64>| Reading { value, elements, at: at.map(|i| format!("element {i}")) };
        let similarity = || Similarity::of(y, r, 0.0);
        let each = || Elements::of(y, r, places(dtype));
        Ok(match self {
            Predicate::Cosine(_) => at(similarity()?.cosine, None),
            Predicate::RelL2(_) => at(similarity()?.error, None),
            Predicate::MaxAbs(_) => at(similarity()?.max_abs, None),
            Predicate::NormRatio(_) => at(similarity()?.norm_ratio, None),
            Predicate::MaxRel(_) => each().map(|e| at(e.max_rel, Some(e.max_rel_at)))?,
            Predicate::Ulp(_) => each().map(|e| at(e.ulp, Some(e.ulp_at)))?,
            Predicate::NanInf(_) => at(each()?.not_finite.iter().sum::<u64>() as f64, None),
            Predicate::TopK(_) if !y.iter().chain(r).all(|v| v.is_finite()) => at(f64::NAN, None),
            Predicate::TopK(k) => {
                let lost = Choice::of(&largest(y, k), &largest(r, k))?.lost;
                at(lost.len() as f64, lost.first().map(|&i| i as u64))
            }
            Predicate::Equal | Predicate::Exact => {
                let bits = |v: &[f64]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                let e = Equality::of(&bits(y), &bits(r))?;
                at(e.differing as f64, e.first)
            }
        })
    }
}

fn places(dtype: Dtype) -> Places {
    match dtype {
        Dtype::BF16 => Places::BF16,
        Dtype::F16 => Places::F16,
        Dtype::F32 => Places::F32,
        Dtype::I64 => Places::F64,
    }
}

/// Indices of the k largest, descending, ties to the lower index.
fn largest(values: &[f64], k: usize) -> Vec<i64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| (values[b] + 0.0).total_cmp(&(values[a] + 0.0)));
    order.into_iter().take(k).map(|i| i as i64).collect()
}

/// The predicates of one check.
#[derive(Clone, Debug)]
pub struct Predicates(Vec<Predicate>);

impl Predicates {
    /// Those that were asked for; an error says what may be.
    ///
    /// # Errors
    /// None at all, or a bound that is no number.
    pub fn new(a: &Asked) -> Result<Predicates, super::Refused> {
        let mut all: Vec<Predicate> = Vec::new();
        all.extend(a.cosine.map(Predicate::Cosine));
        all.extend(a.rel_l2.map(Predicate::RelL2));
        all.extend(a.max_abs.map(Predicate::MaxAbs));
        all.extend(a.max_rel.map(Predicate::MaxRel));
        all.extend(a.ulp.map(Predicate::Ulp));
        all.extend(a.equal.then_some(Predicate::Equal));
        all.extend(a.nan_inf.map(Predicate::NanInf));
        all.extend(a.norm_ratio.map(Predicate::NormRatio));
        all.extend(a.topk.map(Predicate::TopK));
        let bounds = [a.cosine, a.rel_l2, a.max_abs, a.max_rel, a.ulp, a.norm_ratio];
        if bounds.into_iter().flatten().any(|b| !b.is_finite()) || a.topk == Some(0) {
            return Err(super::Refused("a bound is a finite number, and top-k's K at least 1".into()));
        }
        match all.is_empty() {
            false => Ok(Predicates(all)),
            true => Err(super::Refused(
                "nothing says what counts as equal, and there is no default: give one or more of --cosine, \
                 --rel-l2, --max-abs, --max-rel, --ulp, --equal, --nan-inf, --norm-ratio, --topk"
                    .into(),
            )),
        }
    }

    /// Whether two values satisfy all of them; values that cannot be compared do not.
    pub fn agree(&self, reference: &Tensor, found: &Tensor, dtype: Dtype) -> bool {
        let mut judged = Judged::default();
        judged.step(self, found, reference, dtype, 0).is_ok() && judged.gates().iter().all(Gate::passed)
    }
}

/// The worst readings of one output over the steps of a run.
#[derive(Clone, Debug, Default)]
pub struct Judged {
    worst: Vec<(GateSpec, Reading)>,
    /// Norm of the reference at each step judged; of integers there is none.
    pub norms: Vec<f64>,
}

impl Judged {
    /// Adds a step.
    ///
    /// # Errors
    /// Values of different shape or element kind.
    pub fn step(
        &mut self,
        predicates: &Predicates,
        y: &Tensor,
        r: &Tensor,
        dtype: Dtype,
        step: usize,
    ) -> Result<(), String> {
        if y.shape != r.shape {
            return Err(format!("it is {:?} and its reference {:?}", y.shape, r.shape));
        }
        let exact = [Predicate::Exact];
        let (asked, y, r) = match (&y.data, &r.data) {
            (Data::F64(y), Data::F64(r)) => {
                self.norms.push(r.iter().map(|v| v * v).sum::<f64>().sqrt());
                (&predicates.0[..], y.clone(), r.clone())
            }
            // exact in both directions: an id is far below 2^53
            (Data::I64(y), Data::I64(r)) => {
                let wide = |v: &[i64]| v.iter().map(|&n| n as f64).collect::<Vec<_>>();
                (&exact[..], wide(y), wide(r))
            }
            _ => return Err("one is of integers and the other of real numbers".into()),
        };
        for (i, p) in asked.iter().enumerate() {
            let mut reading = p.measure(&y, &r, dtype).map_err(|e| e.to_string())?;
            reading.at = Some(match reading.at {
                Some(at) => format!("step {step}, {at}"),
                None => format!("step {step}"),
            });
            let spec = p.spec();
            match self.worst.get_mut(i) {
                None => self.worst.push((spec, reading)),
                Some((_, worst)) => {
                    let elements = worst.elements + reading.elements;
                    if badness(spec.bound, reading.value) > badness(spec.bound, worst.value) {
                        *worst = reading;
                    }
                    worst.elements = elements;
                }
            }
        }
        Ok(())
    }

    /// The gates.
    pub fn gates(&self) -> Vec<Gate> {
        self.worst.iter().map(|(spec, reading)| spec.clone().judge(reading.clone())).collect()
    }
}

/// Larger is worse, and NaN the worst.
fn badness(bound: Bound, value: f64) -> f64 {
    let badness = match bound {
        Bound::AtLeast(_) => -value,
        Bound::Within { center, .. } => (value - center).abs(),
        Bound::AtMost(_) | Bound::Equals(_) => value,
    };
    if badness.is_nan() { f64::INFINITY } else { badness }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[f64]) -> Tensor {
        Tensor::f64(&[values.len()], values.to_vec())
    }

    #[test]
    fn every_predicate_passes_and_fails() {
        let r = of(&[3.0, 4.0, 0.5]);
        // asked, what passes, what fails
        let table: &[(&str, Asked, &[f64], &[f64])] = &[
            ("cosine", Asked { cosine: Some(0.999), ..Asked::default() }, &[6.0, 8.0, 1.0], &[4.0, 3.0, 0.5]),
            ("rel-l2", Asked { rel_l2: Some(0.1), ..Asked::default() }, &[3.1, 4.0, 0.5], &[4.0, 4.0, 0.5]),
            (
                "max-abs",
                Asked { max_abs: Some(0.1), ..Asked::default() },
                &[3.05, 4.0, 0.5],
                &[3.0, 4.2, 0.5],
            ),
            ("max-rel", Asked { max_rel: Some(0.1), ..Asked::default() }, &[3.2, 4.2, 0.5], &[3.0, 4.0, 0.6]),
            ("ulp", Asked { ulp: Some(1.0), ..Asked::default() }, &[3.015625, 4.0, 0.5], &[3.0, 4.0, 0.51]),
            ("equal", Asked { equal: true, ..Asked::default() }, &[3.0, 4.0, 0.5], &[3.0, 4.0, 0.5000001]),
            (
                "nan-inf",
                Asked { nan_inf: Some(0), ..Asked::default() },
                &[9.0, 9.0, 9.0],
                &[3.0, f64::NAN, 0.5],
            ),
            (
                "norm-ratio",
                Asked { norm_ratio: Some(0.01), ..Asked::default() },
                &[4.0, 3.0, 0.5],
                &[4.0, 4.0, 0.5],
            ),
            ("topk", Asked { topk: Some(2), ..Asked::default() }, &[9.0, 8.0, 1.0], &[9.0, 1.0, 8.0]),
        ];
        for (name, asked, passes, fails) in table {
            let p = Predicates::new(asked).unwrap();
            assert!(p.agree(&r, &of(passes), Dtype::BF16), "{name}");
            assert!(!p.agree(&r, &of(fails), Dtype::BF16), "{name}");
            // a NaN passes nothing
            assert!(!p.agree(&r, &of(&[f64::NAN, 4.0, 0.5]), Dtype::BF16), "{name}");
        }
    }

    #[test]
    fn integers_are_exact_and_shapes_are_equal() {
        let p = Predicates::new(&Asked { cosine: Some(-1.0), ..Asked::default() }).unwrap();
        let ids = |v: &[i64]| Tensor::i64(&[v.len()], v.to_vec());
        assert!(p.agree(&ids(&[3, 1]), &ids(&[3, 1]), Dtype::I64));
        assert!(!p.agree(&ids(&[3, 1]), &ids(&[1, 3]), Dtype::I64));
        assert!(!p.agree(&of(&[3.0, 1.0]), &ids(&[3, 1]), Dtype::I64));
        assert!(!p.agree(&of(&[3.0, 1.0]), &of(&[3.0]), Dtype::F32));
    }

    #[test]
    fn nothing_asked_is_refused() {
        let e = Predicates::new(&Asked::default()).unwrap_err();
        assert!(e.0.contains("there is no default") && e.0.contains("--rel-l2"), "{e}");
        let nan = Asked { cosine: Some(f64::NAN), ..Asked::default() };
        assert!(Predicates::new(&nan).is_err());
    }

    #[test]
    fn the_worst_step_is_the_one_reported() {
        let p = Predicates::new(&Asked { max_abs: Some(0.1), ..Asked::default() }).unwrap();
        let mut judged = Judged::default();
        for (step, y) in [1.0, 1.05, 1.01].into_iter().enumerate() {
            judged.step(&p, &of(&[y]), &of(&[1.0]), Dtype::F32, step).unwrap();
        }
        let gates = judged.gates();
        assert!(gates[0].passed() && gates[0].elements == 3 && gates[0].at.as_deref() == Some("step 1"));
        assert_eq!(judged.norms, [1.0, 1.0, 1.0]);
    }
}
