//! The report's JSON of a program small enough to check by hand, as it is.

use super::{Calls, On, Timing};
use mica_device::format::Format;
use mica_device::layout::{MatrixFormat, WeightFormat};
use mica_device::object::{Direction, EdgeUse, Entry, Kernel, OpInfo, Segment};
use mica_device::product::{Product, Rates};
use mica_device::segment::{SegmentPlan, Storage};
use mica_device::{asm, isa};

fn plan() -> SegmentPlan {
    let mut plan = SegmentPlan::default();
    let matrix = Storage::Matrix(MatrixFormat { weight: WeightFormat::F16, scaling: None });
    assert!(plan.push("gate", &[16, 8], matrix));
    plan
}

fn kernel(plan: &SegmentPlan) -> Kernel {
    let text = format!(
        "dld l2=0x100, bytes={}, -, s0, -, off=0
         tdef.f16 t0, lrm=0, 1x8, -
         dld l2=0, bytes=16, -, s1, -, off=0
         ldt.f16 t0, l2=0 ?in-1
         tdef.f32 t1, lrm=0x40, 1x16, -
         matv.f16 t1, t0, l2=0x100, rows=16, group=0 ?in-2 ?flow-1
         stt.f32 t1, l2=0 ?array-1 @0.1
         dst l2=0, bytes=64, -, s2, -, off=0 ?flow-1 @0.1
         halt @0.1",
        plan.bytes
    );
    let entry = |name: &str, register, direction, bytes| {
        let (format, shape) = (Format::F32, vec![bytes / 4]);
        let share = EdgeUse { name: name.into(), direction, format, frac: 0, shape, bytes };
        Entry { name: name.into(), register, direction, bytes, shares: vec![(0, 0, share)] }
    };
    let op = |op: &str, label: &str| OpInfo { op: op.into(), label: label.into() };
    Kernel {
        code: isa::encode(&asm::parse(&text).unwrap()),
        segments: vec![Segment { offset: 0, bytes: plan.bytes, part: 0, literals: false }],
        literals: vec![Vec::new()],
        entries: vec![entry("x_cache.in", 1, Direction::In, 16), entry("y.out", 2, Direction::Out, 64)],
        ops: vec![vec![op("matmul", "mlp.gate"), op("cast", "")]],
        parts: vec!["head".into()],
        lrm_peak: 0x80,
        l2_peak: 0x100 + plan.bytes,
    }
}

#[test]
fn the_report_as_json() {
    let plan = plan();
    let on = On { product: &Product::named("qb1").unwrap(), rates: &Rates { bus_bytes: 8, clock_mhz: 500 } };
    let timing =
        Timing::new(&kernel(&plan), &[&plan], &["head".into()], on, Calls { position: 3, tokens: 1 })
            .unwrap();
    insta::assert_snapshot!(serde_json::to_string_pretty(&timing).unwrap());
    insta::assert_snapshot!(super::render::text(&timing, super::render::Show { ops: true, memory: true }));
}
